// Roots whose bytes cannot be made again, and that replays read: before they are written to, and
// after they have died.
#include <reprise/budget.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <new>
#include <utility>

#include "tape/tape.h"

namespace reprise::tape {

using libtorch::ManagedMemory;

void Tape::make_root(Value& value) {
  if (log) log->fixed(value);
  note_fixed(value);
  leave_index(value);
  if (value.packed != nullptr && value.has_bytes()) take_bits(value);
  Producer* const producer = std::exchange(value.producer, nullptr);
  if (producer != nullptr && !still_makes(*producer, value)) discard(producer);
}

// Whether the producer is wanted without this value.
bool Tape::still_makes(Producer& producer, const Value& without) {
  bool makes = false;
  for (Producer::Output& output : producer.outputs) {
    if (output.value == &without) output.value = nullptr;
    makes = makes || output.value != nullptr;
  }
  return makes;
}

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

bool Tape::keep_contents(Value& root) {
  try {
    if (side_ != nullptr) make_room_on(device_, root.size, /*is_guess=*/false);
    // A detached root keeps the old bytes, under the name that readers know. new_version() takes
    // the storage from it.
    root.detached = copy_of(ManagedMemory::memory_of(*root.cell).get(), root.size);
    if (side_ != nullptr) side_->made_again(root);
    if (root.size < options_.min_bytes.count) little_kept_ += root.size;
    return true;
  } catch (const BudgetError&) {
    return false;
  }
}

void Tape::protect_readers(Value& root) {
  if (root.readers.empty() || root.detached) return;
  // None of what is met here may die while another is brought back.
  while (weighing_ != nullptr && weighing_->let_go_one()) {
  }
  const std::vector<Value*> frontier = held_dependants(root);
  // What would have to be brought back, and could not be dropped any more.
  std::int64_t burden = 0;
  for (const Value* value : frontier) {
    if (value->size >= options_.min_bytes.count && value->cell->own) burden += value->size;
  }
  // Where there is no room for a copy, dependants that are there may stay without any.
  if (burden > root.size && keep_contents(root)) return;
  // Freed last: the memory of one may be held for a look at its gradient alone, and such holds end
  // where room is needed.
  std::vector<c10::Storage> storages;
  for (const Value* value : frontier) {
    const ManagedMemory::Reference reference(*value->cell);
    if (reference.is_too_late()) continue;
    storages.emplace_back(c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(&reference.storage()));
  }
  std::vector<Value*> pinned;
  const auto unpin_all = [&] {
    for (Value* value : pinned) {
      if (log) log->released(*value);
      unpin(*value);
    }
  };
  try {
    for (Value* value : frontier) {
      restore(*value);
      pin(*value);
      if (log) log->held(*value);
      pinned.push_back(value);
    }
  } catch (...) {
    unpin_all();
    throw;
  }
  unpin_all();
  for (Value* value : frontier) make_root(*value);
}

// Collects what is held and made from the roots. False if some of it has no bytes or may be about
// to be written to, if something made from the roots is being restored, or if more is found than
// asked for: more bytes that could be dropped than `most`, or more values than `most_met`.
bool Tape::find_all_there(std::span<Value* const> roots, std::int64_t most, std::size_t most_met,
                          std::vector<Value*>& held) {
  std::vector<const Value*> open(roots.begin(), roots.end());
  ++walks_;
  std::int64_t bytes = 0;
  while (!open.empty()) {
    const Value* const value = open.back();
    open.pop_back();
    for (Producer* reader : value->readers) {
      if (std::exchange(reader->met, walks_) == walks_) continue;
      // It is being recorded, and has made nothing yet.
      if (reader->outputs.empty()) return false;
      for (const Producer::Output& output : reader->outputs) {
        Value* const made = output.value;
        if (made == nullptr) continue;
        if (made->pins != 0 || most_met-- == 0) return false;
        if (made->cell == nullptr) {
          if (std::ranges::count(restoring_, made) != 0) return false;
          open.push_back(made);
          continue;
        }
        if (!made->has_bytes()) return false;
        if (may_drop(*made)) bytes += made->size;
        if (bytes > most) return false;
        held.push_back(made);
      }
    }
  }
  return !held.empty();
}

// Makes roots of what is held and made from the roots: then no replay reads them.
bool Tape::do_without(std::span<Value* const> roots, std::int64_t most, std::size_t most_met) {
  std::vector<Value*> held;
  if (!find_all_there(roots, most, most_met, held)) return false;
  for (Value* value : held) {
    value->stays_told = true;
    make_root(*value);
  }
  return true;
}

// A dead root that is kept allows to drop the held values that are made from it. Frees the roots
// that died last, alone or together, where those values have no more bytes than the roots: as many
// bytes are live either way at least, and without the roots no replay is needed. Together, because
// in backward one gradient is made from every root that has died before it.
void Tape::keep_or_free_dead_root(Value& root) noexcept {
  constexpr std::size_t kMostTogether = 8, kMostMetPerRoot = 16;
  // The caller forgets the root.
  ++root.pins;
  try {
    dead_roots_.push_back(&root);
    std::vector<Value*> last;
    for (std::size_t count = 1; count <= kMostTogether; count *= 2) {
      if (count > dead_roots_.size()) break;
      last.assign(dead_roots_.end() - static_cast<std::ptrdiff_t>(count), dead_roots_.end());
      std::int64_t bytes = 0;
      for (const Value* value : last) bytes += value->size;
      if (do_without(last, bytes, kMostMetPerRoot * count)) break;
    }
  } catch (const std::bad_alloc&) {
    // The root stays.
  }
  --root.pins;
}

bool Tape::free_dead_root() {
  constexpr auto kAny = std::numeric_limits<std::int64_t>::max();
  std::vector<Value*> roots = dead_roots_;
  std::ranges::sort(roots, std::ranges::greater(), &Value::size);
  return std::ranges::any_of(roots, [this](Value* root) {
    return root->pins == 0 && do_without({&root, 1}, kAny, std::numeric_limits<std::size_t>::max());
  });
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
  if (value.size < options_.min_bytes.count) little_kept_ -= value.size;
  value.detached = {};
  return true;
}

}  // namespace reprise::tape
