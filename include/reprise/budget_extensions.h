// What the tape of a step under a MemoryBudget does, told as it happens: for traces and meters.
//
//   struct Replays : reprise::BudgetObserver {
//     void replayed(const Replay& replay) noexcept override { time += replay.time; }
//     reprise::Seconds time{};
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

#include <ATen/core/Tensor.h>
#include <reprise/bytes.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
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
    Seconds time{};                        // without what was done to bring its arguments back
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
    Seconds time{};
    Bytes live;  // in all, after it
  };
  // An operator was run again; then its results are restored.
  virtual void replayed(const Replay& /*done*/) noexcept {}

  // The program holds the storage no more.
  virtual void released(const Memory& /*memory*/) noexcept {}
};

// Records a step under a MemoryBudget as a trace that StepTrace reads: budgets and heuristics can
// then be tried on it without its tensors.
//
//   const auto recorder = std::make_shared<reprise::TraceRecorder>("step.jsonl.gz");
//   reprise::MemoryBudget budget{reprise::GiB(64), {.observer = recorder}};
//   { auto step = budget.step(); ...; step.finish(); }
//   recorder->close();
//   reprise::StepTrace::read("step.jsonl.gz").simulate(...);
//
// The trace is what the program did, whatever was dropped and replayed meanwhile: operators with
// their times, the storages that they read, made and wrote, and when the program let go of them.
// What the tape had not seen being made is a constant. As in simrd's own logs,
// - a write in place makes a new value beside the old one; a write to a constant leaves it one, as
//   on the tape;
// - what factories (zeros, empty) make can be made again, which the tape does not do.

class TraceRecorder final : public BudgetObserver {
 public:
  // Makes or replaces the file, compressed by gzip if its name ends in ".gz". Throws UsageError,
  // naming the file and the reason, if that cannot be.
  explicit TraceRecorder(const std::filesystem::path& file);
  // Closes; what cannot be written then is lost without a word.
  ~TraceRecorder() override;

  void recorded(const Operator& done) noexcept override;
  void released(const Memory& memory) noexcept override;

  // Writes the trace: once, when the step has ended. Throws Error, naming the file and the reason,
  // if it cannot be written as a whole.
  void close();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Which values matter, told to a byte budget: the score of a value, by which the budget chooses
// what to drop (BudgetOptions::heuristic), is multiplied by its weight.
//
//   struct KeepsProducts : reprise::ValueWeights {
//     struct OneStep : Step {
//       double weight(const Call& call) override { return call.name == "aten::mm" ? 4 : 1; }
//     };
//     std::unique_ptr<Step> step() override { return std::make_unique<OneStep>(); }
//   };
//   reprise::MemoryBudget budget{reprise::GiB(8), {.weights = std::make_shared<KeepsProducts>()}};
//
// What has a weight below 1 goes sooner than by the heuristic alone, what has one above it later.
// Only the order in which values go changes: the budget is kept, and gradients are bitwise those of
// the plain step, whatever the weights. Where a learned plan is followed (BudgetOptions::plan_repeated_steps) the
// plan decides what goes, and weights only what goes beyond it.
//
// influence_weights() (pgac.h) weighs values by their influence on the
// gradients; other measures are a class of your own.

class ValueWeights {
 public:
  virtual ~ValueWeights() = default;

  // A call that was made while gradients were being recorded (grad mode), and that made at least
  // one value that may be dropped. The values of other calls, those of backward among them, weigh
  // 1.
  struct Call {
    std::string_view name;  // "aten::mm"
    // The same for calls of one operator with tensors of the same shapes and types, whole numbers
    // and flags; in every process. Of calls with arguments of unusual kinds (dictionaries, sparse
    // tensors) it says the operator alone.
    std::uint64_t kind = 0;
    // Among such calls of the step, from 0. In a step that comes again it is the same.
    std::int64_t number = 0;
  };

  // Of one step, from its beginning to its end.
  class Step {
   public:
    virtual ~Step() = default;

    // The weight of what the call has just made, in all of this step: from 1e-30 to 1e30, kept in
    // single precision; 1 where nothing is known. Another one is a UsageError from the operator.
    // Under the lock of all budgets, on the thread that makes the call: must not wait for another
    // thread, nor allocate, free or read a tensor. What it throws leaves the operator.
    virtual double weight(const Call& call) = 0;

    // In backward: the gradient of `value`, which the call has made, has been made; it is the sum
    // over all uses. `value` is without history, of the gradient's shape, device and type.
    //
    // Not called for values whose bytes are not there at that moment: nothing is brought back for
    // weights, and nothing kept but what an operator of backward has read, from there on until this
    // call. So it may come for some values and not for others, for each result of the call, and
    // again for each backward pass over a graph. Nor for values that were changed in place since,
    // for those whose tensor the program had let go before anything read it, nor for gradients and
    // values that are not plain (sparse, nested, of another device).
    //
    // Neither may be changed, nor kept beyond the call. Operators called here are not recorded; the
    // memory that they take counts. On the thread that runs backward, without a lock: calls for
    // several values may come at once. What it throws ends backward.
    virtual void gradient(const Call& call, const at::Tensor& value, const at::Tensor& gradient) {
      (void)call, (void)value, (void)gradient;
    }

    // The step is over; `is_whole`: it ran to its end, without an error. No other call begins after
    // this one, but a gradient() on another thread may be under way.
    virtual void ended(bool is_whole) noexcept { (void)is_whole; }
  };

  // A step begins. Several may be under way at once, where budgets share the weights or steps
  // overlap. Called without a lock. Not null; what it throws leaves MemoryBudget::step().
  virtual std::unique_ptr<Step> step() = 0;
};

}  // namespace reprise
