// The timeline of a schedule by the figures of its stages. Times come first, in an order in which
// each action follows what it waits for; memory second, worker by worker, since the arrivals at a
// worker are known only when all times are.
#include <reprise/error.h>

#include <algorithm>

#include "plan/pipeline/action_order.h"
#include "plan/pipeline/checkpointed.h"

namespace reprise::plan {
namespace {

constexpr double kMostSeconds = 1e9;
// The bound of one field: sums over all micro-batches of a schedule then fit.
constexpr Bytes kMostBytes{std::int64_t{1} << 39};

struct CostSeconds {
  const char* name;
  Seconds PipelineStageCosts::*member;
};
constexpr CostSeconds kCostSeconds[] = {
    {"forward", &PipelineStageCosts::forward},
    {"backward", &PipelineStageCosts::backward},
    {"input_gradient", &PipelineStageCosts::input_gradient},
    {"weight_gradient", &PipelineStageCosts::weight_gradient},
    {"recompute", &PipelineStageCosts::recompute},
    {"send", &PipelineStageCosts::send},
};
struct CostBytes {
  const char* name;
  Bytes PipelineStageCosts::*member;
};
constexpr CostBytes kCostBytes[] = {
    {"input", &PipelineStageCosts::input},
    {"saved", &PipelineStageCosts::saved},
    {"saved_for_weights", &PipelineStageCosts::saved_for_weights},
    {"temporaries", &PipelineStageCosts::temporaries},
    {"resident", &PipelineStageCosts::resident},
};

void check_costs(const PipelineSchedule& schedule, const PipelineCosts& costs, bool has_plan) {
  if (std::ssize(costs.stages) != schedule.stages) {
    throw UsageError("simulate: the costs are of " + std::to_string(costs.stages.size()) +
                     " stages, and the schedule has " + std::to_string(schedule.stages) +
                     "; give each stage its costs");
  }
  for (std::size_t i = 0; i < costs.stages.size(); ++i) {
    const PipelineStageCosts& stage = costs.stages[i];
    const std::string where = "simulate: stage " + std::to_string(i) + ": ";
    for (const CostSeconds& each : kCostSeconds) {
      const double value = (stage.*each.member).count();
      if (value >= 0 && value <= kMostSeconds) continue;
      throw UsageError(where + each.name + " is " + std::to_string(value) +
                       "; it must be between 0 and 1e9 seconds");
    }
    for (const CostBytes& each : kCostBytes) {
      const Bytes value = stage.*each.member;
      if (value >= Bytes(0) && value <= kMostBytes) continue;
      throw UsageError(where + each.name + " is " + std::to_string(value.count) +
                       "; it must be between 0 and 2^39 bytes");
    }
    if (!has_plan && stage.saved_for_weights > stage.input + stage.saved) {
      throw UsageError(
          where + "saved_for_weights is " + std::to_string(stage.saved_for_weights.count) +
          ", more than input and saved together, " +
          std::to_string((stage.input + stage.saved).count) + "; it is a part of them");
    }
  }
}

using Plan = std::vector<std::vector<PipelineMicroBatch>>;

void check_plan(const PipelineSchedule& schedule, const Plan& plan) {
  if (plan.empty()) return;
  if (std::ssize(plan) != schedule.stages) {
    throw UsageError("simulate: the plan is of " + std::to_string(plan.size()) +
                     " stages, and the schedule has " + std::to_string(schedule.stages));
  }
  for (std::size_t i = 0; i < plan.size(); ++i) {
    if (std::ssize(plan[i]) == schedule.micro_batches) continue;
    throw UsageError("simulate: the plan of stage " + std::to_string(i) + " is of " +
                     std::to_string(plan[i].size()) + " micro-batches, and the schedule has " +
                     std::to_string(schedule.micro_batches));
  }
}

Seconds time_of(const PipelineStageCosts& stage, PipelineWork work) {
  const bool is_split =
      stage.input_gradient > Seconds::zero() || stage.weight_gradient > Seconds::zero();
  switch (work) {
    case PipelineWork::kForward:
      return stage.forward;
    case PipelineWork::kBackward:
      return stage.backward;
    case PipelineWork::kInputGradient:
      return is_split ? stage.input_gradient : stage.backward / 2;
    case PipelineWork::kWeightGradient:
      break;
  }
  return is_split ? stage.weight_gradient : stage.backward / 2;
}

bool makes_gradient(PipelineWork work) {
  return work == PipelineWork::kBackward || work == PipelineWork::kInputGradient;
}

class PipelineRun {
 public:
  PipelineRun(const PipelineSchedule& schedule, const PipelineCosts& costs,
              const PipelineSimulation& options)
      : schedule_(schedule), costs_(costs), options_(options) {}

  PipelineTimeline make() && {
    const std::vector<PlacedAction> order = in_dependency_order(schedule_);
    const auto count = static_cast<std::size_t>(schedule_.stages * schedule_.micro_batches);
    input_arrives_.assign(count, Seconds::zero());
    gradient_arrives_.assign(count, Seconds::zero());
    free_at_.assign(schedule_.workers.size(), Seconds::zero());
    timeline_.name = schedule_.name;
    timeline_.workers.resize(schedule_.workers.size());
    worker_of_stage_.resize(costs_.stages.size());
    for (const PlacedAction& at : order) {
      worker_of_stage_[static_cast<std::size_t>(at.action.stage)] = at.worker;
    }
    for (const PlacedAction& at : order) run(at);
    for (std::size_t worker = 0; worker < timeline_.workers.size(); ++worker) {
      timeline_.workers[worker].peak = peak_of(worker);
    }
    sum_up();
    return std::move(timeline_);
  }

 private:
  struct Arrival {
    Seconds time;
    Bytes bytes;
  };

  std::size_t index_of(const PipelineAction& action) const {
    return static_cast<std::size_t>(action.stage * schedule_.micro_batches + action.micro_batch);
  }
  const PipelineStageCosts& costs_of(std::int64_t stage) const {
    return costs_.stages[static_cast<std::size_t>(stage)];
  }
  // What the stage does with the micro-batch, as a plan would say it. Besides what other
  // micro-batches keep, the bytes of a micro-batch are the same from forward to backward.
  PipelineMicroBatch micro_batch_of(const PipelineAction& action) const {
    if (!options_.micro_batches.empty()) {
      return options_.micro_batches[static_cast<std::size_t>(action.stage)]
                                   [static_cast<std::size_t>(action.micro_batch)];
    }
    const PipelineStageCosts& stage = costs_of(action.stage);
    const bool is_checkpointed = action.micro_batch < options_.checkpoint_stop;
    const Bytes all = stage.input + stage.saved;
    PipelineMicroBatch each;
    each.kept = is_checkpointed ? stage.input : all;
    each.forward_peak = each.kept + stage.temporaries;
    each.backward_peak = all + stage.temporaries;
    if (is_checkpointed) each.recompute = stage.recompute;
    each.recomputed_layers = is_checkpointed ? 1 : 0;
    return each;
  }
  bool has_neighbour(std::int64_t stage) const { return stage >= 0 && stage < schedule_.stages; }

  // The time between a stage and the next.
  Seconds send_time(std::int64_t first) const {
    const auto at = static_cast<std::size_t>(first);
    return worker_of_stage_[at] == worker_of_stage_[at + 1] ? Seconds::zero()
                                                            : costs_.stages[at].send;
  }

  void run(const PlacedAction& at) {
    const PipelineAction& action = at.action;
    const PipelineStageCosts& stage = costs_of(action.stage);
    Seconds ready{}, time = time_of(stage, action.work);
    if (action.work == PipelineWork::kForward) ready = input_arrives_[index_of(action)];
    if (makes_gradient(action.work)) {
      ready = gradient_arrives_[index_of(action)];
      const PipelineMicroBatch each = micro_batch_of(action);
      const bool is_checkpointed =
          options_.micro_batches.empty() ? each.recomputed_layers > 0 : each.recompute > Seconds(0);
      if (is_checkpointed) {
        add(at, true, options_.recompute_ahead ? Seconds::zero() : ready, each.recompute);
      }
      time += each.recompute_within;
    }
    const Seconds end = add(at, false, ready, time);
    PipelineAction next = action;
    if (action.work == PipelineWork::kForward && has_neighbour(action.stage + 1)) {
      ++next.stage;
      input_arrives_[index_of(next)] = end + send_time(action.stage);
    } else if (makes_gradient(action.work) && has_neighbour(action.stage - 1)) {
      --next.stage;
      gradient_arrives_[index_of(next)] = end + send_time(next.stage);
    }
  }

  // Returns when the event ends.
  Seconds add(const PlacedAction& at, bool recompute, Seconds ready, Seconds time) {
    PipelineTimeline::Worker& worker = timeline_.workers[at.worker];
    const Seconds begin = std::max(free_at_[at.worker], ready);
    worker.events.push_back({at.action, recompute, begin, begin + time});
    worker.busy += time;
    return free_at_[at.worker] = begin + time;
  }

  // The tensor that an action takes from another stage waits at the worker until then.
  Bytes waiting_bytes(const PipelineAction& action) const {
    if (action.work == PipelineWork::kForward) {
      return action.stage > 0 ? costs_of(action.stage).input : Bytes(0);
    }
    const bool has_gradient = makes_gradient(action.work) && has_neighbour(action.stage + 1);
    return has_gradient ? costs_of(action.stage + 1).input : Bytes(0);
  }

  std::vector<Arrival> arrivals_of(const PipelineTimeline::Worker& worker) const {
    std::vector<Arrival> arrivals;
    for (const PipelineEvent& event : worker.events) {
      const Bytes bytes = waiting_bytes(event.action);
      if (event.recompute || bytes == Bytes(0)) continue;
      const bool is_forward = event.action.work == PipelineWork::kForward;
      arrivals.push_back(
          {(is_forward ? input_arrives_ : gradient_arrives_)[index_of(event.action)], bytes});
    }
    std::ranges::stable_sort(arrivals, {}, &Arrival::time);
    return arrivals;
  }

  void sum_up() {
    Seconds busy{};
    for (const PipelineTimeline::Worker& worker : timeline_.workers) {
      busy += worker.busy;
      timeline_.time = std::max(timeline_.time, worker.events.back().end);
    }
    const double whole = static_cast<double>(timeline_.workers.size()) * timeline_.time.count();
    timeline_.bubble = whole > 0 ? std::max(0.0, 1 - busy.count() / whole) : 0;
  }

  Bytes peak_of(std::size_t worker) const {
    const std::vector<PipelineEvent>& events = timeline_.workers[worker].events;
    const std::vector<Arrival> arrivals = arrivals_of(timeline_.workers[worker]);
    auto next = arrivals.begin();
    Bytes held, waiting, peak;
    for (std::size_t i = 0; i < costs_.stages.size(); ++i) {
      if (worker_of_stage_[i] == worker) held += costs_.stages[i].resident;
    }
    for (const PipelineEvent& event : events) {
      const PipelineAction& action = event.action;
      const PipelineStageCosts& stage = costs_of(action.stage);
      while (next != arrivals.end() && next->time <= event.begin) waiting += (next++)->bytes;
      if (!event.recompute) waiting -= waiting_bytes(action);
      const PipelineMicroBatch each = micro_batch_of(action);
      while (next != arrivals.end() && next->time < event.end) waiting += (next++)->bytes;
      Bytes at_once = stage.temporaries;  // W reads what stayed, which is held
      if (action.work == PipelineWork::kForward) at_once = each.forward_peak;
      if (makes_gradient(action.work)) at_once = each.backward_peak - each.kept;
      peak = std::max(peak, held + at_once + waiting);
      if (event.recompute) continue;
      if (action.work == PipelineWork::kForward) held += each.kept;
      if (makes_gradient(action.work)) held -= each.kept;
      if (action.work == PipelineWork::kInputGradient) held += stage.saved_for_weights;
      if (action.work == PipelineWork::kWeightGradient) held -= stage.saved_for_weights;
    }
    return peak;
  }

  const PipelineSchedule& schedule_;
  const PipelineCosts& costs_;
  const PipelineSimulation& options_;
  std::vector<std::size_t> worker_of_stage_;
  std::vector<Seconds> input_arrives_, gradient_arrives_;  // by stage and micro-batch
  std::vector<Seconds> free_at_;                           // of each worker
  PipelineTimeline timeline_;
};

}  // namespace
}  // namespace reprise::plan

namespace reprise {

PipelineCosts PipelineCosts::even(std::int64_t stages) {
  if (stages < 1 || stages > plan::kMostForwards) {
    throw UsageError("PipelineCosts::even: stages is " + std::to_string(stages) +
                     "; it must be between 1 and " + std::to_string(plan::kMostForwards));
  }
  PipelineStageCosts stage;
  stage.forward = stage.recompute = stage.input_gradient = stage.weight_gradient = Seconds(1);
  stage.backward = Seconds(2);
  stage.saved = stage.saved_for_weights = Bytes(1);
  return {std::vector(static_cast<std::size_t>(stages), stage)};
}

PipelineTimeline simulate(const PipelineSchedule& schedule, const PipelineCosts& costs,
                          const PipelineSimulation& options) {
  plan::check_checkpoint_stop("simulate", options.checkpoint_stop);
  plan::check_costs(schedule, costs, !options.micro_batches.empty());
  plan::check_plan(schedule, options.micro_batches);
  return plan::PipelineRun(schedule, costs, options).make();
}

}  // namespace reprise
