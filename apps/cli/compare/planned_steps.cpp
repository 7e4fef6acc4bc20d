#include "apps/cli/compare/planned_steps.h"

#include <fmt/format.h>
#include <reprise/budget.h>
#include <reprise/budget_extensions.h>
#include <reprise/error.h>
#include <reprise/memory.h>
#include <reprise/planners.h>
#include <reprise/sequential.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <memory>

#include "models/strategy.h"

namespace reprise::app {
namespace {

// All other planners make one schedule, whatever the budget.
bool takes_budget(const std::string& planner) {
  return is_step_planner(planner) || planner == "rotor" || planner == "revolve";
}

void profile(Network& network, const Batch& batch, PlannedSteps& planned) {
  network.model()->zero_grad();
  const Bytes before = live_bytes(network.device());
  const at::Tensor embedded = network.embed(batch.tokens);
  planned.around = live_bytes(network.device()) - before;
  planned.chain = profile_chain(network.chain(batch.targets), embedded.detach().requires_grad_(),
                                network.model()->parameters());
  for (std::size_t i = 0; i < planned.chain.stages.size(); ++i) {
    planned.chain.stages[i].name = fmt::format("block {}", i);
  }
  planned.chain.stages.back().name = "head and loss";
  const ScheduleCost plain = evaluate(planned.chain, planners::keep_all(planned.chain));
  planned.plain_peak = plain.peak + planned.around;
  planned.plain_seconds = plain.time.count();
}

void plan_chain(const PlannedSteps& planned, PlannedStep& step) {
  const bool is_bound = !step.budget.empty();
  try {
    step.schedule = planner_named(step.planner)(
        planned.chain, is_bound ? step.limit - planned.around : kUnlimited);
  } catch (const BudgetError& error) {
    step.failure = error.what();
    return;
  }
  const ScheduleCost cost = evaluate(planned.chain, *step.schedule);
  step.fits = true;
  step.peak = cost.peak + planned.around;
  step.ratio = cost.time.count() / planned.plain_seconds;
}

// The plain step, as the tape sees it.
StepTrace record_step(Network& network, const Batch& batch) {
  const std::filesystem::path file =
      std::filesystem::temp_directory_path() / fmt::format("reprise-compare-{}.jsonl", ::getpid());
  const std::shared_ptr<void> removed(nullptr, [&](void*) {
    std::error_code ignored;
    std::filesystem::remove(file, ignored);
  });
  const auto recorder = std::make_shared<TraceRecorder>(file);
  {
    constexpr Bytes kRoom = GB(8000);
    MemoryBudget budget(kRoom, {.device = network.device(), .observer = recorder});
    MemoryBudget::Step step = budget.step();
    network.run_backward(batch, models::Strategy::parse("none"));
    step.finish();
  }
  recorder->close();
  network.model()->zero_grad();
  return StepTrace::read(file);
}

void plan_trace(const CompareOptions& options, const StepTrace& trace, PlannedStep& step) {
  const StepPlanOptions wanted{.budget = trace.constants() + step.limit,
                               .time_limit = std::chrono::duration<double>(options.seconds),
                               .seed = static_cast<std::uint64_t>(options.seed)};
  try {
    const StepPlan plan =
        step.planner == "ilp" ? planners::ilp(trace, wanted) : planners::hindsight(trace, wanted);
    step.fits = plan.fits;
    step.failure = plan.fits ? "" : "no plan was found";
    step.peak = plan.peak - trace.constants();
    step.ratio = plan.slowdown;
  } catch (const UsageError& error) {
    step.failure = error.what();
  }
}

}  // namespace

PlannedSteps plan_steps(const CompareOptions& options, Network& network, const Batch& batch) {
  PlannedSteps planned;
  profile(network, batch, planned);
  std::optional<StepTrace> trace;
  if (std::ranges::any_of(options.planners, is_step_planner)) trace = record_step(network, batch);
  for (const std::string& planner : options.planners) {
    const bool is_bound = takes_budget(planner);
    for (const AskedBudget& budget : options.budgets) {
      PlannedStep step;
      step.planner = planner;
      if (is_bound) {
        step.budget = budget.text();
        step.limit = budget.of_peak(planned.plain_peak);
      }
      is_step_planner(planner) ? plan_trace(options, *trace, step) : plan_chain(planned, step);
      planned.steps.push_back(std::move(step));
      if (!is_bound) break;
    }
  }
  return planned;
}

}  // namespace reprise::app
