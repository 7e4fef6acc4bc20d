// Whether a schedule can be run at all: first each action by itself, then which are missing, and
// last the order of all workers together, which finds circles of waits.
#include "plan/pipeline/action_order.h"

#include <reprise/error.h>

#include <deque>
#include <optional>
#include <string>

namespace reprise::plan {
namespace {

constexpr std::int64_t kNoWorker = -1;

// Which actions of one stage and micro-batch there are, or have run.
struct WorkSet {
  bool forward = false, backward = false, input_gradient = false, weight_gradient = false;

  bool& of(PipelineWork work) {
    switch (work) {
      case PipelineWork::kForward:
        return forward;
      case PipelineWork::kBackward:
        return backward;
      case PipelineWork::kInputGradient:
        return input_gradient;
      case PipelineWork::kWeightGradient:
        break;
    }
    return weight_gradient;
  }
  bool has_gradient() const { return backward || input_gradient; }
};

std::string placed_text(const PlacedAction& at) {
  return "worker " + std::to_string(at.worker) + ", slot " + std::to_string(at.slot) + ", " +
         to_string(at.action);
}

[[noreturn]] void refuse_action(const PlacedAction& at, const std::string& reason) {
  throw PlanError(placed_text(at) + ": " + reason);
}

std::string range_text(std::int64_t count) {
  return "the schedule has " + std::to_string(count) + ", from 0";
}

class ActionOrder {
 public:
  explicit ActionOrder(const PipelineSchedule& schedule) : schedule_(schedule) {
    check_sizes();
    sets_.resize(static_cast<std::size_t>(schedule.stages * schedule.micro_batches));
    workers_.resize(static_cast<std::size_t>(schedule.stages), kNoWorker);
    lists_.resize(schedule.workers.size());
    for (std::size_t worker = 0; worker < schedule.workers.size(); ++worker) read(worker);
    check_complete();
  }

  std::vector<PlacedAction> make() && {
    done_.resize(sets_.size());
    next_.resize(lists_.size());
    std::vector<PlacedAction> order;
    std::deque<std::size_t> to_try;
    for (std::size_t worker = 0; worker < lists_.size(); ++worker) to_try.push_back(worker);
    while (!to_try.empty()) {
      const std::size_t worker = to_try.front();
      to_try.pop_front();
      while (const PlacedAction* at = next_of(worker)) {
        if (need_of(at->action)) break;
        set(done_, at->action).of(at->action.work) = true;
        order.push_back(*at);
        ++next_[worker];
        if (const auto waiting = stage_after(at->action)) to_try.push_back(worker_of(*waiting));
      }
    }
    for (std::size_t worker = 0; worker < lists_.size(); ++worker) {
      if (next_of(worker) != nullptr) refuse_circle(worker);
    }
    return order;
  }

 private:
  void check_sizes() const {
    if (schedule_.stages < 1 || schedule_.micro_batches < 1 || schedule_.workers.empty()) {
      throw PlanError("the schedule has " + std::to_string(schedule_.workers.size()) +
                      " workers, " + std::to_string(schedule_.stages) + " stages and " +
                      std::to_string(schedule_.micro_batches) +
                      " micro-batches; it needs at least one of each");
    }
    if (schedule_.micro_batches > kMostForwards / schedule_.stages) {
      throw PlanError("the schedule has " + std::to_string(schedule_.stages) + " stages and " +
                      std::to_string(schedule_.micro_batches) +
                      " micro-batches; their product may be at most " +
                      std::to_string(kMostForwards));
    }
  }

  WorkSet& set(std::vector<WorkSet>& sets, const PipelineAction& action) const {
    return sets[static_cast<std::size_t>(action.stage * schedule_.micro_batches +
                                         action.micro_batch)];
  }

  // Checks each action of a worker against those before it.
  void read(std::size_t worker) {
    const std::vector<PipelineSlot>& slots = schedule_.workers[worker];
    for (std::size_t slot = 0; slot < slots.size(); ++slot) {
      if (slots[slot].size() > 2) {
        throw PlanError("worker " + std::to_string(worker) + ", slot " + std::to_string(slot) +
                        ": it has " + std::to_string(slots[slot].size()) +
                        " actions; at most two may overlap");
      }
      for (const PipelineAction& action : slots[slot]) read({worker, slot, action});
    }
    if (lists_[worker].empty()) {
      throw PlanError("worker " + std::to_string(worker) +
                      " runs no stage; give it one, or leave the worker out");
    }
  }

  void read(const PlacedAction& at) {
    const PipelineAction& action = at.action;
    if (action.stage < 0 || action.stage >= schedule_.stages) {
      refuse_action(
          at, "its stage is " + std::to_string(action.stage) + "; " + range_text(schedule_.stages));
    }
    if (action.micro_batch < 0 || action.micro_batch >= schedule_.micro_batches) {
      refuse_action(at, "its micro-batch is " + std::to_string(action.micro_batch) + "; " +
                            range_text(schedule_.micro_batches));
    }
    std::int64_t& owner = workers_[static_cast<std::size_t>(action.stage)];
    if (owner == kNoWorker) owner = static_cast<std::int64_t>(at.worker);
    if (owner != static_cast<std::int64_t>(at.worker)) {
      refuse_action(at, "worker " + std::to_string(owner) + " runs stage " +
                            std::to_string(action.stage) + "; a stage runs on one worker");
    }
    WorkSet& present = set(sets_, action);
    if (present.of(action.work)) refuse_action(at, "the worker has run it before");
    if (action.work != PipelineWork::kForward && !present.forward) {
      refuse_action(at, "it comes before its forward");
    }
    if (action.work == PipelineWork::kWeightGradient && !present.input_gradient) {
      refuse_action(at, "it comes without an I before it");
    }
    present.of(action.work) = true;
    if (present.backward && present.input_gradient) {
      refuse_action(at, "the micro-batch has both B and I on that stage; B includes I and W");
    }
    lists_[at.worker].push_back(at);
  }

  void check_complete() {
    for (std::int64_t stage = 0; stage < schedule_.stages; ++stage) {
      const std::int64_t owner = workers_[static_cast<std::size_t>(stage)];
      if (owner == kNoWorker) {
        throw PlanError("no worker runs stage " + std::to_string(stage) + "; each stage needs one");
      }
      for (std::int64_t micro_batch = 0; micro_batch < schedule_.micro_batches; ++micro_batch) {
        const WorkSet& present = set(sets_, {.stage = stage, .micro_batch = micro_batch});
        const auto refuse = [&](PipelineWork work, const char* instead = "") {
          throw PlanError("worker " + std::to_string(owner) + " has no " +
                          to_string(PipelineAction{stage, work, micro_batch}) + instead +
                          ", which every micro-batch needs on every stage");
        };
        if (!present.forward) refuse(PipelineWork::kForward);
        if (!present.has_gradient()) refuse(PipelineWork::kBackward, " (or I and W)");
        if (present.input_gradient && !present.weight_gradient)
          refuse(PipelineWork::kWeightGradient);
      }
    }
  }

  const PlacedAction* next_of(std::size_t worker) const {
    const std::vector<PlacedAction>& list = lists_[worker];
    return next_[worker] < list.size() ? &list[next_[worker]] : nullptr;
  }

  std::size_t worker_of(std::int64_t stage) const {
    return static_cast<std::size_t>(workers_[static_cast<std::size_t>(stage)]);
  }

  // The action of another stage that has to run before this one and has not.
  std::optional<PipelineAction> need_of(const PipelineAction& action) {
    if (action.work == PipelineWork::kForward) {
      if (action.stage == 0) return std::nullopt;
      const PipelineAction before{action.stage - 1, action.work, action.micro_batch};
      if (set(done_, before).forward) return std::nullopt;
      return before;
    }
    if (action.work == PipelineWork::kWeightGradient || action.stage + 1 == schedule_.stages) {
      return std::nullopt;
    }
    PipelineAction after{action.stage + 1, PipelineWork::kBackward, action.micro_batch};
    if (set(done_, after).has_gradient()) return std::nullopt;
    if (!set(sets_, after).backward) after.work = PipelineWork::kInputGradient;
    return after;
  }

  // The stage whose actions may wait for this one.
  std::optional<std::int64_t> stage_after(const PipelineAction& action) const {
    if (action.work == PipelineWork::kWeightGradient) return std::nullopt;
    const std::int64_t stage = action.stage + (action.work == PipelineWork::kForward ? 1 : -1);
    if (stage < 0 || stage >= schedule_.stages) return std::nullopt;
    return stage;
  }

  // Follows the waits from that worker until a worker is met again, and names those of the circle.
  [[noreturn]] void refuse_circle(std::size_t worker) {
    std::vector<bool> is_met(lists_.size());
    while (!is_met[worker]) {
      is_met[worker] = true;
      worker = worker_of(need_of(next_of(worker)->action)->stage);
    }
    std::string text = "the schedule stops in a circle of waits: ";
    std::size_t at = worker;
    do {
      const PlacedAction& waiting = *next_of(at);
      const PipelineAction need = *need_of(waiting.action);
      if (at != worker) text += "; ";
      text += placed_text(waiting) + " waits for " + to_string(need) + " of worker ";
      at = worker_of(need.stage);
      text += std::to_string(at);
    } while (at != worker);
    throw PlanError(text + "; each comes later in its worker's list: move one of them ahead");
  }

  const PipelineSchedule& schedule_;
  std::vector<WorkSet> sets_, done_;   // of each stage and micro-batch
  std::vector<std::int64_t> workers_;  // of each stage
  std::vector<std::vector<PlacedAction>> lists_;
  std::vector<std::size_t> next_;  // of each list
};

}  // namespace

std::vector<PlacedAction> in_dependency_order(const PipelineSchedule& schedule) {
  return ActionOrder(schedule).make();
}

}  // namespace reprise::plan
