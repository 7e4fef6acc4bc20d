// What the tape knows: values and their producers.
//
// A value is the contents of one storage at one version. While it is the newest contents of a
// living storage it is attached to it; an older version, or the contents of a storage that died, is
// detached, and has bytes only for as long as replays want them. A producer is the operator call
// that made one or more values, and keeps the values that it read; a value without one is a root.
//
// All of it is guarded by libtorch::limit_mutex().
#pragma once

#include <c10/core/Storage.h>
#include <c10/core/Stream.h>
#include <c10/util/SmallVector.h>

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/recycling_allocator.h"
#include "core/two_kinds.h"
#include "libtorch/memory/managed_memory.h"
#include "libtorch/memory/outside_writer.h"
#include "libtorch/operators/own_draws.h"
#include "libtorch/operators/recorded_call.h"
#include "plan/simulate/eviction_index.h"
#include "plan/simulate/room_to_make.h"
#include "plan/simulate/union_find.h"
#include "plan/step/step_record.h"
#include "reprise/store.h"

namespace reprise::tape {

class Tape;
struct Producer;
struct Value;

// A step of a small model has some thousands of each of these.
constexpr std::size_t kRecycled = 4096;

// Counts those that live, for tests. Under the lock as all else.
template <class T>
struct Counted {
  Counted() { ++living; }
  ~Counted() { --living; }
  Counted(const Counted&) = delete;
  Counted& operator=(const Counted&) = delete;
  inline static std::int64_t living = 0;
};

// A storage under management: the manager that stands in its data pointer.
struct Cell final : libtorch::MemoryManager, Recycled<Cell, kRecycled>, Counted<Cell> {
  Cell(Tape& of, c10::StorageImpl& managed) : tape(of), storage(&managed) {}
  void released(c10::DataPtr memory) noexcept override;
  void hold() override;
  void release_hold() noexcept override;
  void before_write() override;
  // Somebody may fill the memory with something else unseen: what is computed from it is not dropped.
  bool may_change_unseen() const { return foreign || libtorch::OutsideWriter::is_on(*storage); }

  // By whom the bytes are read past operators: of the value that was held.
  std::uint32_t holds = 0;

  Tape& tape;
  c10::StorageImpl* storage;
  Value* value = nullptr;
  // The tape's own memory: made by a recorded operator, and by the allocator that counts. Only
  // such memory is ever dropped.
  bool own = false;
  // Memory of an owner of its own (from_blob).
  bool foreign = false;
  // For texts: an operator of the step has made the storage; autograd has taken it for a gradient.
  bool is_of_step = false;
  bool is_gradient = false;
  // An earlier step has given its bytes up for good.
  bool gone = false;
  // The program has moved the bytes to a storage of another: the tape knows it no more.
  bool is_orphan = false;
  // LibTorch's composites may hold a raw pointer into it while they call other operators: its
  // newest contents are never dropped.
  bool is_read_by_pointer = false;
  // In the tape's list of cells.
  Cell* next = nullptr;
  Cell* previous = nullptr;
};

// What a value is made of again that has elements of two kinds only.
struct Packed {
  c10::DataPtr bits;
  TwoKinds kinds;
  std::size_t place = 0;  // in the tape's list
};

using plan::kNoNumber;

// What the plan that is followed can do without.
enum class Absence : std::uint8_t {
  kNone,
  kSpare,      // until it is made again
  kForgotten,  // for good
};

struct Value final : plan::EvictionEntry, Recycled<Value, kRecycled>, Counted<Value> {
  // The storage that it is attached to, or the bytes of a detached one.
  Cell* cell = nullptr;
  c10::Storage detached;
  std::int64_t size = 0;
  // The first bytes, which its operator has set: some kernels leave room behind them.
  std::int64_t defined = 0;
  // Operators on the longest way from a root.
  std::uint32_t depth = 0;
  // Bytes that lie beside it while it is made from roots, as plan::RoomToMake has it.
  std::int64_t beside = 0;

  Producer* producer = nullptr;
  // Producers that read it.
  c10::SmallVector<Producer*, 2> readers;

  // While dropped.
  plan::CostClasses::Node node = plan::CostClasses::kNone;
  std::optional<std::uint64_t> hash;
  // In a store, and not to be made again.
  std::unique_ptr<ParkedTensor> parked;

  // In a bit each element. The contents of a value stay what they are, and so do the bits once they
  // were made.
  std::unique_ptr<Packed> packed;
  // Bytes of an element; 0: not known.
  std::uint8_t width = 0;
  // The result of its producer that it is, if it seems to have elements of two kinds only.
  std::uint8_t kind_bit = 0;

  // On an accelerator, the stream that a replay has made it on.
  static constexpr c10::StreamId kNowhere = std::numeric_limits<c10::StreamId>::min();
  c10::StreamId remade_on = kNowhere;

  // In the order in which calls met it, where that is counted.
  plan::ValueNumber number = kNoNumber;
  Absence absence = Absence::kNone;
  // In the log of the step, where there is one.
  std::uint32_t logged = kNoNumber;
  // Bytes that the allocator has handed out beyond `size`, as it last was in the index.
  std::int32_t slack = 0;
  // In which list of spare values it is, and where.
  Absence listed_as = Absence::kNone;
  std::uint32_t listed_at = 0;

  // In the table of those whose gradient is looked at.
  static constexpr std::uint32_t kUnwatched = 0xffffffff;
  std::uint32_t watch = kUnwatched;

  // Operators and replays that count on the bytes.
  std::uint32_t pins = 0;
  // It had a producer, and became a root for want of room: plans go on to be told of it.
  bool stays_told = false;

  bool has_bytes() const {
    if (size == 0) return true;
    return cell != nullptr ? !libtorch::ManagedMemory::is_hollow(*cell)
                           : static_cast<bool>(detached);
  }
  // To be made again by its producer.
  bool is_lost() const { return !has_bytes() && packed == nullptr; }
};

struct Producer final : Recycled<Producer, kRecycled>, Counted<Producer> {
  // What a slot of the call was given.
  enum class Use : std::uint8_t {
    kRead,     // the value
    kUpdate,   // a copy of the value, which the call writes to
    kScratch,  // new memory, all of which the call writes, or on which its results do not depend
  };
  struct Input {
    Value* value;  // null for scratch
    std::int64_t bytes;
    Use use;
  };
  // Where a result is found after the call: in a result, or in what a slot was given.
  struct Output {
    Value* value;  // null once it is wanted no more
    std::int16_t result;
    std::int16_t element;
    std::int16_t slot;
  };

  explicit Producer(libtorch::CallForm& form) : call(form) {}

  libtorch::RecordedCall call;
  c10::SmallVector<Input, 3> inputs;  // by slot
  c10::SmallVector<Output, 1> outputs;
  // Where it draws.
  std::unique_ptr<const libtorch::Drawn> drawn;
  // Of the call, and of running it again: 0 until the tape has it, before which nothing that it
  // made can be dropped.
  double seconds = 0;
  double again = 0;
  // That it reads and makes, where costs are learnt.
  std::int64_t bytes = 0;
  // The walk that met it last.
  std::uint32_t met = 0;
};

// Of all tapes: cells, values and producers.
std::int64_t living_records();

}  // namespace reprise::tape
