// Roots that are written to: their old bytes cannot be made again, and replays may need them.
#include <reprise/memory_budget.h>

#include <cstring>
#include <utility>

#include "tape/tape.h"

namespace reprise::tape {

using libtorch::ManagedMemory;

// What depends on the value and is held: with its bytes a root itself, it needs no replay.
std::vector<Value*> Tape::held_dependants(Value& root) {
  std::vector<Value*> held;
  std::vector<Value*> open{&root};
  ++walks_;
  while (!open.empty()) {
    Value* const value = open.back();
    open.pop_back();
    for (Producer* reader : value->readers) {
      if (std::exchange(reader->met, walks_) == walks_) continue;
      for (const Producer::Output& output : reader->outputs) {
        if (output.value == nullptr) continue;
        (output.value->cell != nullptr ? held : open).push_back(output.value);
      }
    }
  }
  return held;
}

void Tape::protect_readers(Value& root) {
  if (root.readers.empty() || root.detached) return;
  const std::vector<Value*> frontier = held_dependants(root);
  // What would have to be brought back, and could not be dropped any more.
  std::int64_t burden = 0;
  for (const Value* value : frontier) {
    if (value->size >= options_.smallest.count && value->cell->own) burden += value->size;
  }
  if (burden > root.size) {
    try {
      if (side_ != nullptr) make_room_on(device_, root.size, /*is_guess=*/false);
      // A detached root keeps the old bytes, under the name that readers know. new_version() takes
      // the storage from it.
      root.detached = copy_of(ManagedMemory::memory_of(*root.cell).get(), root.size);
      if (side_ != nullptr) side_->made_again(root);
      if (root.size < options_.smallest.count) little_kept_ += root.size;
      return;
    } catch (const BudgetError&) {
      // The other way may do: what is there needs no room.
    }
  }
  std::vector<Value*> pinned;
  const auto unpin_all = [&] {
    for (Value* value : pinned) unpin(*value);
  };
  try {
    for (Value* value : frontier) {
      restore(*value);
      pin(*value);
      pinned.push_back(value);
    }
  } catch (...) {
    unpin_all();
    throw;
  }
  unpin_all();
  for (Value* value : frontier) make_root(*value);
}

bool Tape::unprotect(Value& value, bool may_differ) {
  if (value.producer != nullptr) return false;
  if (!value.detached) return true;
  const void* const now = ManagedMemory::memory_of(*value.cell).get();
  // Of an accelerator's memory it is not looked up.
  if (may_differ && (side_ != nullptr || std::memcmp(now, value.detached.data(),
                                                     static_cast<std::size_t>(value.size)) != 0)) {
    return false;
  }
  if (value.size < options_.smallest.count) little_kept_ -= value.size;
  value.detached = {};
  return true;
}

}  // namespace reprise::tape
