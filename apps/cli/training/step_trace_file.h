// The file of `reprise train --trace-out`: which kind it is, by its name, and when it is written.
#pragma once

#include <reprise/budget_extensions.h>

#include <cstdint>
#include <memory>
#include <string>

#include "apps/cli/io/atomic_file.h"
#include "apps/cli/training/chrome_trace.h"

namespace reprise::app {

// Throws UsageError if the name's ending is none of the kinds': .json for a Chrome trace, .log or
// .jsonl, also with .gz, for one that `reprise simulate` reads.
void check_trace_name(const std::string& path);

class StepTraceFile {
 public:
  // path empty: nothing is traced. Throws UsageError if the file cannot be written. What is there
  // stays until close().
  explicit StepTraceFile(const std::string& path);

  // Null if nothing is traced.
  std::shared_ptr<BudgetObserver> observer() const;
  // After the step that was observed. Throws Error.
  void close(std::int64_t step);

 private:
  void close_recorder();

  std::unique_ptr<AtomicFile> file_;
  std::shared_ptr<ChromeTrace> chrome_;
  std::shared_ptr<TraceRecorder> recorder_;
};

}  // namespace reprise::app
