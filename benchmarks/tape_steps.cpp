// What an operator costs when it is seen, and when it is recorded.
#include "tape_steps.h"

#include <reprise/budget.h>
#include <reprise/memory.h>

#include <memory>
#include <optional>

#include "benchmarks/support/pass_through.h"
#include "chain.h"

namespace reprise::bench {

Step under_budget(c10::Device device, Step step, Bytes above) {
  const auto budget = std::make_shared<std::optional<MemoryBudget>>();
  return [step = std::move(step), above, budget, device] {
    if (!*budget) budget->emplace(live_bytes(device) + above, BudgetOptions{.device = device});
    auto managed = (*budget)->step();
    step();
    managed.finish();
  };
}

NamedSteps tape_steps(c10::Device device) {
  const Step chain = backward_of(device, sin_chain);
  return {
      {"plain", chain}, {"seen", seen(chain)}, {"recorded", under_budget(device, chain, GiB(64))}};
}

// Forward: sin; backward: cos and mul.
double operators_in_tape_steps() { return 3 * kChain; }

}  // namespace reprise::bench
