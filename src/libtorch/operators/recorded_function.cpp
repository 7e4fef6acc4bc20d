#include "libtorch/operators/recorded_function.h"

#include <c10/core/GradMode.h>
#include <reprise/error.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "libtorch/base/thread_state.h"
#include "libtorch/memory/limited_work.h"
#include "libtorch/memory/managed_memory.h"
#include "libtorch/operators/operator_effects.h"
#include "libtorch/operators/operator_interceptor.h"

namespace reprise::libtorch {

RecordedFunction::RecordedFunction(std::string name, Run run,
                                   const std::vector<at::Tensor>& arguments)
    : name_(std::move(name)), run_(std::move(run)), keys_(keys_without_interceptors()) {
  for (const at::Tensor& tensor : arguments) {
    arguments_.push_back({.is_defined = tensor.defined(),
                          .requires_grad = tensor.defined() && tensor.requires_grad()});
  }
}

std::vector<c10::IValue> RecordedFunction::operator()(std::vector<at::Tensor> defined) const {
  const ThreadStateScope unseen(state_of_limits());
  const c10::impl::ForceDispatchKeyGuard keys(keys_.included_.remove(kEffectKey), keys_.excluded_);
  const AmbientScope ambient(ambient_);
  // forward() may ask which inputs need gradients. Only the results' storages are taken.
  const c10::AutoGradMode grad(records_);
  std::vector<c10::StorageImpl*> given;
  for (const at::Tensor& tensor : defined) given.push_back(tensor.storage().unsafeGetStorageImpl());
  std::vector<at::Tensor> arguments;
  auto next = defined.begin();
  for (const Argument& argument : arguments_) {
    arguments.push_back(argument.is_defined ? std::move(*next++) : at::Tensor());
    if (argument.requires_grad) arguments.back().set_requires_grad(true);
  }
  std::vector<c10::IValue> results;
  for (at::Tensor& tensor : run_(std::move(arguments))) {
    if (tensor.defined() && tensor.has_storage()) {
      c10::StorageImpl* const storage = tensor.storage().unsafeGetStorageImpl();
      if (ManagedMemory::manager_of(*storage) != nullptr ||
          std::ranges::count(given, storage) != 0) {
        throw DeterminismError(
            "memory budget: " + name_ +
            ", called through reprise::apply, made new memory for its results at first, and gave "
            "back memory that was there before when it was run again; make it give back new "
            "tensors, or call it without reprise::apply");
      }
    }
    results.emplace_back(tensor.defined() ? tensor.detach() : tensor);
  }
  return results;
}

}  // namespace reprise::libtorch
