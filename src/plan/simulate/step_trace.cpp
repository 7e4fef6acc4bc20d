// The public face of the simulator.
#include <reprise/error.h>
#include <reprise/step_trace.h>

#include <algorithm>
#include <utility>

#include "plan/io/text_file.h"
#include "plan/simulate/simulator.h"
#include "plan/trace/step_json.h"
#include "plan/trace/step_trace_access.h"

namespace reprise {

namespace {

Seconds seconds(std::int64_t nanoseconds) { return std::chrono::nanoseconds(nanoseconds); }

SimulatedStep::Outcome outcome(plan::Outcome outcome) {
  switch (outcome) {
    case plan::Outcome::kFits:
      break;
    case plan::Outcome::kOutOfMemory:
      return SimulatedStep::Outcome::kOutOfMemory;
    case plan::Outcome::kTooSlow:
      return SimulatedStep::Outcome::kTooSlow;
    case plan::Outcome::kOutOfTime:
      return SimulatedStep::Outcome::kOutOfTime;
  }
  return SimulatedStep::Outcome::kFits;
}

}  // namespace

struct StepTrace::Contents {
  explicit Contents(plan::Trace read)
      : trace(std::move(read)), simulator(trace), need(simulator.need()) {}

  plan::Trace trace;
  plan::Simulator simulator;
  plan::TraceNeed need;
};

const plan::Trace& detail::StepTraceAccess::trace_of(const StepTrace& trace) {
  return trace.contents_->trace;
}

StepTrace detail::StepTraceAccess::step_trace(plan::Trace trace) {
  return StepTrace(std::make_shared<StepTrace::Contents>(std::move(trace)));
}

StepTrace StepTrace::read(const std::filesystem::path& file) {
  return parse(plan::read_text_file(file, "the trace"), file.string());
}

StepTrace StepTrace::parse(std::string_view text, const std::string& origin) {
  return StepTrace(std::make_shared<Contents>(plan::is_step_json(text)
                                                  ? plan::parse_step_json(text, origin)
                                                  : plan::parse_trace(text, origin)));
}

std::string StepTrace::json() const { return plan::step_json(contents_->trace); }

SimulatedStep StepTrace::simulate(const SimulateOptions& options) const {
  if (options.budget < Bytes(0)) {
    throw UsageError("the budget is " + to_string(options.budget) +
                     ": give bytes of at least zero; the step needs " + to_string(floor()));
  }
  if (!(options.slowdown_limit >= 1)) {
    throw UsageError("the slowdown limit is " + std::to_string(options.slowdown_limit) +
                     ": give a number of at least 1, the time of the plain step");
  }
  if (!(options.time_limit.count() >= 0)) {
    throw UsageError("the time limit is " + std::to_string(options.time_limit.count()) +
                     " s: give at least zero, which is none");
  }
  const auto heuristic = plan::make_heuristic(options.heuristic);
  const plan::SimulationResult result = contents_->simulator.run(
      *heuristic, {.budget = options.budget.count,
                   .search = options.by_index ? plan::Search::kIndex : plan::Search::kExact,
                   .slowdown_limit = options.slowdown_limit,
                   .time_limit = options.time_limit,
                   .seed = options.seed});
  return {.outcome = outcome(result.outcome),
          .slowdown = result.slowdown(),
          .recompute = seconds(result.recompute_nanoseconds),
          .peak = Bytes(result.peak),
          .evictions = result.evictions,
          .recomputations = result.recomputations,
          .events = result.events};
}

std::int64_t StepTrace::operators() const {
  return std::ranges::count_if(contents_->trace.operators,
                               [](const auto& each) { return !each.is_constant; });
}

Seconds StepTrace::base() const { return seconds(contents_->trace.nanoseconds()); }

Bytes StepTrace::plain_peak() const { return Bytes(contents_->need.plain_peak); }
Bytes StepTrace::floor() const { return Bytes(contents_->need.floor); }
Bytes StepTrace::constants() const { return Bytes(contents_->need.constants); }

}  // namespace reprise
