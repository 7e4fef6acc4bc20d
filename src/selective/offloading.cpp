#include "selective/offloading.h"

#include <reprise/error.h>

#include "libtorch/base/thread_state.h"

namespace reprise::selecting {
namespace {

// Pinned host memory, for accelerator tensors of programs that name no store.
const std::shared_ptr<Store>& store_of_accelerators() {
  static const auto* const store = new std::shared_ptr<Store>(host_store());
  return *store;
}

}  // namespace

std::shared_ptr<ParkedTensor> Offloading::park(const at::Tensor& tensor) const {
  if (!wanted() || !tensor.defined()) return nullptr;
  if (const char* reason = Store::cannot_park(tensor); reason != nullptr) {
    if (policy_ == CheckpointPolicy::kPreferCpuOffload || tensor.numel() == 0) return nullptr;
    throw UsageError("selective checkpoint: the policy says kMustCpuOffload of " + schema_.name() +
                     ", whose result cannot be parked: " + reason + ". Answer kMustSave");
  }
  const libtorch::OwnWorkScope own;
  if (store_ != nullptr) {
    const bool prefers = policy_ == CheckpointPolicy::kPreferCpuOffload;
    return prefers && !store_->takes(tensor.device()) ? nullptr : store_->park(tensor);
  }
  if (!tensor.is_cpu()) return store_of_accelerators()->park(tensor);
  throw UsageError("selective checkpoint: the policy offloads the result of " + schema_.name() +
                   ", which is in host memory already, and no store is configured; set "
                   "SelectiveOptions::store to disk_store({.folder = ...}), or save it instead");
}

}  // namespace reprise::selecting
