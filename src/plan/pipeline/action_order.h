// An order in which the actions of a schedule can run, worker beside worker. Checks and simulations
// need the same one: an action comes after all that it waits for.
#pragma once

#include <reprise/pipeline_schedule.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace reprise::plan {

// The most forwards (stages times micro-batches) of a schedule; its tables then take about 1 GB.
inline constexpr std::int64_t kMostForwards = std::int64_t{1} << 22;

struct PlacedAction {
  std::size_t worker = 0, slot = 0;
  PipelineAction action;
};

// Throws PlanError as PipelineSchedule::check().
std::vector<PlacedAction> in_dependency_order(const PipelineSchedule& schedule);

}  // namespace reprise::plan
