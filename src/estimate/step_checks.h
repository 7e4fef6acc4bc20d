// What an estimate refuses, and in which words.
#pragma once

#include <ATen/core/Tensor.h>
#include <reprise/estimate.h>

#include <string>
#include <unordered_set>
#include <vector>

namespace reprise::estimate {

// Throw UsageError.
void check_called(const std::function<at::Tensor()>& loss, const EstimateOptions& options);
void check_loss(const at::Tensor& loss);
// Estimates do not see through the tensors of one that is around them; `what` was called.
void check_not_on_meta(const char* what);

[[noreturn]] void refuse_trained_elsewhere(const std::string& sizes);
[[noreturn]] void refuse_made_before(const std::string& sizes);

// The tensors that a module has before a step, which a step may add to.
class Registered {
 public:
  explicit Registered(torch::nn::Module& module);

  const std::vector<at::Tensor>& parameters() const { return parameters_; }
  const std::vector<at::Tensor>& buffers() const { return buffers_; }
  std::vector<at::Tensor> all() const;

  // Throws UsageError where something of the module has no memory now, for the step made it; with
  // the text of the step's own failure, if it failed.
  void check(const std::string& failure) const;

 private:
  // The names; empty: there is nothing, or nothing of the module had any memory before.
  std::string without_memory() const;

  torch::nn::Module& module_;
  std::vector<at::Tensor> parameters_, buffers_;
  std::unordered_set<const c10::TensorImpl*> seen_;
  bool has_memory_ = false;
};

}  // namespace reprise::estimate
