#include "plan/residency/worker_bytes.h"

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <utility>

#include "plan/pipeline/action_order.h"

namespace reprise::plan {
namespace {

bool gives_gradient(PipelineWork work) {
  return work == PipelineWork::kBackward || work == PipelineWork::kInputGradient;
}

// Which actions of other workers must come after an action: for each action and worker, how many of
// the worker's first actions it follows.
class ActionClocks {
 public:
  ActionClocks(const PipelineSchedule& schedule, const std::vector<PlacedAction>& order)
      : stages_(schedule.stages), micro_batches_(schedule.micro_batches) {
    const std::size_t workers = schedule.workers.size();
    follows_.resize(workers);
    const auto count = static_cast<std::size_t>(stages_ * micro_batches_);
    std::vector<Clock> of_forward(count), of_gradient(count);
    std::vector<Clock> last(workers, Clock(workers));
    for (const PlacedAction& at : order) {
      Clock clock = last[at.worker];
      if (const auto before = needed(at.action)) {
        const Clock& other =
            (at.action.work == PipelineWork::kForward ? of_forward : of_gradient)[*before];
        for (std::size_t i = 0; i < workers; ++i) clock[i] = std::max(clock[i], other[i]);
      }
      ++clock[at.worker];
      if (at.action.work == PipelineWork::kForward) of_forward[index_of(at.action)] = clock;
      if (gives_gradient(at.action.work)) of_gradient[index_of(at.action)] = clock;
      last[at.worker] = clock;
      follows_[at.worker].push_back(std::move(clock));
    }
  }

  // How many of the first actions of `other` may be over before action `place` of `worker` ends.
  std::size_t may_precede(std::size_t worker, std::size_t place, std::size_t other) const {
    if (other == worker) return place;
    const auto& clocks = follows_[other];
    const auto follows = [&](const Clock& clock) { return clock[worker] > place; };
    return static_cast<std::size_t>(
        std::partition_point(clocks.begin(), clocks.end(),
                             [&](const Clock& clock) { return !follows(clock); }) -
        clocks.begin());
  }

 private:
  using Clock = std::vector<std::size_t>;

  std::size_t index_of(const PipelineAction& action) const {
    return static_cast<std::size_t>(action.stage * micro_batches_ + action.micro_batch);
  }
  // The action of the stage beside, by its index.
  std::optional<std::size_t> needed(PipelineAction action) const {
    if (action.work == PipelineWork::kWeightGradient) return {};
    action.stage += action.work == PipelineWork::kForward ? -1 : 1;
    if (action.stage < 0 || action.stage >= stages_) return {};
    return index_of(action);
  }

  const std::int64_t stages_, micro_batches_;
  std::vector<std::vector<Clock>> follows_;  // of each worker's actions
};

// How many of a worker's first actions are a stage's forwards, or make its input gradients.
class StageCounts {
 public:
  StageCounts(const std::vector<PipelineAction>& actions, std::int64_t stage, bool forwards) {
    for (const PipelineAction& action : actions) {
      const bool is_one = action.stage == stage && (forwards ? action.work == PipelineWork::kForward
                                                             : gives_gradient(action.work));
      counts_.push_back(counts_.back() + (is_one ? 1 : 0));
    }
  }
  std::int64_t among(std::size_t first) const { return counts_[first]; }

 private:
  std::vector<std::int64_t> counts_{0};
};

std::vector<ResidentItem> items_of(const std::vector<PipelineAction>& actions) {
  std::vector<ResidentItem> items;
  std::map<std::pair<std::int64_t, std::int64_t>, std::size_t> known;
  for (std::size_t place = 0; place < actions.size(); ++place) {
    const PipelineAction& action = actions[place];
    const auto [found, is_new] =
        known.emplace(std::pair(action.stage, action.micro_batch), items.size());
    if (is_new) items.push_back({action.stage, action.micro_batch, place, place, place});
    ResidentItem& item = items[found->second];
    if (gives_gradient(action.work)) item.backward = place;
    item.end = place;
  }
  return items;
}

}  // namespace

std::vector<Waiting> waiting_in(const PipelineTimeline& timeline, std::int64_t stages) {
  // Tensors are sent and taken in this order; at the same moment, they are sent first.
  struct Change {
    Seconds time;
    std::int64_t count;
  };
  std::vector<std::array<std::vector<Change>, 2>> changes(static_cast<std::size_t>(stages));
  for (const PipelineTimeline::Worker& worker : timeline.workers) {
    for (const PipelineEvent& event : worker.events) {
      const PipelineAction& action = event.action;
      const bool is_forward = action.work == PipelineWork::kForward;
      if (event.recompute || (!is_forward && !gives_gradient(action.work))) continue;
      const std::size_t way = is_forward ? 0 : 1;
      changes[static_cast<std::size_t>(action.stage)][way].push_back({event.begin, -1});
      const std::int64_t to = action.stage + (is_forward ? 1 : -1);
      if (to < 0 || to >= stages) continue;
      changes[static_cast<std::size_t>(to)][way].push_back({event.end, 1});
    }
  }
  std::vector<Waiting> waiting;
  for (auto& of_stage : changes) {
    std::array<std::int64_t, 2> most{};
    for (std::size_t way = 0; way < 2; ++way) {
      std::ranges::sort(of_stage[way], {},
                        [](const Change& change) { return std::pair(change.time, -change.count); });
      std::int64_t now = 0;
      for (const Change& change : of_stage[way])
        most[way] = std::max(most[way], now += change.count);
    }
    waiting.push_back({std::max<std::int64_t>(most[0], 1), std::max<std::int64_t>(most[1], 1)});
  }
  return waiting;
}

std::vector<WorkerActions> actions_of_workers(const PipelineSchedule& schedule,
                                              const std::vector<PipelineStageProfile>& profiles,
                                              const std::vector<Waiting>& most_waiting) {
  const std::vector<PlacedAction> order = in_dependency_order(schedule);
  std::vector<WorkerActions> workers(schedule.workers.size());
  for (const PlacedAction& at : order) workers[at.worker].actions.push_back(at.action);
  const ActionClocks clocks(schedule, order);
  const auto worker_of_stage = schedule.worker_of_stage();
  const auto owner = [&](std::int64_t stage) {
    return static_cast<std::size_t>(worker_of_stage[static_cast<std::size_t>(stage)]);
  };
  for (std::size_t w = 0; w < workers.size(); ++w) {
    workers[w].items = items_of(workers[w].actions);
    workers[w].fixed.assign(workers[w].actions.size(), Bytes(0));
  }
  for (std::int64_t stage = 0; stage < schedule.stages; ++stage) {
    const std::size_t w = owner(stage);
    std::vector<Bytes>& fixed = workers[w].fixed;
    for (Bytes& bytes : fixed) bytes += profiles[static_cast<std::size_t>(stage)].resident;
    // From the stage before, and from the one after.
    for (const bool forwards : {true, false}) {
      const std::int64_t from = stage + (forwards ? -1 : 1);
      if (from < 0 || from >= schedule.stages) continue;
      const Bytes each = profiles[static_cast<std::size_t>(forwards ? stage : from)].input;
      const Waiting& most = most_waiting[static_cast<std::size_t>(stage)];
      const StageCounts sent(workers[owner(from)].actions, from, forwards);
      const StageCounts taken(workers[w].actions, stage, forwards);
      for (std::size_t place = 0; place < fixed.size(); ++place) {
        const std::int64_t waiting =
            sent.among(clocks.may_precede(w, place, owner(from))) - taken.among(place + 1);
        fixed[place] +=
            each * std::clamp<std::int64_t>(waiting, 0, forwards ? most.inputs : most.gradients);
      }
    }
  }
  return workers;
}

WorkerBytes::WorkerBytes(const WorkerActions& worker,
                         const std::vector<PipelineStageProfile>& profiles,
                         std::vector<const PipelineMicroBatch*> plan)
    : worker_(worker), profiles_(profiles), plan_(std::move(plan)), totals_(worker.fixed) {
  for (std::size_t item = 0; item < plan_.size(); ++item) {
    each_place(item, *plan_[item],
               [&](std::size_t place, Bytes bytes) { totals_[place] += bytes; });
  }
}

template <class Use>
void WorkerBytes::each_place(std::size_t item, const PipelineMicroBatch& as, Use&& use) const {
  const ResidentItem& at = worker_.items[item];
  const PipelineStageProfile& profile = profiles_[static_cast<std::size_t>(at.stage)];
  use(at.forward, as.forward_peak);
  for (std::size_t place = at.forward + 1; place < at.backward; ++place) use(place, as.kept);
  use(at.backward, as.backward_peak);
  if (at.end == at.backward) return;
  for (std::size_t place = at.backward + 1; place < at.end; ++place) {
    use(place, profile.kept_for_weights);
  }
  use(at.end, profile.weight_gradient_peak);
}

Bytes WorkerBytes::peak() const { return *std::ranges::max_element(totals_); }

bool WorkerBytes::fits(std::size_t item, const PipelineMicroBatch& other, Bytes bytes) const {
  std::vector<Bytes> change;
  each_place(item, *plan_[item], [&](std::size_t, Bytes now) { change.push_back(-now); });
  std::size_t next = 0;
  bool is_within = true;
  each_place(item, other, [&](std::size_t place, Bytes then) {
    is_within = is_within && totals_[place] + change[next++] + then <= bytes;
  });
  return is_within;
}

void WorkerBytes::set(std::size_t item, const PipelineMicroBatch& other) {
  each_place(item, *plan_[item], [&](std::size_t place, Bytes now) { totals_[place] -= now; });
  plan_[item] = &other;
  each_place(item, other, [&](std::size_t place, Bytes then) { totals_[place] += then; });
}

}  // namespace reprise::plan
