// Extensions of a MemoryBudget (reprise/budget.h): an observer is told what the tape does, a
// TraceRecorder writes a step down for simulations, and weights change which values are dropped
// first.
#pragma once

#include <ATen/core/Tensor.h>
#include <reprise/bytes.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string_view>

namespace reprise {

// -- Observers

// Is told what the tape of a step does, as it happens: for traces and meters.
//
//   struct Replays : reprise::BudgetObserver {
//     void replayed(const Replay& replay) noexcept override { time += replay.time; }
//     reprise::Seconds time{};
//   };
//   const auto replays = std::make_shared<Replays>();
//   reprise::MemoryBudget budget{reprise::GiB(8), {.observer = replays}};
//
// Thread rules: all functions are called under the lock of all budgets, on the thread of the event,
// so calls never overlap. They must not throw, wait for another thread, nor allocate, free or read
// a tensor. Their arguments are valid during the call only.
//
// On an accelerator the host only gives the device its work. Events are therefore told when the step
// ends, in their order, on the thread that ends it, with times of the device. Such a step waits for
// the device once, at its end.
//
// Views make no memory and are not told. Memory that an operator takes and frees for itself shows
// in `live` alone.
class BudgetObserver {
 public:
  virtual ~BudgetObserver() = default;

  // A storage that the tape manages. Its number is never used for another one.
  struct Memory {
    std::uint64_t id = 0;
    Bytes bytes;
  };

  struct Operator {
    std::string_view name;  // "aten::mm"
    // The storages of its tensor arguments, one for each tensor in order. A storage that no event
    // has named before existed before the step, or was made in a way that the tape does not see.
    std::span<const Memory> arguments;
    std::span<const std::size_t> written;  // indices of the arguments that it changed
    std::span<const Memory> results;       // storages that it made
    Seconds time{};                        // without the time to restore its arguments
    Bytes live;                            // all live bytes after it
    // On an accelerator, when the device had done it, in seconds since the step began. On the CPU
    // none: that is now.
    std::optional<Seconds> at = {};
  };
  // The program has run an operator. Operators that replays run are not told here.
  virtual void recorded(const Operator& /*done*/) noexcept {}

  // The contents of a storage, or earlier contents of it that replays read.
  struct Value {
    std::string_view maker;  // the operator that made it
    Bytes bytes;
    Bytes live;                      // all live bytes after the event
    std::optional<Seconds> at = {};  // on an accelerator, when the operator before it was done
  };
  virtual void dropped(const Value& /*value*/) noexcept {}
  virtual void restored(const Value& /*value*/) noexcept {}
  // A value that was restored for replays alone, and not for a storage, is no longer needed. Its
  // bytes are free, or have become those of a result.
  virtual void spent(const Value& /*value*/) noexcept {}

  struct Replay {
    std::string_view name;
    Seconds time{};
    Bytes live;                      // all live bytes after it
    std::optional<Seconds> at = {};  // as for operators
  };
  // An operator ran again. Its results are restored after this event.
  virtual void replayed(const Replay& /*done*/) noexcept {}

  // The program no longer holds the storage.
  virtual void released(const Memory& /*memory*/) noexcept {}
};

// -- Traces

// Records a step as a trace that StepTrace (reprise/step_trace.h) reads, so that budgets and
// heuristics can be tried on the step without its tensors.
//
//   const auto recorder = std::make_shared<reprise::TraceRecorder>("step.jsonl.gz");
//   reprise::MemoryBudget budget{reprise::GiB(64), {.observer = recorder}};
//   { auto step = budget.step(); ...; step.finish(); }
//   recorder->close();
//   reprise::StepTrace::read("step.jsonl.gz").simulate(...);
//
// The trace holds what the program did, whatever was dropped and replayed meanwhile: operators with
// their times, the storages that they read, made and wrote, and when the program released them. A
// storage whose making the tape did not see is a constant. As in simrd's own logs,
// - a write in place makes a new value beside the old one; a written constant stays a constant, as
//   on the tape;
// - results of factories (zeros, empty) can be recomputed, which the tape does not do.
class TraceRecorder final : public BudgetObserver {
 public:
  // Makes or replaces the file, compressed by gzip if its name ends in ".gz". Throws UsageError,
  // with the file and the reason, if it cannot be made.
  explicit TraceRecorder(const std::filesystem::path& file);
  // Closes the file. Errors of writing are lost here; close() throws them.
  ~TraceRecorder() override;

  void recorded(const Operator& done) noexcept override;
  void released(const Memory& memory) noexcept override;

  // Writes the trace: call it once, when the step has ended. Throws Error, with the file and the
  // reason, if it cannot be written as a whole.
  void close();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// -- Weights

// Tells a budget which values matter: the score by which it drops a value
// (BudgetOptions::heuristic) is multiplied by the value's weight. Values with a weight below 1 are
// dropped sooner than by the heuristic alone, values with one above 1 later.
//
//   struct KeepsProducts : reprise::ValueWeights {
//     struct OneStep : Step {
//       double weight(const Call& call) override { return call.name == "aten::mm" ? 4 : 1; }
//     };
//     std::unique_ptr<Step> step() override { return std::make_unique<OneStep>(); }
//   };
//   reprise::MemoryBudget budget{reprise::GiB(8), {.weights = std::make_shared<KeepsProducts>()}};
//
// Weights change only the order of drops. The limit holds, and gradients are bitwise those of the
// plain step, whatever the weights. Where the budget follows a plan of a repeated step
// (BudgetOptions::plan_repeated_steps), weights choose only among drops beyond the plan.
//
// influence_weights() (reprise/experimental/pgac.h) weighs values by their influence on gradients.
class ValueWeights {
 public:
  virtual ~ValueWeights() = default;

  // A call in grad mode that made at least one droppable value. The values of other calls, such as
  // those of backward, have the weight 1.
  struct Call {
    std::string_view name;  // "aten::mm"
    // Equal, in every process, for calls of one operator with the same shapes and types of tensors,
    // whole numbers and flags. For arguments of unusual kinds (dictionaries, sparse tensors) it
    // depends on the operator alone.
    std::uint64_t kind = 0;
    // The number of this call among such calls of the step, from 0. It is the same in each
    // repetition of a step.
    std::int64_t number = 0;
  };

  // The weights of one step, from its beginning to its end.
  class Step {
   public:
    virtual ~Step() = default;

    // The weight of the values that the call has just made, for the rest of the step: from 1e-30 to
    // 1e30, in single precision. Return 1 if nothing is known. Any other weight is a UsageError
    // from the operator, and an exception leaves the operator.
    //
    // Called under the lock of all budgets, on the thread of the call. It must not wait for another
    // thread, nor allocate, free or read a tensor.
    virtual double weight(const Call& call) = 0;

    // Backward has made the gradient of `value`, a result of the call: the sum over all uses.
    // `value` has no history and the gradient's shape, device and type.
    //
    // It is called for each result of the call, and again for each backward pass over a graph, but
    // only if the value has its bytes at that moment. Nothing is restored for it, and nothing is
    // kept but values that an operator of backward has read, until this call. It is not called for
    // - values changed in place since, and values that the program released before anything read
    //   them;
    // - gradients and values that are sparse, nested or on another device.
    //
    // Neither tensor may be changed, or kept beyond the call. Operators called here are not
    // recorded; their memory counts. Called on the thread that runs backward, without a lock, for
    // several values at once. An exception ends backward.
    virtual void gradient(const Call& call, const at::Tensor& value, const at::Tensor& gradient) {
      (void)call, (void)value, (void)gradient;
    }

    // The step is over; `is_whole` if it ran to its end without an error. No other call begins
    // after this one, but a gradient() on another thread may still run.
    virtual void ended(bool is_whole) noexcept { (void)is_whole; }
  };

  // A step begins. Several may be under way at once, if budgets share the weights or steps overlap.
  // Called without a lock. The result must not be null. An exception leaves MemoryBudget::step().
  virtual std::unique_ptr<Step> step() = 0;
};

}  // namespace reprise
