// The schedules with one order for all stages of a worker (GPipe, 1F1B, looped breadth-first), and
// the list of all schedules by name.
#include <reprise/error.h>

#include <algorithm>

#include "plan/pipeline/action_order.h"
#include "plan/pipeline/slots.h"

namespace reprise::plan {
namespace {

void check_count(const std::string& name, const char* what, std::int64_t count) {
  if (count >= 1 && count <= kMostForwards) return;
  throw UsageError(name + ": " + what + " is " + std::to_string(count) +
                   "; it must be between 1 and " + std::to_string(kMostForwards));
}

}  // namespace

PipelineSchedule empty_schedule(const std::string& name, std::int64_t workers,
                                std::int64_t stages_per_worker, std::int64_t micro_batches) {
  check_count(name, "workers", workers);
  check_count(name, "stages_per_worker", stages_per_worker);
  check_count(name, "micro_batches", micro_batches);
  if (stages_per_worker > kMostForwards / workers ||
      micro_batches > kMostForwards / (workers * stages_per_worker)) {
    throw UsageError(
        name + ": " + std::to_string(workers) + " workers with " +
        std::to_string(stages_per_worker) + " stages each and " + std::to_string(micro_batches) +
        " micro-batches are too many; the product may be at most " + std::to_string(kMostForwards));
  }
  PipelineSchedule schedule;
  schedule.name = name;
  schedule.stages = workers * stages_per_worker;
  schedule.micro_batches = micro_batches;
  schedule.workers.resize(static_cast<std::size_t>(workers));
  return schedule;
}

}  // namespace reprise::plan

namespace reprise::schedules {

using plan::SlotList;
using enum PipelineWork;

PipelineSchedule gpipe(std::int64_t workers, std::int64_t micro_batches, BackwardOrder order) {
  PipelineSchedule schedule = plan::empty_schedule("gpipe", workers, 1, micro_batches);
  for (std::int64_t worker = 0; worker < workers; ++worker) {
    SlotList list;
    list.idle(worker);
    for (std::int64_t i = 0; i < micro_batches; ++i) list.add(worker, kForward, i);
    list.idle(2 * (workers - 1 - worker));
    for (std::int64_t i = 0; i < micro_batches; ++i) {
      const bool is_descending = order == BackwardOrder::kDescending;
      list.add(worker, kBackward, is_descending ? micro_batches - 1 - i : i);
    }
    schedule.workers[static_cast<std::size_t>(worker)] = std::move(list).take();
  }
  return schedule;
}

PipelineSchedule one_forward_one_backward(std::int64_t workers, std::int64_t micro_batches) {
  PipelineSchedule schedule = plan::empty_schedule("1f1b", workers, 1, micro_batches);
  for (std::int64_t worker = 0; worker < workers; ++worker) {
    // In slots of equal length, forward i of a worker begins at the earliest with slot worker + i,
    // and backward i in slot first + 2 i. All but the first forwards fill the slots between.
    const std::int64_t first = 2 * workers - 1 - worker;
    const std::int64_t ahead = std::min(workers - worker, micro_batches);
    SlotList list;
    list.idle(worker);
    for (std::int64_t i = 0; i < ahead; ++i) list.add(worker, kForward, i);
    list.idle(first - worker - ahead);
    for (std::int64_t i = 0; i < micro_batches; ++i) {
      list.add(worker, kBackward, i);
      if (i + ahead < micro_batches)
        list.add(worker, kForward, i + ahead);
      else if (i + 1 < micro_batches)
        list.idle();
    }
    schedule.workers[static_cast<std::size_t>(worker)] = std::move(list).take();
  }
  return schedule;
}

PipelineSchedule looped_breadth_first(std::int64_t workers, std::int64_t stages_per_worker,
                                      std::int64_t micro_batches) {
  PipelineSchedule schedule =
      plan::empty_schedule("looped-bfs", workers, stages_per_worker, micro_batches);
  for (std::int64_t worker = 0; worker < workers; ++worker) {
    SlotList list;
    list.idle(worker);
    for (std::int64_t stage = worker; stage < schedule.stages; stage += workers) {
      for (std::int64_t i = 0; i < micro_batches; ++i) list.add(stage, kForward, i);
    }
    list.idle(2 * (workers - 1 - worker));
    for (std::int64_t stage = schedule.stages - workers + worker; stage >= 0; stage -= workers) {
      for (std::int64_t i = micro_batches - 1; i >= 0; --i) list.add(stage, kBackward, i);
    }
    schedule.workers[static_cast<std::size_t>(worker)] = std::move(list).take();
  }
  return schedule;
}

namespace {

// 0: any number of stages.
struct NamedSchedule {
  const char* name;
  std::int64_t stages_per_worker;
  PipelineSchedule (*make)(std::int64_t workers, std::int64_t stages_per_worker,
                           std::int64_t micro_batches);
};

constexpr NamedSchedule kNamedSchedules[] = {
    {"gpipe", 1, [](std::int64_t n, std::int64_t, std::int64_t m) { return gpipe(n, m); }},
    {"1f1b", 1,
     [](std::int64_t n, std::int64_t, std::int64_t m) { return one_forward_one_backward(n, m); }},
    {"looped-bfs", 0, looped_breadth_first},
    {"interleaved-1f1b", 0, interleaved_1f1b},
    {"zero-bubble", 0, interleaved_zero_bubble},
    {"zbv", 2, [](std::int64_t n, std::int64_t, std::int64_t m) { return zero_bubble_v(n, m); }},
    {"dualpipev", 2,
     [](std::int64_t n, std::int64_t, std::int64_t m) { return dual_pipe_v(n, m); }},
};

}  // namespace

PipelineSchedule by_name(std::string_view name, std::int64_t workers,
                         std::int64_t stages_per_worker, std::int64_t micro_batches) {
  for (const NamedSchedule& each : kNamedSchedules) {
    if (each.name != name) continue;
    if (each.stages_per_worker != 0 && each.stages_per_worker != stages_per_worker) {
      throw UsageError(std::string(name) + ": stages_per_worker is " +
                       std::to_string(stages_per_worker) + "; this schedule has " +
                       std::to_string(each.stages_per_worker));
    }
    return each.make(workers, stages_per_worker, micro_batches);
  }
  std::string list;
  for (const std::string& each : names()) list += (list.empty() ? "" : ", ") + each;
  throw UsageError("no schedule has the name \"" + std::string(name) + "\"; choose from " + list);
}

const std::vector<std::string>& names() {
  static const std::vector<std::string> result = [] {
    std::vector<std::string> list;
    for (const NamedSchedule& each : kNamedSchedules) list.emplace_back(each.name);
    return list;
  }();
  return result;
}

}  // namespace reprise::schedules
