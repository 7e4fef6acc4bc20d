// What the end of a step would bring back, worked out before anything is.
#include <reprise/error.h>

#include <algorithm>
#include <mutex>
#include <string>
#include <unordered_map>

#include "libtorch/memory/counting_allocator.h"
#include "libtorch/memory/memory_limit.h"
#include "tape/session.h"
#include "tape/tape.h"
#include "tape/weighing.h"

namespace reprise::tape {
namespace {

// restore() of one value after the other, with room for all, and without the operators.
class Rehearsal {
 public:
  // False where it takes too long.
  bool restore(Value& target) {
    stack_.assign(1, &target);
    while (!stack_.empty()) {
      if (++turns_ > kMostTurns) return false;
      Value& value = *stack_.back();
      if (has(value)) {
        stack_.pop_back();
      } else if (value.packed != nullptr || value.parked != nullptr) {
        make(value);
      } else if (value.producer == nullptr) {
        stack_.pop_back();  // gone for good
      } else if (Value* const missing = first_missing(*value.producer)) {
        stack_.push_back(missing);
      } else {
        run(*value.producer);
      }
    }
    return true;
  }
  // Above what is live now, at the worst moment.
  std::int64_t most() const { return most_; }

 private:
  static constexpr int kMostTurns = 1 << 20;

  bool has(const Value& value) const {
    const auto known = has_.find(&value);
    return known != has_.end() ? known->second : value.has_bytes();
  }
  void make(Value& value) {
    has_[&value] = true;
    level_ += value.size;
    most_ = std::max(most_, level_);
  }
  Value* first_missing(const Producer& producer) const {
    Value* missing = nullptr;
    for (const Producer::Input& input : producer.inputs) {
      if (input.value == nullptr || has(*input.value)) continue;
      if (input.value->producer == nullptr) continue;
      if (missing == nullptr || plan::is_made_before(*input.value, *missing)) missing = input.value;
    }
    return missing;
  }
  void run(Producer& producer) {
    // What it writes to is a copy; what a slot holds afterwards is a result.
    std::int64_t beside = 0;
    for (const Producer::Input& input : producer.inputs) {
      if (input.use != Producer::Use::kRead) beside += input.bytes;
    }
    most_ = std::max(most_, level_ + beside);
    for (const Producer::Output& output : producer.outputs) {
      if (output.value != nullptr && !has(*output.value)) make(*output.value);
    }
    for (const Producer::Input& input : producer.inputs) {
      Value* const value = input.value;
      if (value == nullptr || value->cell != nullptr || value->producer == nullptr) continue;
      if (!has(*value) || is_of_use(*value)) continue;
      has_[value] = false;
      level_ -= value->size;
    }
  }
  bool is_of_use(const Value& value) const {
    return std::ranges::any_of(value.readers, [this](const Producer* reader) {
      return std::ranges::any_of(reader->outputs, [this](const Producer::Output& output) {
        return output.value != nullptr && !has(*output.value) && output.value->packed == nullptr;
      });
    });
  }

  std::unordered_map<const Value*, bool> has_;
  std::vector<Value*> stack_;
  std::int64_t level_ = 0, most_ = 0;
  int turns_ = 0;
};

}  // namespace

FinishNeeds Tape::finish_needs() {
  FinishNeeds needs;
  Rehearsal rehearsal;
  bool is_known = true;
  for (Cell* cell = cells_; cell != nullptr; cell = cell->next) {
    Value& value = *cell->value;
    if (value.has_bytes() || is_gone(*cell)) continue;
    ++needs.tensors;
    needs.bytes += value.size;
    is_known = is_known && rehearsal.restore(value);
  }
  if (needs.tensors == 0) return needs;
  needs.most = is_known ? rehearsal.most() : needs.bytes;
  needs.droppable = packed_bytes_;
  visit_detached([&](const Value& value) {
    if (value.producer != nullptr) needs.droppable += value.size + value.slack;
  });
  return needs;
}

// Refuses at once where what has to be live at the end does not fit.
void Session::bring_back() {
  Tape& tape = recorder_->tape();
  // Storages that are only held for a look at a gradient need not be restored.
  if (Weighing* const weighing = tape.weighing()) weighing->let_go();
  std::string refusal;
  {
    const std::lock_guard<libtorch::LimitMutex> lock(libtorch::limit_mutex());
    const FinishNeeds needs = tape.finish_needs();
    const Bytes live(budget_->taken());
    if (needs.tensors > 0) refusal = text_of_finish(needs, budget_->limit, live);
    const std::int64_t arriving = budget_->parking ? budget_->parking->waiting() : 0;
    const std::int64_t at_least = live.count - arriving - needs.droppable + needs.bytes;
    // Other steps may drop some of theirs.
    if (needs.tensors > 0 && at_least > budget_->limit.count && is_alone_on(budget_->device()) &&
        budget_->options.on_exceeded == OnExceeded::kThrow) {
      throw BudgetError(refusal);
    }
  }
  try {
    close(/*may_throw=*/true);
  } catch (const BudgetError& error) {
    throw BudgetError(refusal + ". The first that does not fit: " + error.what());
  }
}

void Session::warn_of_idle_device() {
  const std::lock_guard<libtorch::LimitMutex> lock(libtorch::limit_mutex());
  const StepReport& report = budget_->last;
  if (!budget_->accelerator || report.operators == 0 || report.peak.count != 0) return;
  if (std::exchange(budget_->warned_of_idle_device, true)) return;
  TORCH_WARN("memory budget of ", to_string(budget_->limit), ": no bytes of ",
             budget_->device().str(), " were live in a step of ", report.operators,
             " operators, so that the budget binds nothing. Give it the device of the tensors "
             "(BudgetOptions::device; in Python device=)");
}

}  // namespace reprise::tape
