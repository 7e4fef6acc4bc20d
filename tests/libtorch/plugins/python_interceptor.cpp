// Operator interception and one selective step behind a C interface, for tests in a Python process.
#include <ATen/core/Tensor.h>
#include <ATen/ops/randn.h>
#include <reprise/selective.h>
#include <torch/csrc/autograd/autograd.h>

#include <memory>
#include <mutex>
#include <string>

#include "libtorch/operators/operator_interceptor.h"

namespace {

// "mm sin " and so on, in order.
struct Names final : reprise::libtorch::OperatorInterceptor {
  void intercept(reprise::libtorch::OperatorCall& call) override {
    std::lock_guard<std::mutex> lock(mutex);
    const std::string& name = call.schema().name();
    text += name.substr(name.find("::") + 2) + " ";
  }
  std::mutex mutex;
  std::string text;
};

struct Interception {
  std::shared_ptr<Names> names = std::make_shared<Names>();
  reprise::libtorch::OperatorInterceptorScope scope{names,
                                                    reprise::libtorch::Reach::kBackwardAsWell};
};

at::Tensor block(const at::Tensor& x, const at::Tensor& w) {
  return x.mm(w).sigmoid().mm(w).tanh();
}

}  // namespace

extern "C" {

void* interceptor_open() { return new Interception; }

// What was seen; valid until the scope is closed.
const char* interceptor_names(void* interception) {
  return static_cast<Interception*>(interception)->names->text.c_str();
}

void interceptor_close(void* interception) { delete static_cast<Interception*>(interception); }

// Whether a selective region's gradients are those of the plain step, bit by bit.
bool selective_step_is_exact() {
  const at::Tensor x = at::randn({6, 6}).set_requires_grad(true);
  const at::Tensor w = at::randn({6, 6}).set_requires_grad(true);
  const auto plain = torch::autograd::grad({block(x, w).sum()}, {x, w});
  const reprise::CheckpointOptions options{.context = reprise::selective(reprise::save_matmuls())};
  const at::Tensor y = reprise::checkpoint(options, block, x, w);
  const auto kept = torch::autograd::grad({y.sum()}, {x, w});
  return kept[0].equal(plain[0]) && kept[1].equal(plain[1]);
}

}  // extern "C"
