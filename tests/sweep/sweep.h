// What the sweeps share: a function of tensors that the step's own operators have made, run plainly
// and where every value is dropped after each operator.
//
// Freed memory shows best when it is filled: GLIBC_TUNABLES=glibc.malloc.perturb=165 (and
// glibc.malloc.tcache_count=0, for small blocks), as ctest sets it.
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tests/tape/testing.h"

namespace reprise::testing {

// By hand: REPRISE_LONG_SWEEP=1.
inline bool is_long_sweep() { return std::getenv("REPRISE_LONG_SWEEP") != nullptr; }

struct Swept {
  // Floating ones with a gradient are differentiated.
  Tensors leaves;
  // Of copies of the leaves.
  std::function<Tensors(const Tensors& made)> run;
  // Changed by it.
  Tensors state;
  // What else is differentiated: parameters.
  Tensors more;
};

// A leaf, as an operator of the step makes it.
inline at::Tensor made_again(const at::Tensor& leaf) {
  if (!leaf.defined() || leaf.layout() != at::kStrided) return leaf;
  return leaf.clone();
}

// Results, gradients, state and the numbers that are drawn next.
inline Tensors swept_outcome(const std::function<Swept()>& make, MemoryBudget* budget) {
  at::manual_seed(5);
  Swept swept = make();
  at::manual_seed(6);
  Tensors outcome;
  {
    std::optional<MemoryBudget::Step> step;
    if (budget != nullptr) step.emplace(budget->step());
    Tensors made, wanted, smooth;
    for (const at::Tensor& leaf : swept.leaves) {
      made.push_back(made_again(leaf));
      if (leaf.defined() && leaf.requires_grad()) wanted.push_back(leaf);
    }
    wanted.insert(wanted.end(), swept.more.begin(), swept.more.end());
    outcome = swept.run(made);
    for (const at::Tensor& result : outcome) {
      if (result.defined() && result.requires_grad() && result.layout() == at::kStrided) {
        smooth.push_back(result.is_complex() ? at::view_as_real(result) : result);
      }
    }
    if (!smooth.empty() && !wanted.empty()) {
      at::Tensor loss = smooth[0].square().sum();
      for (std::size_t i = 1; i < smooth.size(); ++i) {
        loss = loss + smooth[i].square().sum().to(loss.scalar_type());
      }
      const Tensors slopes = torch::autograd::grad({loss}, wanted, {}, std::nullopt,
                                                   /*create_graph=*/false, /*allow_unused=*/true);
      outcome.insert(outcome.end(), slopes.begin(), slopes.end());
    }
    made.clear();
    smooth.clear();
    if (step) step->finish();
  }
  outcome.insert(outcome.end(), swept.state.begin(), swept.state.end());
  for (at::Tensor& tensor : outcome) {
    if (tensor.defined()) tensor = tensor.detach().to_dense().clone();
  }
  outcome.push_back(at::rand({3}));
  return outcome;
}

// What sweeps count, for the record.
struct SweepCounts {
  std::int64_t cases = 0;
  std::int64_t dropped = 0;
  std::int64_t replayed = 0;
};

// Bitwise the plain outcome where everything of at least `min_bytes` is dropped after every
// operator. `plain`: as it came out outside of steps.
inline ::testing::AssertionResult is_right_when_dropped(const std::function<Swept()>& make,
                                                        const Tensors& plain, Bytes min_bytes,
                                                        SweepCounts& counts) {
  MemoryBudget budget(
      GiB(64),
      {.min_bytes = min_bytes, .plan_repeated_steps = false, .verify = true, .paranoid = true});
  try {
    const Tensors mine = swept_outcome(make, &budget);
    ++counts.cases;
    counts.dropped += budget.report().dropped;
    counts.replayed += budget.report().replayed;
    return same_bits(mine, plain);
  } catch (const std::exception& error) {
    const std::string text = error.what();
    return ::testing::AssertionFailure() << text.substr(0, text.find("\nException raised"));
  }
}

}  // namespace reprise::testing
