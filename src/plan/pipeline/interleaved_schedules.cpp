// Interleaved 1F1B, with whole backwards or with input and weight gradients apart. Each worker has
// several stages, and micro-batches pass them in rounds: a round passes the worker's first stage,
// then its second, and so on.
#include <reprise/error.h>

#include <algorithm>
#include <utility>

#include "plan/pipeline/slots.h"

namespace reprise::plan {

std::int64_t micro_batches_of_round(const std::string& name, std::int64_t workers,
                                    std::int64_t micro_batches) {
  const std::int64_t rounds = std::max(std::int64_t{1}, micro_batches / workers);
  if (micro_batches % rounds != 0) {
    throw UsageError(name + ": micro_batches is " + std::to_string(micro_batches) + "; with " +
                     std::to_string(workers) + " workers it must be a multiple of " +
                     std::to_string(rounds) + ", the number of rounds: take " +
                     std::to_string(micro_batches - micro_batches % rounds) + " or " +
                     std::to_string(micro_batches - micro_batches % rounds + rounds));
  }
  return micro_batches / rounds;
}

namespace {

// The forwards of a worker in order, and in the opposite order of stages its backwards.
class InterleavedOrder {
 public:
  InterleavedOrder(const PipelineSchedule& schedule, std::int64_t worker, std::int64_t round)
      : workers_(std::ssize(schedule.workers)),
        worker_(worker),
        passes_(schedule.stages / workers_),
        round_(round) {}

  PipelineAction forward(std::int64_t i) const {
    return action(pass_of(i), PipelineWork::kForward, i);
  }
  PipelineAction backward(PipelineWork work, std::int64_t i) const {
    return action(passes_ - 1 - pass_of(i), work, i);
  }

 private:
  std::int64_t pass_of(std::int64_t i) const { return i / round_ % passes_; }

  PipelineAction action(std::int64_t pass, PipelineWork work, std::int64_t i) const {
    const std::int64_t micro_batch = i / (round_ * passes_) * round_ + i % round_;
    return {pass * workers_ + worker_, work, micro_batch};
  }

  const std::int64_t workers_, worker_, passes_, round_;
};

// The forwards before the first backward: enough for the round to come back from the last stage,
// `hop` more for each worker behind this one.
std::int64_t forwards_ahead(const PipelineSchedule& schedule, std::int64_t worker,
                            std::int64_t round, std::int64_t hop) {
  const std::int64_t workers = std::ssize(schedule.workers);
  const std::int64_t passes = schedule.stages / workers;
  return std::min((passes - 1) * round + hop * (workers - 1 - worker),
                  passes * schedule.micro_batches);
}

// Inserts idle slots where a forward would run before that of the stage before, if all actions took
// one slot. Needed only when all micro-batches are one round.
void delay_forwards(PipelineSchedule& schedule) {
  std::vector<std::vector<PipelineSlot>> result(schedule.workers.size());
  std::vector<std::size_t> next(schedule.workers.size());
  std::vector<bool> has_run(
      static_cast<std::size_t>(schedule.stages * schedule.micro_batches));  // of each forward
  const auto index_of = [&](const PipelineAction& action) {
    return static_cast<std::size_t>(action.stage * schedule.micro_batches + action.micro_batch);
  };
  for (bool is_done = false; !is_done;) {
    is_done = true;
    std::vector<std::size_t> running;
    for (std::size_t worker = 0; worker < result.size(); ++worker) {
      const std::vector<PipelineSlot>& slots = schedule.workers[worker];
      if (next[worker] == slots.size()) continue;
      is_done = false;
      const PipelineSlot& slot = slots[next[worker]];
      if (!slot.empty() && slot[0].work == PipelineWork::kForward) {
        const std::size_t index = index_of(slot[0]);
        if (slot[0].stage > 0 &&
            !has_run[index - static_cast<std::size_t>(schedule.micro_batches)]) {
          result[worker].emplace_back();
          continue;
        }
        running.push_back(index);
      }
      result[worker].push_back(slot);
      ++next[worker];
    }
    for (const std::size_t index : running) has_run[index] = true;
  }
  schedule.workers = std::move(result);
}

}  // namespace
}  // namespace reprise::plan

namespace reprise::schedules {

using enum PipelineWork;

PipelineSchedule interleaved_1f1b(std::int64_t workers, std::int64_t stages_per_worker,
                                  std::int64_t micro_batches) {
  PipelineSchedule schedule =
      plan::empty_schedule("interleaved-1f1b", workers, stages_per_worker, micro_batches);
  const std::int64_t round = plan::micro_batches_of_round(schedule.name, workers, micro_batches);
  const std::int64_t count = stages_per_worker * micro_batches;
  for (std::int64_t worker = 0; worker < workers; ++worker) {
    const plan::InterleavedOrder order(schedule, worker, round);
    const std::int64_t ahead = plan::forwards_ahead(schedule, worker, round, 2);
    plan::SlotList list;
    list.idle(worker);
    for (std::int64_t i = 0; i < ahead; ++i) list.add({order.forward(i)});
    if (ahead > 0) list.idle(schedule.stages + 2 * (workers - 1 - worker) - ahead - worker);
    for (std::int64_t i = 0; i < count; ++i) {
      if (ahead + i < count)
        list.add({order.forward(ahead + i)});
      else
        list.idle();
      list.add({order.backward(kBackward, i)});
    }
    schedule.workers[static_cast<std::size_t>(worker)] = std::move(list).take();
  }
  return schedule;
}

PipelineSchedule interleaved_zero_bubble(std::int64_t workers, std::int64_t stages_per_worker,
                                         std::int64_t micro_batches) {
  PipelineSchedule schedule =
      plan::empty_schedule("zero-bubble", workers, stages_per_worker, micro_batches);
  const std::int64_t round = plan::micro_batches_of_round(schedule.name, workers, micro_batches);
  const std::int64_t count = stages_per_worker * micro_batches;
  for (std::int64_t worker = 0; worker < workers; ++worker) {
    const plan::InterleavedOrder order(schedule, worker, round);
    const std::int64_t ahead = plan::forwards_ahead(schedule, worker, round, 1);
    plan::SlotList list;
    list.idle(worker);
    for (std::int64_t i = 0; i < ahead; ++i) list.add({order.forward(i)});
    if (ahead > 0) list.idle(workers - 1 - worker);
    // Weight gradients follow their input gradients by `worker` places, so that all workers hold
    // about as many activations.
    for (std::int64_t i = 0; i < count; ++i) {
      if (ahead + i < count) list.add({order.forward(ahead + i)});
      list.add({order.backward(kInputGradient, i)});
      if (i >= worker) list.add({order.backward(kWeightGradient, i - worker)});
    }
    for (std::int64_t i = std::max(std::int64_t{0}, count - worker); i < count; ++i) {
      list.add({order.backward(kWeightGradient, i)});
    }
    schedule.workers[static_cast<std::size_t>(worker)] = std::move(list).take();
  }
  plan::delay_forwards(schedule);
  return schedule;
}

}  // namespace reprise::schedules
