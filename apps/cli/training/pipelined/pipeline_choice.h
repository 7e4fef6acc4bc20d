// A pipeline as a user writes it: a schedule, its sizes, what is checkpointed, and where the model is
// cut. `reprise plan` only plans it; `train` and `compare` run it.
#pragma once

#include <reprise/pipeline_schedule.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace reprise::app {

struct PipelineChoice {
  std::string text;                  // as it was written
  std::string schedule;              // empty: the table in `csv`
  std::int64_t stages = 0;           // of the model
  std::int64_t chunks = 0;           // micro-batches
  std::int64_t per_worker = 0;       // stages
  std::string csv;                   // a file with a table
  std::string checkpoint = "never";  // always, except_last, never, or a number of micro-batches
  // Only a pipeline that runs has one: time, bytes, or the layers of each stage ("3+4").
  std::string balance;

  // Reads "schedule=1f1b,stages=4,chunks=8,checkpoint=except_last,per-worker=1", or
  // "csv=FILE,checkpoint=always". Throws UsageError, naming `option`, for other keys, for keys that
  // are missing, and for values out of bounds.
  static PipelineChoice parse(const std::string& option, const std::string& text);
  // The same of a pipeline that is to run: also "balance=3+4". The schedule is 1f1b, the last
  // micro-batch is not checkpointed and the balance is by time unless said otherwise.
  static PipelineChoice parse_run(const std::string& option, const std::string& text);
  // Reads the strategy "pipeline:stages=2:chunks=8". Returns nullopt for any other strategy.
  static std::optional<PipelineChoice> of_strategy(const std::string& strategy);

  // Throws UsageError, naming `option`, if a model of so many layers cannot run as this with so many
  // samples in a batch.
  void check_run(const std::string& option, std::int64_t layers, std::int64_t batch) const;

  // Throws UsageError, also for a table that cannot be run.
  PipelineSchedule make() const;
  // Micro-batches below it are checkpointed.
  std::int64_t checkpoint_stop(const PipelineSchedule& schedule) const;
  // The numbers in `balance`; empty if it is none of numbers.
  std::vector<std::int64_t> layers_of_stages() const;
};

}  // namespace reprise::app
