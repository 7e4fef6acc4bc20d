#include "region/recomputation.h"

#include <utility>

#include "libtorch/engine.h"

namespace reprise::region {

// Stands in for one saved tensor of the recomputed graph. That graph is walked only by a backward that
// the function itself runs, which must see the tensor as usual.
class Recomputation::Collector final : public libtorch::SavedVariableHooks {
 public:
  explicit Collector(std::shared_ptr<Recomputation> run) : run_(std::move(run)) {}

  void call_pack_hook(const at::Tensor& tensor) override {
    version_ = libtorch::SavedVersion(tensor);
    origin_ = libtorch::WeakNode(tensor);
    tensor_ = libtorch::without_history(tensor);
    run_->collect(tensor_);
  }

  at::Tensor call_unpack_hook() override {
    version_.check(tensor_, origin_);
    return tensor_;
  }

 private:
  std::shared_ptr<Recomputation> run_;
  at::Tensor tensor_;
  libtorch::SavedVersion version_;
  libtorch::WeakNode origin_;
};

void Recomputation::start(std::vector<bool> wanted, AtLastSlot at_last, bool hash) {
  slots_.assign(wanted.size(), {});
  last_wanted_ = 0;
  left_to_take_ = 0;
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    if (!wanted[i]) continue;
    slots_[i].wanted = true;
    last_wanted_ = i;
    ++left_to_take_;
  }
  next_ = 0;
  at_last_ = at_last;
  hash_ = hash;
  complete_ = false;
  left_ = false;
  backward_ = libtorch::current_backward_id();
}

std::unique_ptr<libtorch::SavedVariableHooks> Recomputation::make_hooks() {
  if (complete_ && at_last_ != AtLastSlot::kGoOnCounting) return nullptr;
  return std::make_unique<Collector>(shared_from_this());
}

void Recomputation::collect(const at::Tensor& tensor) {
  std::lock_guard<std::mutex> lock(mutex_);
  const std::size_t index = next_++;
  if (index >= slots_.size() || complete_) return;
  if (Slot& slot = slots_[index]; slot.wanted) {
    slot.tensor = tensor;
    slot.version = libtorch::SavedVersion(tensor);
    slot.filled = true;
    if (hash_) slot.hash = hash_values(tensor);
  }
  if (index != last_wanted_) return;
  complete_ = true;
  // Inside a backward that the function runs, the exception would have to pass through the engine, which
  // marks that backward as failed: it is let finish instead.
  if (at_last_ == AtLastSlot::kLeave && libtorch::current_backward_id() == backward_) {
    left_ = true;
    throw StopRecomputation();
  }
}

std::vector<Recomputation::Saved> Recomputation::saved() const {
  std::lock_guard<std::mutex> lock(mutex_);
  std::vector<Saved> saved(slots_.size());
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    if (slots_[i].filled) saved[i] = {true, Metadata::of(slots_[i].tensor), slots_[i].hash};
  }
  return saved;
}

bool Recomputation::take(std::size_t index, at::Tensor& tensor) {
  std::lock_guard<std::mutex> lock(mutex_);
  Slot& slot = slots_[index];
  if (!slot.filled) return false;
  slot.version.check(slot.tensor);
  tensor = std::move(slot.tensor);
  slot.filled = false;
  --left_to_take_;
  return true;
}

bool Recomputation::exhausted() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return left_to_take_ == 0;
}

}  // namespace reprise::region
