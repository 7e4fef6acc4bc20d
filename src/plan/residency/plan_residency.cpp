// Gives each stage and micro-batch one of the stage's choices.
#include <reprise/error.h>
#include <reprise/planners.h>

#include <algorithm>
#include <numeric>
#include <string>
#include <utility>

#include "plan/residency/stage_choices.h"
#include "plan/residency/worker_bytes.h"

namespace reprise::plan {
namespace {

// Steps of kept bytes, and of bytes of the backward, between the least and the most of a stage.
constexpr std::int64_t kShares = 8;
// The simulation chooses one of so many plans of a worker.
constexpr std::size_t kMostPlans = 6;

using Choices = std::vector<std::vector<StageChoice>>;  // of each stage

// For each item of a worker, its choice.
struct WorkerPlan {
  std::vector<std::size_t> choice;
  Seconds recompute{};

  bool operator==(const WorkerPlan&) const = default;
};

class WorkerPlanner {
 public:
  WorkerPlanner(const WorkerActions& worker, const std::vector<PipelineStageProfile>& profiles,
                const Choices& choices, Bytes bytes)
      : worker_(worker), profiles_(profiles), choices_(choices), bytes_(bytes) {}

  // The best ones, from the least recomputation on; none if no plan fits.
  std::vector<WorkerPlan> plans() {
    for (const WorkerPlan& start : starts()) {
      WorkerBytes within(worker_, profiles_, pointers(start.choice));
      least_ = std::min(least_, within.peak());
      if (within.peak() > bytes_) continue;
      for (const bool by_backward : {false, true}) add(upgraded(start, within, by_backward));
    }
    return std::move(found_);
  }
  // The least peak of the plans that were tried.
  Bytes least() const { return least_; }

 private:
  const std::vector<StageChoice>& choices_of_item(std::size_t item) const {
    return choices_[static_cast<std::size_t>(worker_.items[item].stage)];
  }

  std::vector<const PipelineMicroBatch*> pointers(const std::vector<std::size_t>& choice) const {
    std::vector<const PipelineMicroBatch*> all;
    for (std::size_t item = 0; item < choice.size(); ++item) {
      all.push_back(&choices_of_item(item)[choice[item]].micro_batch);
    }
    return all;
  }

  // Plans in which all micro-batches of a stage have the same choice: the fastest within a share of
  // the stage's kept bytes and one of its backward's.
  std::vector<WorkerPlan> starts() const {
    std::vector<WorkerPlan> all;
    for (std::int64_t kept = 0; kept <= kShares; ++kept) {
      for (std::int64_t peak = 0; peak <= kShares; ++peak) {
        WorkerPlan plan;
        std::vector<std::size_t> of_stage;
        for (const auto& choices : choices_) of_stage.push_back(within_shares(choices, kept, peak));
        for (const ResidentItem& item : worker_.items) {
          plan.choice.push_back(of_stage[static_cast<std::size_t>(item.stage)]);
        }
        if (std::ranges::find(all, plan) == all.end()) all.push_back(std::move(plan));
      }
    }
    return all;
  }

  static std::size_t within_shares(const std::vector<StageChoice>& choices, std::int64_t kept,
                                   std::int64_t peak) {
    const auto limit = [&](Bytes PipelineMicroBatch::*member, std::int64_t share) {
      const auto of = [&](const StageChoice& each) { return each.micro_batch.*member; };
      const Bytes least = of(*std::ranges::min_element(choices, {}, of));
      const Bytes most = of(*std::ranges::max_element(choices, {}, of));
      return least + Bytes((most - least).count * share / kShares);
    };
    const Bytes most_kept = limit(&PipelineMicroBatch::kept, kept);
    const Bytes most_peak = limit(&PipelineMicroBatch::backward_peak, peak);
    for (std::size_t i = 0; i < choices.size(); ++i) {
      const PipelineMicroBatch& each = choices[i].micro_batch;
      if (each.kept <= most_kept && each.backward_peak <= most_peak) return i;
    }
    const auto least = std::ranges::min_element(choices, {}, [](const StageChoice& each) {
      return std::pair(each.micro_batch.kept, each.micro_batch.backward_peak);
    });
    return static_cast<std::size_t>(least - choices.begin());
  }

  // Each item in turn gets the fastest choice for which there is room.
  WorkerPlan upgraded(WorkerPlan plan, WorkerBytes within, bool by_backward) const {
    std::vector<std::size_t> order(worker_.items.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    if (by_backward) {
      std::ranges::stable_sort(order, {},
                               [&](std::size_t item) { return worker_.items[item].backward; });
    }
    for (const std::size_t item : order) {
      const auto& choices = choices_of_item(item);
      for (std::size_t i = 0; i < plan.choice[item]; ++i) {
        if (!within.fits(item, choices[i].micro_batch, bytes_)) continue;
        within.set(item, choices[i].micro_batch);
        plan.choice[item] = i;
        break;
      }
    }
    for (std::size_t item = 0; item < plan.choice.size(); ++item) {
      plan.recompute += choices_of_item(item)[plan.choice[item]].recompute();
    }
    return plan;
  }

  void add(WorkerPlan plan) {
    if (std::ranges::find(found_, plan) != found_.end()) return;
    const auto after = std::ranges::upper_bound(found_, plan.recompute, {}, &WorkerPlan::recompute);
    found_.insert(after, std::move(plan));
    if (found_.size() > kMostPlans) found_.pop_back();
  }

  const WorkerActions& worker_;
  const std::vector<PipelineStageProfile>& profiles_;
  const Choices& choices_;
  const Bytes bytes_;
  Bytes least_ = kUnlimited;
  std::vector<WorkerPlan> found_;
};

// The plan says what is kept.
PipelineCosts costs_of(const std::vector<PipelineStageProfile>& profiles) {
  PipelineCosts costs;
  for (const PipelineStageProfile& profile : profiles) {
    PipelineStageCosts& stage = costs.stages.emplace_back();
    stage.forward = profile.layers.forward();
    stage.backward = profile.layers.backward();
    stage.input_gradient = profile.input_gradient;
    stage.weight_gradient = profile.weight_gradient;
    stage.send = profile.send;
    stage.input = profile.input;
    stage.saved_for_weights = profile.kept_for_weights;
    stage.temporaries = std::max(profile.weight_gradient_peak - profile.kept_for_weights, Bytes(0));
    stage.resident = profile.resident;
  }
  return costs;
}

std::vector<Bytes> bytes_of_workers(const std::vector<Bytes>& bytes, std::size_t workers) {
  if (bytes.empty()) return std::vector<Bytes>(workers, kUnlimited);
  if (bytes.size() == 1) return std::vector<Bytes>(workers, bytes.front());
  if (bytes.size() == workers) return bytes;
  throw UsageError("Pipeline: bytes has " + std::to_string(bytes.size()) + " numbers for the " +
                   std::to_string(workers) + " workers; give one for all, or one for each worker");
}

[[noreturn]] void refuse_worker(const PipelineSchedule& schedule, std::size_t worker, Bytes bytes,
                                Bytes resident, Bytes least) {
  std::string stages;
  const auto worker_of_stage = schedule.worker_of_stage();
  for (std::size_t s = 0; s < worker_of_stage.size(); ++s) {
    if (worker_of_stage[s] != static_cast<std::int64_t>(worker)) continue;
    stages += (stages.empty() ? "" : ", ") + std::to_string(s);
  }
  throw BudgetError("Pipeline: stage " + stages + " on worker " + std::to_string(worker) +
                    " cannot fit in " + std::to_string(bytes.count) + " bytes (" +
                    to_string(bytes) + "): it needs at least " + std::to_string(least.count) +
                    " (" + to_string(least) + "), " + to_string(resident) +
                    " of them for parameters, their gradients and buffers; give it as many, move "
                    "layers to other stages, or use more and smaller micro-batches");
}

class ResidencyPlanner {
 public:
  ResidencyPlanner(const PipelineSchedule& schedule,
                   const std::vector<PipelineStageProfile>& profiles,
                   const std::vector<Bytes>& bytes)
      : schedule_(schedule),
        profiles_(profiles),
        bytes_(bytes_of_workers(bytes, schedule.workers.size())),
        costs_(costs_of(profiles)),
        waiting_(
            waiting_in(simulate(schedule, PipelineCosts::even(schedule.stages)), schedule.stages)),
        workers_(actions_of_workers(schedule, profiles, waiting_)) {
    for (const PipelineStageProfile& profile : profiles) {
      choices_.push_back(choices_of(profile, is_split()));
    }
  }

  PipelineResidency make() {
    std::vector<std::vector<WorkerPlan>> plans;
    for (std::size_t w = 0; w < workers_.size(); ++w) {
      WorkerPlanner planner(workers_[w], profiles_, choices_, bytes_[w]);
      plans.push_back(planner.plans());
      if (plans.back().empty()) refuse(w, planner.least());
    }
    std::vector<std::size_t> best(plans.size());
    PipelineTimeline timeline = simulated(plans, best);
    // Worker by worker: recomputation that the others wait for costs more than such as fills a gap.
    for (std::size_t w = 0; w < plans.size(); ++w) {
      for (std::size_t i = 1; i < plans[w].size(); ++i) {
        std::vector<std::size_t> other = best;
        other[w] = i;
        PipelineTimeline with_other = simulated(plans, other);
        if (with_other.time >= timeline.time) continue;
        timeline = std::move(with_other);
        best = std::move(other);
      }
    }
    return residency_of(plans, best, std::move(timeline));
  }

 private:
  bool is_split() const {
    return std::ranges::any_of(workers_, [](const WorkerActions& worker) {
      return std::ranges::any_of(worker.actions, [](const PipelineAction& action) {
        return action.work == PipelineWork::kWeightGradient;
      });
    });
  }

  [[noreturn]] void refuse(std::size_t worker, Bytes least) const {
    Bytes resident;
    const auto worker_of_stage = schedule_.worker_of_stage();
    for (std::size_t s = 0; s < profiles_.size(); ++s) {
      if (worker_of_stage[s] == static_cast<std::int64_t>(worker))
        resident += profiles_[s].resident;
    }
    refuse_worker(schedule_, worker, bytes_[worker], resident, least);
  }

  PipelineTimeline simulated(const std::vector<std::vector<WorkerPlan>>& plans,
                             const std::vector<std::size_t>& which) const {
    PipelineSimulation options;
    options.micro_batches.assign(
        profiles_.size(),
        std::vector<PipelineMicroBatch>(static_cast<std::size_t>(schedule_.micro_batches)));
    for (std::size_t w = 0; w < plans.size(); ++w) {
      const WorkerPlan& plan = plans[w][which[w]];
      for (std::size_t item = 0; item < plan.choice.size(); ++item) {
        const ResidentItem& at = workers_[w].items[item];
        const auto stage = static_cast<std::size_t>(at.stage);
        options.micro_batches[stage][static_cast<std::size_t>(at.micro_batch)] =
            choices_[stage][plan.choice[item]].micro_batch;
      }
    }
    return simulate(schedule_, costs_, options);
  }

  PipelineResidency residency_of(const std::vector<std::vector<WorkerPlan>>& plans,
                                 const std::vector<std::size_t>& best, PipelineTimeline timeline) {
    PipelineResidency residency;
    residency.timeline = std::move(timeline);
    residency.bytes = bytes_;
    const auto worker_of_stage = schedule_.worker_of_stage();
    for (std::size_t s = 0; s < profiles_.size(); ++s) {
      PipelineResidency::Stage& stage = residency.stages.emplace_back();
      stage.worker = worker_of_stage[s];
      stage.most_inputs_waiting = waiting_[s].inputs;
      stage.most_gradients_waiting = waiting_[s].gradients;
      stage.choice_of.assign(static_cast<std::size_t>(schedule_.micro_batches), 0);
    }
    for (std::size_t w = 0; w < plans.size(); ++w) {
      const WorkerPlan& plan = plans[w][best[w]];
      std::vector<const PipelineMicroBatch*> used;
      for (std::size_t item = 0; item < plan.choice.size(); ++item) {
        const ResidentItem& at = workers_[w].items[item];
        const StageChoice& choice = choices_[static_cast<std::size_t>(at.stage)][plan.choice[item]];
        used.push_back(&choice.micro_batch);
        note(residency.stages[static_cast<std::size_t>(at.stage)], at.micro_batch, choice);
      }
      residency.peaks.push_back(WorkerBytes(workers_[w], profiles_, std::move(used)).peak());
      residency.timeline.workers[w].peak = residency.peaks.back();
    }
    return residency;
  }

  static void note(PipelineResidency::Stage& stage, std::int64_t micro_batch,
                   const StageChoice& choice) {
    const auto found = std::ranges::find(stage.schedules, choice.schedule);
    stage.choice_of[static_cast<std::size_t>(micro_batch)] = found - stage.schedules.begin();
    if (found != stage.schedules.end()) return;
    stage.schedules.push_back(choice.schedule);
    stage.choices.push_back(choice.micro_batch);
  }

  const PipelineSchedule& schedule_;
  const std::vector<PipelineStageProfile>& profiles_;
  const std::vector<Bytes> bytes_;
  const PipelineCosts costs_;
  const std::vector<Waiting> waiting_;  // of each stage
  const std::vector<WorkerActions> workers_;
  Choices choices_;
};

}  // namespace
}  // namespace reprise::plan

namespace reprise {

PipelineResidency plan_residency(const PipelineSchedule& schedule,
                                 const std::vector<PipelineStageProfile>& profiles,
                                 const std::vector<Bytes>& bytes) {
  if (static_cast<std::int64_t>(profiles.size()) != schedule.stages) {
    throw UsageError("plan_residency: there are profiles of " + std::to_string(profiles.size()) +
                     " stages, and the schedule has " + std::to_string(schedule.stages) +
                     "; give each stage its profile");
  }
  for (const PipelineStageProfile& profile : profiles) profile.layers.check();
  return plan::ResidencyPlanner(schedule, profiles, bytes).make();
}

}  // namespace reprise
