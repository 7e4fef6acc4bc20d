// PGAC for models without layers: a byte budget that drops sooner what has less influence on the
// gradients.
//
//   reprise::MemoryBudget budget{reprise::GiB(8), {.heuristic = "h_dtr",
//                                                  .weights = reprise::influence_weights()}};
//
// A value's score h (BudgetOptions::heuristic) becomes  h * w,  where
//
//   s  = || d * a ||_2        the influence of the value a with gradient d = dL/da
//                             (reprise/influence.h), made in backward
//   m <- alpha m + (1 - alpha) s      the moving average over steps, from the first s on
//   w  = max(m / mean of all m, smallest)
//
// as PGAC has it of layers (reprise/pgac.h), with an operator call in a layer's place. A call is
// known again in the next steps by its kind (operator, shapes, whole numbers) and by how many of
// that kind came before it in the step: a step of another form keeps the averages of the calls that
// it has in common with others. Scores of several results of a call, and of several backward passes
// of a step, add their squares. A call that has no average yet weighs 1, as the mean of those that
// have; so does everything in a first step.
//
// A value is scored if its bytes are there when its gradient is; otherwise its average stays. So
// what is always dropped before backward reaches it keeps the average that it had. Scoring takes
// one pass over both tensors, no memory on the CPU, and leaves gradients bitwise what they are.
#pragma once

#include <reprise/value_weights.h>

#include <cstdint>
#include <memory>

namespace reprise {

struct InfluenceWeightsOptions {
  // Of the moving average: 0 keeps the last score alone; below 1.
  double alpha = 0.9;
  // The least weight. With zero a value of no influence would go before any other, however dear it
  // is to make again; this bounds what influence can outweigh.
  double smallest = 1e-2;
  // As InfluenceOptions::stride: of so many runs of 64 elements one is looked at.
  std::int64_t stride = 1;
};

// For one budget or several. Calls that no step has made for 64 steps are forgotten. On an
// accelerator scores are read one step late. Throws UsageError for alpha outside of [0, 1), for
// `smallest` outside of [1e-6, 1], and for a stride below 1.
std::shared_ptr<ValueWeights> influence_weights(const InfluenceWeightsOptions& options = {});

}  // namespace reprise
