#include "region/recomputation.h"

#include <utility>

#include "core/recycling_allocator.h"
#include "libtorch/autograd/engine.h"
#include "libtorch/memory/kept_memory.h"
#include "libtorch/operators/operator_effects.h"
#include "region/foreign.h"

namespace reprise::region {

// Stands in for one saved tensor of the recomputed graph. That graph is walked only by a backward
// that the function itself runs, which must see the tensor as usual.
class Recomputation::Collector final : public libtorch::SavedVariableHooks,
                                       public Recycled<Collector> {
 public:
  // Packing follows at once, within the run; afterwards the graph may outlive it.
  explicit Collector(Recomputation& run) : run_(&run) {}

  void call_pack_hook(const at::Tensor& tensor) override {
    version_ = libtorch::SavedVersion(tensor);
    // An argument's history lies outside and cannot lead back to here: it needs no copy.
    tensor_ = run_->is_argument(tensor) ? tensor : libtorch::without_history(tensor);
    run_->collect(tensor_);
  }

  at::Tensor call_unpack_hook() override {
    version_.check(tensor_);
    return tensor_;
  }

 private:
  Recomputation* run_;
  at::Tensor tensor_;
  libtorch::SavedVersion version_;
};

void Recomputation::start(std::size_t count, std::size_t last_wanted, AtLastSlot at_last,
                          bool hash) {
  slots_.resize(count);
  last_wanted_ = last_wanted;
  left_to_take_ = 0;
  next_ = 0;
  at_last_ = at_last;
  hash_ = hash;
  complete_.store(false, std::memory_order_relaxed);
  left_ = false;
  on_save_ = nullptr;
  backward_ = libtorch::current_backward_id();
  arguments_.clear();
}

void Recomputation::note_arguments(at::TensorList arguments) {
  for (const at::Tensor& argument : arguments) {
    if (!argument.defined()) continue;
    // Leaves are left out: their data can be exchanged (set_data) without a trace.
    if (const auto& node = argument.grad_fn()) {
      arguments_.emplace_back(argument.unsafeGetTensorImpl(), node.get());
    }
  }
}

bool Recomputation::is_argument(const at::Tensor& tensor) const {
  for (const auto& [argument, node] : arguments_) {
    if (argument == tensor.unsafeGetTensorImpl()) return node == tensor.grad_fn().get();
  }
  return false;
}

void Recomputation::want(std::size_t index) {
  slots_[index].wanted = true;
  ++left_to_take_;
}

std::unique_ptr<libtorch::SavedVariableHooks> Recomputation::make_hooks() {
  if (complete_ && at_last_ != AtLastSlot::kGoOnCounting) return nullptr;
  return std::make_unique<Collector>(*this);
}

void Recomputation::collect(const at::Tensor& tensor) {
  std::lock_guard<std::mutex> lock(mutex_);
  const std::size_t index = next_++;
  if (on_save_ != nullptr) (*on_save_)(scope_, index);
  if (index >= slots_.size() || complete_) return;
  if (Slot& slot = slots_[index]; slot.wanted) {
    slot.tensor = tensor;
    slot.version = libtorch::SavedVersion(tensor);
    slot.filled = true;
    if (hash_) slot.hash = hash_values(tensor);
  }
  if (index != last_wanted_) return;
  complete_.store(true, std::memory_order_release);
  // Inside a backward that the function runs, the exception would have to pass through the engine,
  // which marks that backward as failed: it is let finish instead. An operator that writes may have
  // been given a tensor to save that it has not written yet: leaving it would hand that out.
  if (may_be_left() && libtorch::current_backward_id() == backward_ && !libtorch::is_writing()) {
    left_ = true;
    if (at_last_ == AtLastSlot::kLeaveAfterOperator && foreign().leave_afterwards()) return;
    if (foreign().leave != nullptr) foreign().leave();
    throw StopRecomputation();
  }
}

const Recomputation::Slot* Recomputation::saved(std::size_t index) const {
  return slots_[index].filled ? &slots_[index] : nullptr;
}

bool Recomputation::hand_out(std::size_t index, at::Tensor& tensor, bool keep) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (index >= slots_.size() || !slots_[index].filled) return false;
  Slot& slot = slots_[index];
  slot.version.check(slot.tensor);
  tensor = slot.tensor;
  if (keep) return true;
  slot.tensor.reset();
  slot.filled = false;
  --left_to_take_;
  return true;
}

bool Recomputation::take(std::size_t index, at::Tensor& tensor) {
  return hand_out(index, tensor, false);
}

bool Recomputation::look(std::size_t index, at::Tensor& tensor) {
  return hand_out(index, tensor, true);
}

void Recomputation::drop(std::size_t index) {
  // Freed after the lock.
  at::Tensor dropped;
  std::lock_guard<std::mutex> lock(mutex_);
  if (index >= slots_.size() || !slots_[index].filled) return;
  dropped = std::move(slots_[index].tensor);
  slots_[index].filled = false;
  --left_to_take_;
}

void Recomputation::clear() {
  // Freed after the lock: a tensor may be the last owner of a graph with regions of its own.
  decltype(slots_) dropped;
  std::lock_guard<std::mutex> lock(mutex_);
  dropped.swap(slots_);
  left_to_take_ = 0;
  done.store(false, std::memory_order_release);
}

void Recomputation::outlast_undo() {
  std::lock_guard<std::mutex> lock(mutex_);
  for (Slot& slot : slots_) {
    if (!slot.filled || !undo_.takes_back(slot.tensor)) continue;
    // A change since then is autograd's error, as ever.
    if (!slot.version.is_current(slot.tensor)) continue;
    slot.tensor = libtorch::with_own_memory(slot.tensor);
    slot.version = libtorch::SavedVersion(slot.tensor);
  }
}

bool Recomputation::exhausted() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return left_to_take_ == 0;
}

}  // namespace reprise::region
