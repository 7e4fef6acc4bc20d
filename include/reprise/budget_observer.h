// What the tape of a step under a MemoryBudget does, told as it happens: for traces and meters.
//
//   struct Replays : reprise::BudgetObserver {
//     void replayed(const Replay& replay) noexcept override { seconds += replay.seconds; }
//     double seconds = 0;
//   };
//   const auto replays = std::make_shared<Replays>();
//   reprise::MemoryBudget budget{reprise::GiB(8), {.observer = replays}};
//
// All functions are called under the lock of all budgets, on the thread on which it happens: calls
// never overlap. They must not throw, wait for another thread, nor allocate, free or read a tensor.
// What they are given is good for the call alone.
//
// Views make no memory and are not told. Memory that an operator takes and frees for itself is in
// `live`, and told by nothing else.
#pragma once

#include <reprise/bytes.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace reprise {

class BudgetObserver {
 public:
  virtual ~BudgetObserver() = default;

  // A storage that the tape manages. The number is never used for another one.
  struct Memory {
    std::uint64_t id = 0;
    Bytes bytes;
  };

  struct Operator {
    std::string_view name;  // "aten::mm"
    // The storages that its tensors lie on, one for each tensor in order. One that no event has
    // named before was there before the step, or was made in a way that the tape does not see.
    std::span<const Memory> arguments;
    std::span<const std::size_t> written;  // which of them it has changed
    std::span<const Memory> results;       // that it has made
    double seconds = 0;                    // without what was done to bring its arguments back
    Bytes live;                            // in all, after it
  };
  // The program has run an operator; those that replays run are not told here.
  virtual void recorded(const Operator& /*done*/) noexcept {}

  // The contents of a storage, or contents that it had and that replays read.
  struct Value {
    std::string_view maker;  // the operator that made it
    Bytes bytes;
    Bytes live;  // in all, after it
  };
  virtual void dropped(const Value& /*value*/) noexcept {}
  virtual void restored(const Value& /*value*/) noexcept {}
  // What was restored for replays alone, and not for a storage, has served them: its bytes are
  // free, or have become those of a result.
  virtual void spent(const Value& /*value*/) noexcept {}

  struct Replay {
    std::string_view name;
    double seconds = 0;
    Bytes live;  // in all, after it
  };
  // An operator was run again; then its results are restored.
  virtual void replayed(const Replay& /*done*/) noexcept {}

  // The program holds the storage no more.
  virtual void released(const Memory& /*memory*/) noexcept {}
};

}  // namespace reprise
