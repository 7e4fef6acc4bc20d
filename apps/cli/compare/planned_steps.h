// Plans of a network's step in so many bytes: schedules of its chain, and plans of the step itself.
// All bytes count from what is live before the step.
#pragma once

#include <reprise/chain.h>
#include <reprise/step_trace.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "apps/cli/compare/compare_options.h"
#include "apps/cli/training/batches.h"
#include "apps/cli/training/network.h"

namespace reprise::app {

struct PlannedStep {
  std::string planner;
  std::string budget;  // as it was asked for; empty: the planner takes none
  Bytes limit;         // that it comes to
  bool fits = false;
  std::string failure;  // why not
  Bytes peak;           // predicted
  double ratio = 0;     // of the plain step's time, predicted
  std::optional<Schedule> schedule;

  // "rotor 50%".
  std::string name() const { return budget.empty() ? planner : planner + " " + budget; }
};

struct PlannedSteps {
  Chain chain;
  Bytes around;      // of the embedding, beside the chain
  Bytes plain_peak;  // predicted
  double plain_seconds = 0;
  std::vector<PlannedStep> steps;
};

// Measures the chain on the batch, records a step where a planner of steps is asked for, and plans.
// The model's gradients are gone afterwards.
PlannedSteps plan_steps(const CompareOptions& options, Network& network, const Batch& batch);

}  // namespace reprise::app
