// The schedules whose stages lie like a V on the workers: worker 0 has the first stage and the last,
// and the turn is on the last worker. Each is a fixed row of phases, with a counter for each kind of
// action.
#include <reprise/error.h>

#include <algorithm>
#include <array>
#include <deque>
#include <utility>

#include "plan/pipeline/slots.h"

namespace reprise::plan {
namespace {

using enum PipelineWork;

// The two stages of one worker: `down` from the input to the turn, `up` from there to the loss.
enum class Leg : std::size_t { kDown, kUp };

class VList {
 public:
  // Micro-batches from `micro_batches` on are left out: their slots are idle.
  VList(std::int64_t workers, std::int64_t worker, std::int64_t micro_batches)
      : stages_{worker, 2 * workers - 1 - worker}, micro_batches_(micro_batches) {}

  void idle(std::int64_t count) { list_.idle(count); }
  // The next micro-batch of that kind of work.
  void add(Leg leg, PipelineWork work) {
    const PipelineAction action = next(leg, work);
    if (action.micro_batch < micro_batches_)
      list_.add({action});
    else
      list_.idle();
  }
  void overlap(Leg forward, Leg backward) {
    const PipelineAction first = next(forward, kForward);
    list_.add({first, next(backward, kBackward)});
  }
  // The oldest input gradient whose weight gradient has not been added; nothing if there is none.
  void add_oldest_weights() {
    if (waiting_.empty()) return;
    const PipelineAction oldest = waiting_.front();
    waiting_.pop_front();
    list_.add({{oldest.stage, kWeightGradient, oldest.micro_batch}});
  }

  std::int64_t count(Leg leg, PipelineWork work) const {
    return counts_[static_cast<std::size_t>(leg)][slot_of(work)];
  }
  std::vector<PipelineSlot> take() && { return std::move(list_).take(); }

 private:
  // B and I take their micro-batches from one counter.
  static std::size_t slot_of(PipelineWork work) {
    return static_cast<std::size_t>(work == kBackward ? kInputGradient : work);
  }

  PipelineAction next(Leg leg, PipelineWork work) {
    const auto at = static_cast<std::size_t>(leg);
    const PipelineAction action{stages_[at], work, counts_[at][slot_of(work)]++};
    if (work == kInputGradient) waiting_.push_back(action);
    return action;
  }

  const std::array<std::int64_t, 2> stages_;
  const std::int64_t micro_batches_;
  std::array<std::array<std::int64_t, 4>, 2> counts_{};
  std::deque<PipelineAction> waiting_;
  SlotList list_;
};

std::vector<PipelineSlot> zero_bubble_v_list(std::int64_t workers, std::int64_t worker,
                                             std::int64_t micro_batches) {
  using enum Leg;
  // The phases need enough micro-batches to fill the pipeline; those too many are left out.
  const std::int64_t full = std::max(2 * workers - 1, micro_batches);
  const std::int64_t behind = workers - worker;
  VList list(workers, worker, micro_batches);
  const auto add_gradients = [&](Leg leg) {
    list.add(leg, kInputGradient);
    list.add(leg, kWeightGradient);
  };
  list.idle(worker);
  for (std::int64_t i = 0; i < 2 * behind - 1; ++i) list.add(kDown, kForward);
  for (std::int64_t i = 0; i < worker; ++i) {
    list.add(kUp, kForward);
    list.add(kDown, kForward);
  }
  for (std::int64_t i = 0; i < behind; ++i) {
    list.add(kUp, kForward);
    add_gradients(kUp);
  }
  while (list.count(kUp, kForward) < full) {
    if (list.count(kDown, kForward) < full) list.add(kDown, kForward);
    add_gradients(kDown);
    list.add(kUp, kForward);
    add_gradients(kUp);
  }
  for (std::int64_t i = 0; i < worker; ++i) {
    list.add(kDown, kInputGradient);
    list.add(kUp, kInputGradient);
  }
  for (std::int64_t i = 0; i < behind; ++i) add_gradients(kDown);
  for (const Leg leg : {kUp, kDown}) {
    while (list.count(leg, kWeightGradient) < list.count(leg, kInputGradient)) {
      list.add(leg, kWeightGradient);
    }
  }
  return std::move(list).take();
}

std::vector<PipelineSlot> dual_pipe_v_list(std::int64_t workers, std::int64_t worker,
                                           std::int64_t micro_batches) {
  using enum Leg;
  const std::int64_t behind = workers - 1 - worker;
  VList list(workers, worker, micro_batches);
  for (std::int64_t i = 0; i < 2 * behind; ++i) list.add(kDown, kForward);
  for (std::int64_t i = 0; i <= worker; ++i) {
    list.add(kDown, kForward);
    list.add(kUp, kForward);
  }
  for (std::int64_t i = 0; i < behind; ++i) {
    list.add(kUp, kInputGradient);
    list.add_oldest_weights();
    list.add(kUp, kForward);
  }
  // The phase that lasts longest.
  const std::int64_t steady = micro_batches - 2 * workers + worker + 1;
  for (std::int64_t i = 0; i < steady; ++i) {
    if (i == 0 && behind == 0) {
      // At the turn, the first pair does not overlap, so that the backward is not delayed.
      list.add(kDown, kForward);
      list.add(kUp, kBackward);
    } else {
      list.overlap(kDown, kUp);
    }
    list.overlap(kUp, kDown);
  }
  for (std::int64_t i = 0; i < behind; ++i) {
    list.add(kUp, kBackward);
    list.overlap(kUp, kDown);
  }
  // The backwards that are left: from the middle on, weight gradients are put off. Odd workers
  // change over before the pair, even ones within it.
  const std::int64_t middle = (worker + 1) / 2;
  for (std::int64_t i = 0; i <= worker; ++i) {
    const bool is_after = i > middle;
    list.add(kUp, is_after || (i == middle && worker % 2 == 1) ? kInputGradient : kBackward);
    list.add(kDown, is_after || i == middle ? kInputGradient : kBackward);
  }
  for (std::int64_t i = 0; i < behind; ++i) {
    list.add_oldest_weights();
    list.add(kDown, kInputGradient);
  }
  for (std::int64_t i = 0; i <= worker; ++i) list.add_oldest_weights();
  return std::move(list).take();
}

}  // namespace
}  // namespace reprise::plan

namespace reprise::schedules {

PipelineSchedule zero_bubble_v(std::int64_t workers, std::int64_t micro_batches) {
  PipelineSchedule schedule = plan::empty_schedule("zbv", workers, 2, micro_batches);
  for (std::int64_t worker = 0; worker < workers; ++worker) {
    schedule.workers[static_cast<std::size_t>(worker)] =
        plan::zero_bubble_v_list(workers, worker, micro_batches);
  }
  return schedule;
}

PipelineSchedule dual_pipe_v(std::int64_t workers, std::int64_t micro_batches) {
  PipelineSchedule schedule = plan::empty_schedule("dualpipev", workers, 2, micro_batches);
  if (micro_batches < schedule.stages) {
    throw UsageError("dualpipev: micro_batches is " + std::to_string(micro_batches) +
                     "; it must be at least the number of stages, " +
                     std::to_string(schedule.stages));
  }
  for (std::int64_t worker = 0; worker < workers; ++worker) {
    schedule.workers[static_cast<std::size_t>(worker)] =
        plan::dual_pipe_v_list(workers, worker, micro_batches);
  }
  return schedule;
}

}  // namespace reprise::schedules
