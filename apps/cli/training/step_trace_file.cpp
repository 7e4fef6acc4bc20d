// Two formats behind one option.
#include "apps/cli/training/step_trace_file.h"

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
  file_ = std::make_unique<AtomicFile>(path, "--trace-out");
  if (is_for_chrome(path)) {
    chrome_ = std::make_shared<ChromeTrace>(file_->stream(), path);
  } else {
    recorder_ = std::make_shared<TraceRecorder>(file_->written());
  }
}

std::shared_ptr<BudgetObserver> StepTraceFile::observer() const {
  if (chrome_) return chrome_;
  return recorder_;
}

void StepTraceFile::close(std::int64_t step) {
  if (chrome_) chrome_->close(fmt::format("step {}", step));
  if (recorder_) close_recorder();
  if (file_) file_->take_place();
}

void StepTraceFile::close_recorder() {
  try {
    recorder_->close();
  } catch (const Error& error) {
    // It knows the place beside, which is gone when this is read.
    std::string text = error.what();
    const std::string written = file_->written().string();
    const auto at = text.find(written);
    if (at != std::string::npos) text.replace(at, written.size(), file_->path().string());
    throw Error(text);
  }
}

}  // namespace reprise::app
