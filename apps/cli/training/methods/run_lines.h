// The lines of the log of a run under a method, as JSON: a head that says what was run and where, a
// line for each step, and an end. docs/command_line.md lists their fields.
#pragma once

#include <c10/core/Device.h>
#include <reprise/bytes.h>
#include <reprise/experimental/pgac.h>

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>

#include "apps/cli/training/methods/method.h"
#include "apps/cli/training/methods/method_run.h"
#include "apps/cli/training/methods/task.h"

namespace reprise::app {

// Zeros where the method has no budget.
struct RunBudget {
  Bytes limit, live;  // all bytes; those live before a step, with the optimizer's moments
  Bytes plain_peak;   // of the plain training step, where the budget is a share of it
};

struct StepLine {
  std::int64_t step = 0;  // counted from 1
  double loss = 0;
  double whole = 0;  // seconds of the step with the optimizer
  StepSeconds seconds;
  std::int64_t units = 0;
  Bytes live, peak;                // before forward; the most during forward and backward
  std::optional<PgacReport> pgac;  // after the step; `wanted` is for the step itself
};

struct RunEnd {
  StepLine last;
  double median_seconds = 0;  // of a step
  Bytes peak;
  Validation validation;
  std::uint64_t weights = 0;
};

nlohmann::ordered_json head_line(const TrainOptions& options, const MethodRun& run,
                                 const Task& task, const RunBudget& budget, c10::Device device);
nlohmann::ordered_json json_of(const StepLine& line);
nlohmann::ordered_json json_of(const RunEnd& end, const TrainOptions& options,
                               const MethodRun& run);

}  // namespace reprise::app
