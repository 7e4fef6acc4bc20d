// A custom autograd function's forward, kept so that it can be run again on other memory
// (recorded_call.h): under the dispatch keys and the ambient state of its first run, without a
// history, and seen by no interceptor and no observer.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <functional>
#include <string>
#include <vector>

#include "libtorch/base/ambient_state.h"

namespace reprise::libtorch {

class RecordedFunction {
 public:
  // The results for these arguments, undefined ones included.
  using Run = std::function<std::vector<at::Tensor>(std::vector<at::Tensor>)>;

  // Before its first run, on the thread that runs it.
  RecordedFunction(std::string name, Run run, const std::vector<at::Tensor>& arguments);

  const std::string& name() const { return name_; }
  // `defined`: what stands for those arguments that were defined. Throws DeterminismError if a
  // result is on memory that the function was given, or that it keeps from its first run.
  std::vector<c10::IValue> operator()(std::vector<at::Tensor> defined) const;

 private:
  struct Argument {
    bool is_defined = false;
    bool requires_grad = false;
  };

  const std::string name_;
  const Run run_;
  const AmbientState ambient_ = AmbientState::take();
  const bool records_ = c10::GradMode::is_enabled();
  const c10::impl::LocalDispatchKeySet keys_;
  std::vector<Argument> arguments_;
};

}  // namespace reprise::libtorch
