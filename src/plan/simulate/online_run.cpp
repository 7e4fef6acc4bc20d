#include "plan/simulate/online_run.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <random>
#include <utility>

namespace reprise::plan {
namespace {

using Index = OnlineStep::Index;
using Do = OnlineStep::Do;
using Use = OnlineStep::Input::Use;

}  // namespace

OnlineRun::OnlineRun(const OnlineStep& step, const EvictionHeuristic& heuristic,
                     const Options& options)
    : step_(step),
      options_(options),
      neighbourhood_(heuristic.neighbourhood()),
      values_(step.values.size()),
      producers_(step.producers.size()),
      index_(heuristic,
             [this](const EvictionEntry& entry) { return neighbourhood(index_of(entry)); }) {
  std::map<std::uint64_t, double> factors;  // by form
  std::mt19937_64 random(options.seed);
  std::uniform_real_distribution<double> draw(-options.noise, options.noise);
  for (Index p = 0; p < producers_.size(); ++p) {
    const auto [factor, is_new] = factors.try_emplace(step.producers[p].form, 1);
    if (is_new) factor->second = std::exp(draw(random));
    const double mine = factor->second;
    producers_[p].again = mine * step.producers[p].again;
    for (const OnlineStep::Output& output : step.outputs_of(p)) {
      const OnlineStep::Value& noted = step.values[output.value];
      Value& value = values_[output.value];
      value.producer = p;
      value.bytes = noted.size;
      value.weight = noted.weight;
      value.is_packable = noted.packed_bytes > 0;
      value.own_cost = (value.is_packable ? 1 : mine) * noted.own_cost;
    }
  }
}

OnlineOutcome OnlineRun::run() {
  try {
    for (const OnlineStep::Event& event : step_.events) {
      carry_out(event);
      ++outcome_.event;
    }
    beside_ = step_.beside_at_end;
    make_room(0);
    for (const Index value : step_.held) {
      restore(value);
      pin(value);
    }
    outcome_.fits = true;
  } catch (const Refused&) {
  }
  return outcome_;
}

void OnlineRun::carry_out(OnlineStep::Event event) {
  const Index subject = event.subject;
  switch (event.what) {
    case Do::kBegin: {
      const OnlineStep::Call& call = step_.calls[subject];
      recorded_ = call.time;
      beside_ = call.beside;
      for (const Index value : step_.reads_of(subject)) {
        pin(value);
        index_.touch(values_[value], recorded_ + replayed_);
      }
      for (const Index value : step_.reads_of(subject)) restore(value);
      return;
    }
    case Do::kRun:
      beside_ = step_.calls[subject].beside;
      return make_room(step_.calls[subject].taken);
    case Do::kMake:
      return make(subject);
    case Do::kEnd:
      for (const Index value : step_.reads_of(subject)) unpin(value);
      return;
    case Do::kOverwrite:
    case Do::kDie:
      return detach(subject);
    case Do::kFix: {
      Value& value = values_[subject];
      // What is left of it is beside the values.
      if (value.has_bytes && !std::exchange(value.is_beside, false)) {
        tracked_ -= step_.values[subject].bytes;
        beside_ += step_.values[subject].bytes;
      }
      value.is_attached = false;
      value.has_bytes = true;
      if (value.is_in_index() && value.pins == 0) index_.remove(value);
      const Index producer = std::exchange(value.producer, kNone);
      if (producer != kNone && --producers_[producer].wanted == 0) {
        for (const OnlineStep::Input& input : step_.inputs_of(producer)) {
          if (input.value == kNone) continue;
          auto& readers = values_[input.value].readers;
          readers.erase(std::find(readers.begin(), readers.end(), producer));
          forget_if_unwanted(input.value);
        }
      }
      return;
    }
    case Do::kHold:
      restore(subject);
      return pin(subject);
    case Do::kRelease:
      if (values_[subject].pins != 0) unpin(subject);
      return;
  }
}

void OnlineRun::make(Index producer) {
  std::uint32_t depth = 0;
  room_to_make_.begin();
  for (const OnlineStep::Input& input : step_.inputs_of(producer)) {
    if (input.value != kNone && values_[input.value].producer != kNone) {
      const Value& value = values_[input.value];
      room_to_make_.add_input(&value, value.beside, step_.values[input.value].size);
    } else if (input.use != OnlineStep::Input::Use::kRead) {
      room_to_make_.add_result(input.bytes);
    }
    if (input.value == kNone) continue;
    values_[input.value].readers.push_back(producer);
    depth = std::max(depth, values_[input.value].depth);
  }
  for (const OnlineStep::Output& output : step_.outputs_of(producer)) {
    if (!output.is_written) room_to_make_.add_result(step_.values[output.value].size);
  }
  const std::int64_t bytes = room_to_make_.bytes();
  for (const OnlineStep::Output& output : step_.outputs_of(producer)) {
    Value& value = values_[output.value];
    value.depth = depth + 1;
    value.beside = bytes - step_.values[output.value].size;
    value.is_attached = value.has_bytes = true;
    ++living_;
    ++producers_[producer].wanted;
    value.is_beside = step_.values[output.value].size < step_.min_bytes;
    if (!value.is_beside) tracked_ += step_.values[output.value].bytes;
    index_.touch(value, recorded_ + replayed_);
    update_entry(output.value);
  }
}

void OnlineRun::make_room(std::int64_t bytes) {
  while (beside_ + tracked_ + bytes > options_.limit) {
    if (drop_one() || drop_bits()) continue;
    throw Refused{};
  }
  outcome_.peak = std::max(outcome_.peak, beside_ + tracked_ + bytes);
}

bool OnlineRun::drop_one() {
  EvictionEntry* const entry = index_.choose(recorded_ + replayed_);
  if (entry == nullptr) return false;
  drop(index_of(*entry));
  return true;
}

bool OnlineRun::drop_bits() {
  if (packed_.empty()) return false;
  auto found = std::ranges::find_if(packed_, [this](Index v) { return values_[v].has_bytes; });
  if (found == packed_.end()) found = packed_.begin();
  const Index value = *found;
  packed_.erase(found);
  values_[value].has_bits = false;
  tracked_ -= step_.values[value].packed_bytes;
  if (!values_[value].has_bytes) note_dropped(value);
  return true;
}

void OnlineRun::drop(Index index) {
  Value& value = values_[index];
  const OnlineStep::Value& noted = step_.values[index];
  ++outcome_.drops;
  const double to_make = producers_[value.producer].again + upstream(index);
  take_bytes(index);
  if (value.has_bits) return;
  if (value.is_packable && noted.pack_seconds < to_make) {
    value.has_bits = true;
    packed_.push_back(index);
    tracked_ += noted.packed_bytes;
    return;
  }
  if (value.is_packable) value.own_cost = producers_[value.producer].again;
  value.is_packable = false;
  value.is_parked = noted.store_seconds >= 0 && noted.store_seconds < to_make;
  if (!value.is_parked) note_dropped(index);
}

void OnlineRun::take_bytes(Index index) {
  Value& value = values_[index];
  if (!value.has_bytes) return;
  if (value.is_in_index() && value.pins == 0) index_.remove(value);
  value.has_bytes = false;
  if (!std::exchange(value.is_beside, false)) tracked_ -= step_.values[index].bytes;
}

void OnlineRun::give_bytes(Index index) {
  Value& value = values_[index];
  value.is_parked = false;
  value.has_bytes = true;
  tracked_ += step_.values[index].bytes;
  note_restored(index);
  update_entry(index);
}

bool OnlineRun::unpack(Index index) {
  Value& value = values_[index];
  if (!value.has_bits) return false;
  // To make room for the value its bits must not go.
  packed_.erase(std::ranges::find(packed_, index));
  try {
    make_room(step_.values[index].bytes);
  } catch (const Refused&) {
    value.has_bits = false;
    tracked_ -= step_.values[index].packed_bytes;
    note_dropped(index);
    return false;
  }
  packed_.push_back(index);
  give_bytes(index);
  return true;
}

bool OnlineRun::unpark(Index index) {
  if (!values_[index].is_parked) return false;
  make_room(step_.values[index].bytes);
  replayed_ += step_.values[index].store_seconds / 2;
  give_bytes(index);
  return true;
}

bool OnlineRun::is_of_use(Index index) const {
  const Value& value = values_[index];
  if (value.is_attached || value.producer == kNone) return true;
  return std::ranges::any_of(value.readers, [this](Index reader) {
    return std::ranges::any_of(step_.outputs_of(reader), [&](const OnlineStep::Output& output) {
      const Value& made = values_[output.value];
      return made.producer == reader && is_lost(output.value);
    });
  });
}

void OnlineRun::spare(Index index) {
  if (!values_[index].has_bytes) return;
  note_dropped(index);
  values_[index].has_bytes = false;
  tracked_ -= step_.values[index].bytes;
}

// Its kernel has no more than the room that it had at first, and copies of what it writes to.
void OnlineRun::replay(Index producer) {
  const OnlineStep::Call& call = step_.calls[step_.producers[producer].call];
  std::int64_t bytes = call.taken;
  for (const OnlineStep::Input& input : step_.inputs_of(producer)) {
    if (input.use == Use::kRead || input.bytes == 0) continue;
    Value* const value = input.value != kNone ? &values_[input.value] : nullptr;
    if (input.use == Use::kUpdate && value != nullptr && !value->is_attached &&
        value->producer != kNone && value->readers.size() == 1) {
      note_dropped(input.value);
      value->has_bytes = false;
      tracked_ -= step_.values[input.value].bytes;
      // They are in use still.
      bytes += step_.values[input.value].bytes;
    } else {
      bytes += input.bytes;
    }
  }
  make_room(bytes);
  ++outcome_.replays;
  replayed_ += producers_[producer].again;
  for (const OnlineStep::Output& output : step_.outputs_of(producer)) {
    if (values_[output.value].producer != producer || values_[output.value].has_bytes) continue;
    give_bytes(output.value);
  }
}

void OnlineRun::pin(Index index) {
  Value& value = values_[index];
  if (++value.pins == 1 && value.is_in_index()) index_.pin(value);
}

void OnlineRun::unpin(Index index) {
  Value& value = values_[index];
  if (--value.pins != 0) return;
  if (value.is_in_index() && may_drop(index)) {
    index_.unpin(value);
  } else {
    update_entry(index);
  }
  forget_if_unwanted(index);
}

bool OnlineRun::may_drop(Index index) const {
  const Value& value = values_[index];
  return value.producer != kNone && step_.values[index].size >= step_.min_bytes && value.has_bytes;
}

void OnlineRun::update_entry(Index index) {
  Value& value = values_[index];
  if (value.pins != 0 || may_drop(index) == value.is_in_index()) return;
  if (value.is_in_index()) {
    index_.remove(value);
  } else {
    index_.insert(value, recorded_ + replayed_);
  }
}

void OnlineRun::detach(Index index) {
  Value& value = values_[index];
  const bool had = value.has_bytes;
  value.is_attached = false;
  if (value.producer == kNone) return;  // beside the values already
  take_bytes(index);
  if (had && !value.readers.empty()) note_dropped(index);
  forget_if_unwanted(index);
}

void OnlineRun::forget_if_unwanted(Index first) {
  std::vector<Index> unwanted{first};
  while (!unwanted.empty()) {
    const Index index = unwanted.back();
    unwanted.pop_back();
    Value& value = values_[index];
    if (value.is_attached || value.pins != 0 || !value.readers.empty()) continue;
    const Index producer = std::exchange(value.producer, kNone);
    if (producer == kNone) continue;
    --living_;
    take_bytes(index);
    if (value.has_bits) {
      value.has_bits = false;
      packed_.erase(std::ranges::find(packed_, index));
      tracked_ -= step_.values[index].packed_bytes;
    }
    if (value.node != CostClasses::kNone) {
      classes_.remove(std::exchange(value.node, CostClasses::kNone), producers_[producer].again);
    }
    if (--producers_[producer].wanted != 0) continue;
    for (const OnlineStep::Input& input : step_.inputs_of(producer)) {
      if (input.value == kNone) continue;
      auto& readers = values_[input.value].readers;
      const auto place = std::find(readers.rbegin(), readers.rend(), producer);
      if (place == readers.rend()) continue;
      *place = readers.back();
      readers.pop_back();
      unwanted.push_back(input.value);
    }
  }
}

}  // namespace reprise::plan
