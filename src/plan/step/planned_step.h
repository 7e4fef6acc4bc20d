// A script with the figures of its planning, as JSON: what a LearnedPlan (reprise/budget.h) holds.
#pragma once

#include <reprise/bytes.h>

#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

#include "plan/step/step_script.h"

namespace reprise::plan {

struct PlannedStep {
  Bytes limit;
  double slowdown = 1, bound = 1;
  std::shared_ptr<const StepScript> script;  // never null
};

// Throw UsageError "FILE:LINE: FIELD: reason" for a text that is no plan or was changed since it
// was written.
PlannedStep parse_planned_step(std::string_view json, const std::string& origin);
PlannedStep read_planned_step(const std::filesystem::path& file);
std::string json_of(const PlannedStep& step);
// Makes or replaces the file. Throws Error if it cannot be written as a whole.
void write_planned_step(const PlannedStep& step, const std::filesystem::path& file);

}  // namespace reprise::plan
