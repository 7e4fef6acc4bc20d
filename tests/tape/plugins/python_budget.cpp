// A managed step behind a C interface, for tests in a Python process: PyTorch's own database of
// operators with their arguments is there.
#include <reprise/budget.h>

#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <string>

namespace {

struct ManagedStep {
  ManagedStep(std::int64_t limit, const reprise::BudgetOptions& options)
      : budget(reprise::Bytes(limit), options) {
    step.emplace(budget.step());
  }
  reprise::MemoryBudget budget;
  std::optional<reprise::MemoryBudget::Step> step;
};

thread_local std::string error;

}  // namespace

extern "C" {

struct BudgetCounts {
  std::int64_t operators;
  std::int64_t dropped;
  std::int64_t replayed;
  std::int64_t peak;
};

// Begins a step in which tensors of `min_bytes` bytes and more may go; null where that fails.
void* budget_open(std::int64_t limit, bool paranoid, bool verify, std::int64_t min_bytes) {
  try {
    return new ManagedStep(
        limit, {.min_bytes = reprise::Bytes(min_bytes), .verify = verify, .paranoid = paranoid});
  } catch (const std::exception& caught) {
    error = caught.what();
    return nullptr;
  }
}

// Ends it with finish(). Whether that went well.
bool budget_close(void* managed, BudgetCounts* counts) {
  const std::unique_ptr<ManagedStep> step(static_cast<ManagedStep*>(managed));
  bool finished = true;
  try {
    step->step->finish();
  } catch (const std::exception& caught) {
    error = caught.what();
    finished = false;
  }
  step->step.reset();
  const reprise::StepReport report = step->budget.report();
  *counts = {report.operators, report.dropped, report.replayed, report.peak.count};
  return finished;
}

// Of the call that failed last on this thread.
const char* budget_error() { return error.c_str(); }

}  // extern "C"
