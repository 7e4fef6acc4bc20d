// The order in which the inputs of a replay are restored. src/plan/simulate/online_restore.cpp has
// the same rules in arithmetic.
#include <algorithm>
#include <thread>
#include <utility>

#include "core/members.h"
#include "libtorch/base/leaving_errors.h"
#include "tape/own_time.h"
#include "tape/tape.h"

namespace reprise::tape {

// The most bytes at once while the producer's inputs and results are made.
std::int64_t Tape::bytes_to_make(const Producer& producer) {
  room_to_make_.begin();
  for (const Producer::Input& input : producer.inputs) {
    if (input.value != nullptr && input.value->producer != nullptr) {
      room_to_make_.add_input(input.value, input.value->beside, input.value->size);
    } else if (input.use != Producer::Use::kRead) {
      room_to_make_.add_result(input.bytes);
    }
  }
  for (const Producer::Output& output : producer.outputs) {
    if (output.slot < 0) room_to_make_.add_result(output.value->size);
  }
  return room_to_make_.bytes();
}

// The missing input to restore first: that beside which most bytes lie, since the others are not
// there yet.
Value* Tape::first_missing(const Producer& producer) {
  Value* missing = nullptr;
  for (const Producer::Input& input : producer.inputs) {
    if (input.value == nullptr || input.value->has_bytes()) continue;
    if (missing == nullptr || plan::is_made_before(*input.value, *missing)) missing = input.value;
  }
  return missing;
}

// Whether the value is made of `other`, as far as a short walk tells.
bool Tape::is_made_of(const Value& value, const Value& other) {
  met_.assign(1, value.producer);
  value.producer->met = ++walks_;
  for (std::size_t i = 0; i < met_.size() && i < plan::kMostWalked; ++i) {
    for (const Producer::Input& input : met_[i]->inputs) {
      if (input.value == &other) return true;
      if (input.value == nullptr || input.value->depth <= other.depth) continue;
      Producer* const maker = input.value->producer;
      if (maker == nullptr || std::exchange(maker->met, walks_) == walks_) continue;
      met_.push_back(maker);
    }
  }
  return false;
}

// The next input to restore and pin, null where all are pinned: the first, or what that is made of.
// Of x + f(x), x comes first: it would be made twice, and f(x) would wait for it.
Value* Tape::next_to_pin(const Producer& producer, std::span<Value* const> pinned) {
  Value* first = nullptr;
  const Members<Value*> is_pinned(pinned);
  const auto is_candidate = [&](Value* value) {
    return value != nullptr && value->producer != nullptr && !is_pinned.has(value);
  };
  for (const Producer::Input& input : producer.inputs) {
    if (!is_candidate(input.value)) continue;
    if (first == nullptr || plan::is_made_before(*input.value, *first)) first = input.value;
  }
  Value* next = first;
  for (const Producer::Input& input : producer.inputs) {
    if (!is_candidate(input.value) || input.value->depth >= next->depth) continue;
    if (is_made_of(*first, *input.value)) next = input.value;
  }
  return next;
}

// Two orders are tried. The careful one pins each input in its turn, so that replays of the others
// cannot drop it: of a chain of x + f(x), one block is live at a time. But an input that is pinned
// early takes room; where that fails, inputs that are there may be dropped until the reader runs.
void Tape::restore(Value& target) {
  if (target.has_bytes()) return;
  const OwnTime own;
  // To make room for a replay.
  if (tries_again()) return restore(target, /*is_careful=*/true);
  trying_ = std::this_thread::get_id();
  const std::uint64_t thrown = NoRoom::thrown();
  try {
    restore(target, /*is_careful=*/true);
    trying_ = {};
    return;
  } catch (const NoRoom&) {
    trying_ = {};
  } catch (...) {
    trying_ = {};
    if (NoRoom::thrown() == thrown || !libtorch::is_translated_budget_error()) throw;
  }
  restore(target, /*is_careful=*/false);
}

}  // namespace reprise::tape
