// Dropping: which value goes, and how its bytes go.
#include <algorithm>
#include <utility>

#include "tape/observation.h"
#include "tape/tape.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace reprise::tape {

using libtorch::ManagedMemory;
using plan::CostClasses;
using plan::kMostWalked;
using plan::Neighbourhood;

double Tape::neighbourhood(const plan::EvictionEntry& entry) {
  const auto& value = static_cast<const Value&>(entry);
  if (value.kind_bit != 0) return 0;
  double around = 0;
  switch (neighbourhood_) {
    case Neighbourhood::kNone:
      return 0;
    case Neighbourhood::kClasses:
      around = classes_around(value);
      break;
    case Neighbourhood::kUpstream:
      around = walk_upstream(value);
      break;
    case Neighbourhood::kWalk:
      around = walk_upstream(value) + walk_downstream(value);
      break;
  }
  if (parking_ == nullptr) return around;
  return std::clamp(parking_->seconds(value.size) - value.own_cost, 0.0, around);
}

double Tape::seconds_to_make(const Value& value) {
  return value.producer->again + walk_upstream(value);
}

// Seconds of the groups of dropped values that touch the value.
double Tape::classes_around(const Value& value) {
  seen_.clear();
  double cost = 0;
  const auto add = [&](const Value* other) {
    if (other == nullptr || other->node == CostClasses::kNone) return;
    const CostClasses::Node root = classes_.find(other->node);
    if (std::ranges::count(seen_, root) != 0) return;
    seen_.push_back(root);
    cost += classes_.cost(root);
  };
  for (const Producer::Input& input : value.producer->inputs) add(input.value);
  for (const Producer* reader : value.readers) {
    for (const Producer::Output& output : reader->outputs) add(output.value);
  }
  return cost;
}

// Of the producers that would have to run before the value's own.
double Tape::walk_upstream(const Value& value) {
  double cost = 0;
  met_.assign(1, value.producer);
  value.producer->met = ++walks_;
  for (std::size_t i = 0; i < met_.size() && i < kMostWalked; ++i) {
    for (const Producer::Input& input : met_[i]->inputs) {
      if (input.value == nullptr || input.value->has_bytes()) continue;
      if (input.value->parked != nullptr) {
        cost += parking_->seconds(input.value->size);
        continue;
      }
      if (input.value->packed != nullptr) {
        cost += costs_.seconds_to_pack(input.value->size);
        continue;
      }
      Producer* const maker = input.value->producer;
      if (maker == nullptr || std::exchange(maker->met, walks_) == walks_) continue;
      cost += maker->again;
      met_.push_back(maker);
    }
  }
  return cost;
}

// Of the producers of dropped values that read it, or read what they make.
double Tape::walk_downstream(const Value& value) {
  double cost = 0;
  ++walks_;
  met_.clear();
  const auto visit = [&](const Value& from) {
    for (Producer* reader : from.readers) {
      const auto is_gone = [](const Producer::Output& output) {
        return output.value != nullptr && output.value->is_lost();
      };
      if (std::ranges::none_of(reader->outputs, is_gone)) continue;
      if (std::exchange(reader->met, walks_) == walks_) continue;
      cost += reader->again;
      met_.push_back(reader);
    }
  };
  visit(value);
  for (std::size_t i = 0; i < met_.size() && i < kMostWalked; ++i) {
    for (const Producer::Output& output : met_[i]->outputs) {
      if (output.value != nullptr && !output.value->has_bytes()) visit(*output.value);
    }
  }
  return cost;
}

void Tape::note_dropped(Value& value) {
  if (value.packed != nullptr || neighbourhood_ != Neighbourhood::kClasses ||
      value.producer == nullptr || value.node != CostClasses::kNone)
    return;
  value.node = classes_.add(value.producer->again);
  const auto join = [&](const Value* other) {
    if (other != nullptr && other->node != CostClasses::kNone)
      classes_.merge(value.node, other->node);
  };
  for (const Producer::Input& input : value.producer->inputs) join(input.value);
  for (const Producer* reader : value.readers) {
    for (const Producer::Output& output : reader->outputs) join(output.value);
  }
}

void Tape::note_restored(Value& value) {
  if (value.node == CostClasses::kNone) return;
  classes_.remove(value.node, value.producer != nullptr ? value.producer->again : 0);
  value.node = CostClasses::kNone;
}

// Of an accelerator's memory, a copy on the host.
std::uint64_t Tape::hash_of(const void* data, std::int64_t size) const {
  if (side_ != nullptr) {
    const auto host = side_->device().to_host(data, size);
    return XXH3_64bits(host.data(), host.size());
  }
  return XXH3_64bits(data, static_cast<std::size_t>(size));
}

void Tape::drop(Value& value) {
  for (CallMeter* meter : meters) meter->before_drop();
  leave_index(value);
  // A store copies on the current stream, which need not be the one that makes the value.
  const bool parks = parking_ != nullptr && value.absence != Absence::kForgotten &&
                     (side_ == nullptr || side_->is_on_one_stream()) &&
                     parking_->seconds(value.size) < seconds_to_make(value);
  if (options_.verify) {
    const void* const data =
        value.cell != nullptr ? ManagedMemory::memory_of(*value.cell).get() : value.detached.data();
    value.hash = hash_of(data, value.defined);
  }
  // Freed where it ends, unless it is parked.
  c10::DataPtr memory =
      value.cell != nullptr
          ? ManagedMemory::hollow(*value.cell->storage, *value.cell, gone_text().c_str())
          : value.detached.set_data_ptr(c10::DataPtr(nullptr, c10::kCPU));
  value.detached = {};
  if (pack(value, memory)) {
    ++report.packed;
    report.packed_bytes += Bytes(value.size);
    if (options_.observer) tell_dropped(*options_.observer, *this, value);
    return;
  }
  // Gone, where the bits found no room.
  if (parks && memory) {
    value.parked = parking_->park(std::exchange(memory, {}), value.size, report.transfer_time);
  }
  if (value.parked != nullptr) {
    ++report.parked;
    report.parked_bytes += Bytes(value.size);
    if (options_.observer) tell_dropped(*options_.observer, *this, value);
    return;
  }
  ++report.dropped;
  report.dropped_bytes += Bytes(value.size);
  note_dropped(value);
  memory.clear();
  if (options_.observer) tell_dropped(*options_.observer, *this, value);
}

bool Tape::drop_one() {
  if (!is_index_filled_) fill_index();
  if (weighing_ != nullptr && weighing_->let_go_one()) return true;
  if (Value* const value = spare_value()) {
    drop(*value);
    return true;
  }
  auto* const entry = index_.choose(now());
  if (entry == nullptr) return false;
  drop(static_cast<Value&>(*entry));
  return true;
}

void Tape::drop_all() {
  if (!is_index_filled_) fill_index();
  std::vector<Value*> all;
  for (Cell* cell = cells_; cell != nullptr; cell = cell->next) {
    if (cell->value->is_in_index() && !cell->value->is_pinned()) all.push_back(cell->value);
  }
  for (Value* value : all) drop(*value);
}

}  // namespace reprise::tape
