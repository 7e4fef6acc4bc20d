// Two formats behind one option.
#include "apps/reprise/step_trace_file.h"

#include <fmt/format.h>
#include <reprise/error.h>

namespace reprise::app {

namespace {

bool is_for_chrome(const std::string& path) { return path.ends_with(".json"); }

bool is_for_simulate(const std::string& path) {
  for (const char* ending : {".log", ".jsonl", ".log.gz", ".jsonl.gz"}) {
    if (path.ends_with(ending)) return true;
  }
  return false;
}

}  // namespace

void check_trace_name(const std::string& path) {
  if (path.empty() || is_for_chrome(path) || is_for_simulate(path)) return;
  throw UsageError(fmt::format(
      "--trace-out is '{}': end the name in .json for a trace that Chrome shows, or in .jsonl or "
      ".log, also with .gz, for one that `reprise simulate` reads",
      path));
}

StepTraceFile::StepTraceFile(const std::string& path) {
  if (path.empty()) return;
  if (is_for_chrome(path)) {
    chrome_ = std::make_shared<ChromeTrace>(path);
  } else {
    recorder_ = std::make_shared<TraceRecorder>(path);
  }
}

std::shared_ptr<BudgetObserver> StepTraceFile::observer() const {
  if (chrome_) return chrome_;
  return recorder_;
}

void StepTraceFile::close(std::int64_t step) {
  if (chrome_) chrome_->close(fmt::format("step {}", step));
  if (recorder_) recorder_->close();
}

}  // namespace reprise::app
