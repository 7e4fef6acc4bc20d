// Records a step under a MemoryBudget as a trace that StepTrace reads: budgets and heuristics can
// then be tried on it without its tensors.
//
//   const auto recorder = std::make_shared<reprise::TraceRecorder>("step.jsonl.gz");
//   reprise::MemoryBudget budget{reprise::GiB(64), {.observer = recorder}};
//   { auto step = budget.step(); ...; step.finish(); }
//   recorder->close();
//   reprise::StepTrace::read("step.jsonl.gz").simulate(...);
//
// The trace is what the program did, whatever was dropped and replayed meanwhile: operators with
// their times, the storages that they read, made and wrote, and when the program let go of them.
// What the tape had not seen being made is a constant. As in simrd's own logs,
// - a write in place makes a new value beside the old one; a write to a constant leaves it one, as
//   on the tape;
// - what factories (zeros, empty) make can be made again, which the tape does not do.
#pragma once

#include <reprise/budget_observer.h>

#include <filesystem>
#include <memory>

namespace reprise {

class TraceRecorder final : public BudgetObserver {
 public:
  // Makes or replaces the file, compressed by gzip if its name ends in ".gz". Throws UsageError,
  // naming the file and the reason, if that cannot be.
  explicit TraceRecorder(const std::filesystem::path& file);
  // Closes; what cannot be written then is lost without a word.
  ~TraceRecorder() override;

  void recorded(const Operator& done) noexcept override;
  void released(const Memory& memory) noexcept override;

  // Writes the trace: once, when the step has ended. Throws Error, naming the file and the reason,
  // if it cannot be written as a whole.
  void close();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace reprise
