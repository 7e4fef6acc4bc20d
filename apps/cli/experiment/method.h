// The methods that an experiment compares: ways to run forward and backward of one step within the
// same bytes.
//
// | name          | what it does                                                               |
// |---------------|----------------------------------------------------------------------------|
// | none          | keeps everything; is given no budget                                       |
// | uniform       | as few segments of equal length as fit (checkpoint_sequential)             |
// | every-block   | every block is run again; takes what it takes                              |
// | random        | Pgac, with drawn numbers in the place of averages; fills the budget        |
// | dtr           | MemoryBudget with h_dtr, without learning                                  |
// | dtr-influence | the same, with scores weighted by influence (influence_weights())         |
// | budget        | MemoryBudget as it is: h_up, learns a plan                                 |
// | pgac:text     | Pgac as the proposal has it: threshold and mask, made to fit               |
// | pgac:R        | the same by ranking R (influence, cost, product), fills the budget         |
// | pgac:lossy    | Pgac with its lossy tier                                                   |
//
// After the name of one of Pgac's may come parameters, as in "pgac:text,q=0.25,gamma=linear".
#pragma once

#include <reprise/bytes.h>
#include <reprise/experimental/pgac.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "apps/cli/experiment/task.h"

namespace reprise::app {

struct ExperimentSettings;

class ExperimentMethod {
 public:
  virtual ~ExperimentMethod() = default;

  // Forward and backward; the loss. Throws BudgetError where they do not fit.
  virtual double step(const TaskBatch& batch) = 0;
  // After it, numbered from 0.
  virtual void observe(std::int64_t) {}
  // Seconds of the step that were spent on running things again.
  virtual double recompute_seconds() = 0;
  // Of methods that have one, after observe().
  virtual std::optional<PgacReport> report() const { return std::nullopt; }
  // What a run that is gone on with needs, and is given before its first step.
  virtual std::string state() const { return ""; }
  virtual void restore(const std::string&) {}
};

// Names of the task's blocks, and of what comes after them, which Pgac takes for a layer as well.
std::vector<std::string> stage_names(const Task& task);

// Whether its gradients are the plain step's, bit for bit.
bool is_exact(const std::string& method);
bool is_pgac(const std::string& method);

// Throws UsageError for a method or a parameter that there is not.
void check_method(const std::string& method, const ExperimentSettings& settings);

// `budget`: above what is live before a step; none of "none" and "every-block". Throws BudgetError
// if it cannot be kept, as far as that is known before a step. The task must live as long.
std::unique_ptr<ExperimentMethod> make_method(const std::string& method,
                                              const ExperimentSettings& settings, Task& task,
                                              Bytes budget, std::uint64_t seed);

}  // namespace reprise::app
