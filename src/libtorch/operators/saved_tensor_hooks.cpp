// The public hook scopes (reprise/saved_tensor_hooks.h) on top of the engine front and the thread
// state.

#include "reprise/saved_tensor_hooks.h"

#include <ATen/DeviceAccelerator.h>
#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>
#include <reprise/error.h>

#include <optional>
#include <sstream>
#include <utility>

#include "core/recycling_allocator.h"
#include "libtorch/autograd/engine.h"
#include "libtorch/autograd/saved_tensor.h"
#include "libtorch/base/thread_state.h"
#include "libtorch/operators/operator_effects.h"

namespace reprise {
namespace {

using libtorch::HookProvider;
using libtorch::SavedVariableHooks;
using libtorch::ThreadStateScope;

class UserHooks final : public SavedVariableHooks, public Recycled<UserHooks> {
 public:
  // Packing follows at once, while the scope is open; the packer is not needed after that.
  explicit UserHooks(const detail::Packer& packer) : packer_(&packer) {}

  // Called by autograd under no-grad.
  void call_pack_hook(const at::Tensor& tensor) override {
    origin_ = libtorch::WeakNode(tensor);
    counter_ = tensor.unsafeGetTensorImpl()->version_counter();
    version_ = libtorch::SavedVersion(tensor);
    if (tensor.has_storage()) storage_ = tensor.storage().getWeakStorageImpl();
    nested_ = tensor.is_nested();
    if (!nested_) sizes_ = tensor.sizes();
    dtype_ = tensor.scalar_type();
    const libtorch::UnobservedScope unobserved;
    packed_ = (*packer_)(libtorch::without_history(tensor));
  }

  at::Tensor call_unpack_hook() override {
    std::optional<c10::AutoGradMode> no_grad;
    if (c10::GradMode::is_enabled()) no_grad.emplace(false);
    const libtorch::UnobservedScope unobserved;
    at::Tensor tensor = packed_->unpack();
    check(tensor);
    // Where the original memory comes back, a change to it since would silently give wrong
    // gradients.
    if (tensor.has_storage() &&
        storage_._unsafe_get_target() == tensor.storage().unsafeGetStorageImpl()) {
      version_.check(tensor, counter_, origin_);
    }
    return tensor;
  }

 private:
  void check(const at::Tensor& tensor) const {
    if (tensor.defined() && tensor.scalar_type() == dtype_ &&
        (nested_ || tensor.sizes() == c10::IntArrayRef(sizes_))) {
      return;
    }
    std::ostringstream text;
    text << "SavedTensorHooksScope: unpack returned ";
    if (tensor.defined()) {
      text << "a tensor of " << tensor.scalar_type() << " " << tensor.sizes();
    } else {
      text << "an undefined tensor";
    }
    text << " where pack was given " << dtype_ << " " << c10::IntArrayRef(sizes_)
         << "; it must give back the same shape and dtype";
    throw UsageError(text.str());
  }

  const detail::Packer* packer_;
  std::unique_ptr<detail::PackedTensor> packed_;
  libtorch::WeakNode origin_;
  // Of the tensor that was packed: what comes back may count for itself (x.data()).
  c10::VariableVersion counter_;
  libtorch::SavedVersion version_;
  // Weak, or new memory in the same place could be taken for it.
  c10::weak_intrusive_ptr<c10::StorageImpl> storage_{c10::intrusive_ptr<c10::StorageImpl>()};
  c10::DimVector sizes_;
  at::ScalarType dtype_ = at::ScalarType::Undefined;
  bool nested_ = false;
};

class UserProvider final : public HookProvider {
 public:
  explicit UserProvider(detail::Packer packer) : packer_(std::move(packer)) {}
  std::unique_ptr<SavedVariableHooks> make_hooks() override {
    return std::make_unique<UserHooks>(packer_);
  }

 private:
  const detail::Packer packer_;
};

class NoHooks final : public HookProvider {
 public:
  std::unique_ptr<SavedVariableHooks> make_hooks() override { return nullptr; }
};

std::shared_ptr<libtorch::ThreadState> state_with(std::shared_ptr<HookProvider> provider) {
  libtorch::ensure_engine_front();
  auto state = libtorch::copy_of_current_state();
  state->set_hooks(std::move(provider));
  return state;
}

// A tensor in host memory and the device it came from.
struct OnHost {
  at::Tensor host;
  at::Device device;
  bool pinned;
};

OnHost move_to_host(const at::Tensor& tensor, bool pin) {
  // Other layouts have no one block of memory to pin.
  if (!pin || tensor.layout() != at::kStrided || tensor.is_nested()) {
    return {tensor.cpu(), tensor.device(), false};
  }
  auto host = at::empty(tensor.sizes(), tensor.options().device(at::kCPU).pinned_memory(true));
  host.copy_(tensor, /*non_blocking=*/true);
  return {host, tensor.device(), true};
}

void check_pinning(bool pin_memory) {
  if (pin_memory && !at::accelerator::getAccelerator().has_value()) {
    throw UsageError(
        "SaveOnCpuScope(pin_memory=true): this process has no accelerator to pin host memory for; pass "
        "false");
  }
}

}  // namespace

class SavedTensorHooksScope::Impl {
 public:
  explicit Impl(detail::Packer packer)
      : scope_(state_with(std::make_shared<UserProvider>(std::move(packer)))) {}

 private:
  ThreadStateScope scope_;
};

SavedTensorHooksScope::SavedTensorHooksScope(detail::Packer packer)
    : impl_(std::make_unique<Impl>(std::move(packer))) {}
SavedTensorHooksScope::~SavedTensorHooksScope() = default;

class NoSavedTensorHooksScope::Impl {
 public:
  Impl() : scope_(state_with(std::make_shared<NoHooks>())) {}

 private:
  ThreadStateScope scope_;
};

NoSavedTensorHooksScope::NoSavedTensorHooksScope() : impl_(std::make_unique<Impl>()) {}
NoSavedTensorHooksScope::~NoSavedTensorHooksScope() = default;

SaveOnCpuScope::SaveOnCpuScope(bool pin_memory)
    : hooks_((check_pinning(pin_memory),
              [pin_memory](const at::Tensor& tensor) { return move_to_host(tensor, pin_memory); }),
             [](const OnHost& kept) {
               return kept.device.is_cpu() ? kept.host : kept.host.to(kept.device, kept.pinned);
             }) {}

}  // namespace reprise
