#include "tape/weighing.h"

#include <ATen/core/grad_mode.h>
#include <reprise/error.h>

#include <algorithm>
#include <limits>
#include <mutex>
#include <sstream>
#include <string>
#include <utility>

#include "libtorch/autograd/engine.h"
#include "libtorch/memory/limited_work.h"
#include "libtorch/memory/managed_memory.h"
#include "libtorch/memory/memory_limit.h"
#include "tape/begun_call.h"
#include "tape/recorder.h"
#include "tape/tape.h"

namespace reprise::tape {

using libtorch::HeldMemory;
using libtorch::ManagedMemory;

float Weighing::weight_of(const ValueWeights::Call& call) const {
  constexpr double kLeast = 1e-30, kMost = 1e30;
  const double weight = step_->weight(call);
  if (weight >= kLeast && weight <= kMost) return static_cast<float>(weight);
  std::ostringstream text;
  text << "BudgetOptions::weights: the weight of call " << call.number << " of the step, "
       << call.name << ", is " << weight << "; it must be from 1e-30 to 1e30, and is 1 where "
       << "nothing is known";
  throw UsageError(text.str());
}

void Weighing::watch(const at::Tensor& tensor, Value& value, const ValueWeights::Call& call) {
  value.watch = static_cast<std::uint32_t>(watched_.size());
  watched_.push_back({&value, libtorch::TensorForm::of(tensor), call, {}});
  const std::lock_guard<std::mutex> lock(mutex_);
  waiting_.push_back({.thread = std::this_thread::get_id(),
                      .tensor = WeakTensor(tensor.getIntrusivePtr()),
                      .watch = value.watch});
}

void Weighing::hold(std::uint32_t watch, const c10::Storage& storage) {
  Watched& watched = watched_[watch];
  // The node that made the value reads it after its gradient was looked at.
  if (watched.held || watched.looked_in == libtorch::current_backward_id()) return;
  const std::lock_guard<std::mutex> lock(mutex_);
  if (watch >= has_hook_.size() || !has_hook_[watch]) return;
  watched.held = storage;
  held_.push_back(watch);
}

bool Weighing::let_go_one() {
  std::erase_if(held_, [this](std::uint32_t watch) { return !watched_[watch].held; });
  // A replay reads what it has pinned without a reference to the storage. After a write in place
  // the storage has another value than the one that is watched.
  const auto is_spare = [this](std::uint32_t watch) {
    const c10::Storage& held = watched_[watch].held;
    const Cell* const cell = Tape::cell_of(held);
    return held.use_count() == 1 && cell != nullptr && cell->value->has_bytes() &&
           cell->value->pins == 0;
  };
  const auto spare = std::ranges::find_if(held_, is_spare);
  if (spare == held_.end()) return false;
  const c10::Storage freed = std::move(watched_[*spare].held);
  held_.erase(spare);
  return true;
}

void Weighing::let_go() noexcept {
  std::vector<c10::Storage> held;  // freed without the lock
  const std::lock_guard<libtorch::LimitMutex> lock(libtorch::limit_mutex());
  for (Watched& each : watched_) {
    if (each.held) held.push_back(std::move(each.held));
  }
}

// A view's history may be made anew when it is asked for, by operators: what a view shows is
// watched by the tensor that the operator made.
void Weighing::attach() {
  std::vector<Waiting> mine;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (waiting_.empty()) return;
    const auto others = std::ranges::partition(
        waiting_, [](const Waiting& each) { return each.thread != std::this_thread::get_id(); });
    mine.assign(std::make_move_iterator(others.begin()), std::make_move_iterator(others.end()));
    waiting_.erase(others.begin(), others.end());
  }
  for (const Waiting& each : mine) {
    auto alive = each.tensor.lock();
    if (!alive) continue;
    const at::Tensor tensor(std::move(alive));
    if (tensor.is_view() || !tensor.requires_grad() || tensor.is_leaf()) continue;
    tensor.register_hook([step = weak_from_this(), watch = each.watch](const at::Tensor& gradient) {
      const std::shared_ptr<Weighing> weighing = step.lock();
      if (weighing != nullptr) weighing->look(watch, gradient);
    });
    const std::lock_guard<std::mutex> lock(mutex_);
    if (has_hook_.size() <= each.watch) has_hook_.resize(each.watch + std::size_t{1});
    has_hook_[each.watch] = true;
  }
}

void Weighing::look(std::uint32_t watch, const at::Tensor& gradient) {
  std::shared_ptr<ValueWeights::Step> step;
  ValueWeights::Call call;
  c10::Storage held;  // freed last, and without the lock
  // In this order: what the held memory is the last to have is freed under the lock.
  HeldMemory held_value, held_gradient;
  at::Tensor value;
  {
    const std::lock_guard<libtorch::LimitMutex> lock(libtorch::limit_mutex());
    Watched& watched = watched_[watch];
    watched.looked_in = libtorch::current_backward_id();
    held = std::move(watched.held);
    if (!gradient.defined()) return;
    if (step_ == nullptr || watched.value == nullptr) return;
    Cell* const cell = watched.value->cell;
    if (cell == nullptr || !watched.value->has_bytes() || !cell->tape.manages(gradient)) return;
    const libtorch::TensorForm& form = watched.form;
    if (!gradient.sizes().equals(form.sizes) || gradient.dtype() != form.dtype) return;
    const Cell* const of_gradient = Tape::cell_of(gradient);
    if (of_gradient != nullptr && !of_gradient->value->has_bytes()) return;
    const ManagedMemory::Reference reference(*cell);
    if (reference.is_too_late()) return;
    const c10::Storage storage(
        c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(&reference.storage()));
    held_gradient = HeldMemory(gradient);
    held_value = HeldMemory(storage, /*to_write=*/false);
    value = form.on(storage);
    call = watched.call;
    step = step_;
  }
  const libtorch::AccountedWork accounted;
  const libtorch::WithoutInterceptor unseen(recorder_);
  const at::NoGradGuard no_grad;
  step->gradient(call, value, gradient);
}

void Weighing::end(bool is_whole) noexcept {
  std::shared_ptr<ValueWeights::Step> step;
  {
    const std::lock_guard<libtorch::LimitMutex> lock(libtorch::limit_mutex());
    step = std::exchange(step_, nullptr);
  }
  let_go();
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    waiting_.clear();
  }
  if (step != nullptr) step->ended(is_whole);
}

// Whether the call's values may be anything but 1.
bool Recorder::weighs() const { return tape_.weighing() != nullptr && at::GradMode::is_enabled(); }

// Before the values are known to the index.
void Recorder::weigh(const libtorch::OperatorCall& call, const BegunCall& begun) {
  // The step has ended, and something that it started goes on.
  if (tape_.is_closed()) return;
  const auto is_large = [this](const Producer::Output& output) {
    return output.value->size >= options_.min_bytes.count;
  };
  const auto& outputs = begun.producer->outputs;
  if (std::ranges::none_of(outputs, is_large)) return;
  Weighing& weighing = *tape_.weighing();
  const ValueWeights::Call told = weighing.next_call(call.schema().name(), begun.key);
  const float weight = weighing.weight_of(told);
  const auto tensor_of = [&](const Producer::Output& output) -> at::Tensor {
    if (output.slot >= 0) {
      return std::ranges::find(begun.writes, output.slot, &BegunCall::Write::slot)->tensor;
    }
    const c10::IValue& result = call.results()[static_cast<std::size_t>(output.result)];
    return output.element < 0
               ? result.toTensor()
               : result.toListRef()[static_cast<std::size_t>(output.element)].toTensor();
  };
  for (const Producer::Output& output : outputs) {
    output.value->weight = weight;
    if (!is_large(output)) continue;
    const at::Tensor tensor = tensor_of(output);
    if (at::isFloatingType(tensor.scalar_type()) || tensor.is_complex()) {
      weighing.watch(tensor, *output.value, told);
    }
  }
}

}  // namespace reprise::tape
