// The value of `reprise plan --pipeline`: a schedule, its sizes, and what is checkpointed.
#pragma once

#include <reprise/pipeline_schedule.h>

#include <cstdint>
#include <optional>
#include <string>

namespace reprise::app {

struct PipelineChoice {
  std::string schedule;              // empty: the table in `csv`
  std::int64_t stages = 0;           // of the model
  std::int64_t chunks = 0;           // micro-batches
  std::int64_t per_worker = 0;       // stages
  std::string csv;                   // a file with a table
  std::string checkpoint = "never";  // always, except_last, never, or a number of micro-batches

  // Reads "schedule=1f1b,stages=4,chunks=8,checkpoint=except_last,per-worker=1", or
  // "csv=FILE,checkpoint=always". Throws UsageError, naming `option`, for other keys, for keys that
  // are missing, and for values out of bounds.
  static PipelineChoice parse(const std::string& option, const std::string& text);

  // Throws UsageError, also for a table that cannot be run.
  PipelineSchedule make() const;
  // Micro-batches below it are checkpointed.
  std::int64_t checkpoint_stop(const PipelineSchedule& schedule) const;
};

}  // namespace reprise::app
