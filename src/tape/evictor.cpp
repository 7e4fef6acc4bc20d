// Dropping: which value goes, and how its bytes go.
#include <algorithm>
#include <utility>

#include "tape/tape.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace reprise::tape {

using libtorch::ManagedMemory;
using plan::CostClasses;

// Seconds of the groups of dropped values that touch the entry's value.
double Tape::neighbourhood(const plan::EvictionEntry& entry) {
  const auto& value = static_cast<const Value&>(entry);
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

void Tape::note_dropped(Value& value) {
  if (!counts_classes_ || value.producer == nullptr || value.node != CostClasses::kNone) return;
  value.node = classes_.add(value.producer->seconds);
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
  classes_.remove(value.node, value.producer != nullptr ? value.producer->seconds : 0);
  value.node = CostClasses::kNone;
}

std::uint64_t Tape::hash_of(const Value& value) {
  const void* const data =
      value.cell != nullptr ? ManagedMemory::memory_of(*value.cell).get() : value.detached.data();
  return XXH3_64bits(data, static_cast<std::size_t>(value.size));
}

void Tape::drop(Value& value) {
  leave_index(value);
  if (options_.verify) value.hash = hash_of(value);
  ++report.dropped;
  report.dropped_bytes += Bytes(value.size);
  note_dropped(value);
  if (value.cell == nullptr) {
    value.detached = {};
  } else {
    // Freed here.
    ManagedMemory::hollow(*value.cell->storage, *value.cell, kGoneText);
  }
}

bool Tape::drop_one() {
  auto* const entry = index_.choose(now());
  if (entry == nullptr) return false;
  drop(static_cast<Value&>(*entry));
  return true;
}

void Tape::drop_all() {
  std::vector<Value*> all;
  for (Cell* cell = cells_; cell != nullptr; cell = cell->next) {
    if (cell->value->is_in_index() && !cell->value->is_pinned()) all.push_back(cell->value);
  }
  for (Value* value : all) drop(*value);
}

}  // namespace reprise::tape
