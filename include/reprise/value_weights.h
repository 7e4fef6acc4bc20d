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
// the plain step, whatever the weights. Where a learned plan is followed (BudgetOptions::learn) the
// plan decides what goes, and weights only what goes beyond it.
//
// influence_weights() (reprise/influence_weights.h) weighs values by their influence on the
// gradients; other measures are a class of your own.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string_view>

namespace reprise {

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
