// Functions with state, and steps with them, for the tests of what a region does to state.
#pragma once

#include <functional>

#include "tests/region/testing.h"

namespace reprise::testing {

// Something to checkpoint, and the tensors that a step with it changes.
struct Subject {
  std::function<at::Tensor(const at::Tensor&)> body;
  Tensors state;
  Tensors parameters = {};
};
using Maker = std::function<Subject()>;

inline at::Tensor input() {
  torch::manual_seed(11);
  return leaf({6, 4});
}

// The gradients of the input and of the parameters, and the state, after a step that runs the
// subject's function through `wrap`.
template <class Wrap>
Tensors after_step(const Maker& make, const Wrap& wrap) {
  torch::manual_seed(3);
  const Subject subject = make();
  Tensors leaves = subject.parameters;
  leaves.push_back(input());
  Tensors result = gradients_of([&] { return wrap(subject.body, leaves.back()); }, leaves);
  for (const at::Tensor& tensor : subject.state) result.push_back(tensor.detach().clone());
  return result;
}

inline Tensors after_plain_step(const Maker& make) {
  return after_step(make, [](const auto& body, const at::Tensor& x) { return body(x); });
}

inline Tensors after_region(const Maker& make, const CheckpointOptions& options) {
  return after_step(
      make, [&](const auto& body, const at::Tensor& x) { return checkpoint(options, body, x); });
}

template <class Norm>
Subject norm_subject(Norm norm, std::function<at::Tensor(const at::Tensor&)> shaped = {}) {
  Subject subject;
  subject.state = norm->buffers();
  subject.parameters = norm->parameters();
  subject.body = [norm, shaped](const at::Tensor& x) mutable {
    return norm->forward(shaped ? shaped(x) : x).sin().exp();
  };
  return subject;
}

inline Subject batch_norm(const torch::nn::BatchNorm1dOptions& options, bool training = true) {
  torch::nn::BatchNorm1d norm(options);
  norm->train(training);
  return norm_subject(norm);
}

// As spectral normalization: each run improves an estimate of the largest singular value.
inline Subject power_iteration() {
  const at::Tensor weight = torch::randn({4, 4}).requires_grad_(true);
  const at::Tensor u = torch::randn({4});
  const at::Tensor v = torch::randn({4});
  Subject subject;
  subject.state = {u, v};
  subject.parameters = {weight};
  subject.body = [=](const at::Tensor& x) {
    {
      torch::NoGradGuard no_grad;
      v.copy_(torch::nn::functional::normalize(
          weight.t().mv(u), torch::nn::functional::NormalizeFuncOptions().dim(0)));
      u.copy_(torch::nn::functional::normalize(
          weight.mv(v), torch::nn::functional::NormalizeFuncOptions().dim(0)));
    }
    const at::Tensor sigma = u.clone().dot(weight.mv(v.clone()));
    return x.matmul((weight / sigma).t()).tanh();
  };
  return subject;
}

// Reads what it counts.
inline Subject counter() {
  const at::Tensor count = torch::zeros({}, torch::kLong);
  return {[=](const at::Tensor& x) {
            count.add_(1);
            return (x * count.to(torch::kFloat)).sin();
          },
          {count}};
}

inline Subject written_twice() {
  const at::Tensor scale = torch::ones({4});
  return {[=](const at::Tensor& x) {
            scale.mul_(3);
            const at::Tensor y = (x * scale.clone()).sin();
            scale.sub_(1);
            return (y * scale.clone()).cos();
          },
          {scale}};
}

}  // namespace reprise::testing
