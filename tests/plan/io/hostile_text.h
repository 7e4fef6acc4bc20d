// Texts as they come from anywhere, through all that reads text. Shared by the fuzzer
// (fuzz/text_fuzz.cpp) and the test of what it has found (hostile_text_test.cpp).
#pragma once

#include <reprise/budget.h>
#include <reprise/error.h>
#include <reprise/pipeline_schedule.h>
#include <reprise/planners.h>
#include <reprise/step_trace.h>

#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "plan/step/step_script.h"

namespace reprise::plan {

// Plans with what was read, if it is small enough to be quick.
inline void use(const Chain& chain) {
  constexpr std::size_t kMostStages = 12;
  if (chain.stages.size() > kMostStages) return;
  const ScheduleCost plain = evaluate(chain, planners::keep_all(chain));
  evaluate(chain, planners::sqrt(chain));
  try {
    const Bytes half(plain.peak.count / 2);
    const Schedule schedule = planners::rotor(chain, half, {.slots = 50, .store = {}});
    if (evaluate(chain, schedule).peak > half) std::abort();
    picture(chain, schedule);
    picture_svg(chain, schedule);
  } catch (const BudgetError&) {
    // Some chains fit in no less.
  }
  if (Chain::parse(chain.json()) != chain) std::abort();
}

inline void use(const StepTrace& step) {
  constexpr std::int64_t kMostOperators = 12;
  if (step.operators() > kMostOperators) return;
  const Bytes half(step.plain_peak().count / 2);
  step.simulate({.budget = half});
  for (const double store : {0., 1e9}) {
    const StepPlan plan = planners::hindsight(
        step,
        {.budget = half, .time_limit = {}, .store = TransferRate{store}, .moves = 100, .seed = 1});
    if (plan.fits && plan.peak > half) std::abort();
  }
  if (StepTrace::parse(step.json()).json() != step.json()) std::abort();
}

inline void use(const PipelineSchedule& schedule) {
  if (PipelineSchedule::parse_csv(schedule.csv()) != schedule) std::abort();
  const PipelineTimeline run = simulate(schedule, PipelineCosts::even(schedule.stages));
  const PipelineLives lives = activation_lives(schedule, schedule.micro_batches / 2);
  if (run.workers.size() != lives.workers.size()) std::abort();
}

// Whatever is thrown by `read` for bad text is a UsageError or a PlanError; others pass through.
template <class F>
void read_or_refuse(F&& read) {
  try {
    read();
  } catch (const UsageError&) {
    return;
  } catch (const PlanError&) {
    return;
  }
}

inline void read_hostile(std::string_view text) {
  read_or_refuse([&] { use(Chain::parse(text)); });
  read_or_refuse([&] {
    const Schedule schedule = Schedule::parse(text);
    if (Schedule::parse(schedule.json()) != schedule) std::abort();
    Chain chain;
    chain.stages.resize(3);
    evaluate(chain, schedule);
  });
  read_or_refuse([&] {
    const LearnedPlan plan = LearnedPlan::parse(text, "plan");
    if (LearnedPlan::parse(plan.json(), "plan").json() != plan.json()) std::abort();
  });
  read_or_refuse([&] { use(StepTrace::parse(text)); });
  read_or_refuse([&] { use(PipelineSchedule::parse_csv(text)); });
}

}  // namespace reprise::plan
