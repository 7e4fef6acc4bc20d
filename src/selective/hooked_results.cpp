#include "selective/hooked_results.h"

#include <utility>

#include "libtorch/autograd/saved_tensor.h"
#include "libtorch/operators/operator_effects.h"

namespace reprise::selecting {
namespace {

class HookedResult final : public ParkedTensor {
 public:
  HookedResult(libtorch::SavedTensor saved, bool is_private, Bytes bytes)
      : saved_(std::move(saved)), is_private_(is_private), bytes_(bytes) {}

  at::Tensor load() override {
    const libtorch::UnobservedScope unobserved;
    const at::Tensor tensor = saved_.unpack();
    // Hooks may give back a tensor that they keep. Autograd is about to attach a history to it.
    return is_private_ ? tensor.clone() : libtorch::alias_with_own_counter(tensor);
  }
  // Hooks fetch nothing ahead, but stores among the others may.
  bool prefetch() override { return true; }
  Bytes bytes() const override { return bytes_; }

 private:
  const libtorch::SavedTensor saved_;
  const bool is_private_;
  const Bytes bytes_;
};

class NoHooks final : public libtorch::HookProvider {
 public:
  std::unique_ptr<torch::autograd::SavedVariableHooks> make_hooks() override { return nullptr; }
};

std::shared_ptr<libtorch::ThreadState> state_past_regions(bool to_program_hooks) {
  auto state = libtorch::copy_of_current_state();
  if (to_program_hooks) {
    state->use_program_hooks();
  } else {
    state->set_hooks(std::make_shared<NoHooks>());
  }
  return state;
}

}  // namespace

PastRegionsScope::PastRegionsScope(bool to_program_hooks)
    : in_force_(state_past_regions(to_program_hooks)) {}

std::shared_ptr<ParkedTensor> pack_by_hooks(const at::Tensor& tensor, bool is_private) {
  if (!tensor.defined() || tensor.is_inference() || !libtorch::is_in_program_hooks()) {
    return nullptr;
  }
  const PastRegionsScope past(/*to_program_hooks=*/true);
  const libtorch::OwnWorkScope own;
  const libtorch::UnobservedScope unobserved;
  const libtorch::WritesDoneScope done;
  // Whether the value is still right is watched by the kept call.
  libtorch::SavedTensor saved(libtorch::alias_with_own_counter(tensor));
  if (!saved.is_kept_by_hook()) return nullptr;
  return std::make_shared<HookedResult>(std::move(saved), is_private,
                                        Bytes(static_cast<std::int64_t>(tensor.nbytes())));
}

}  // namespace reprise::selecting
