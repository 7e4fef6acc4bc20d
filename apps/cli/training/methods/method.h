// The methods of `reprise train --method`: ways to run forward and backward of one step within the
// same bytes.
//
// | name          | what it does                                                               |
// |---------------|----------------------------------------------------------------------------|
// | none          | keeps everything; is given no budget                                       |
// | every-block   | recomputes every block; is given no budget                                 |
// | uniform       | as few segments of equal length as fit (checkpoint_sequential)             |
// | random        | Pgac with drawn numbers in the place of averages; fills the budget         |
// | dtr           | MemoryBudget with h_dtr, without plans                                     |
// | dtr-influence | the same, with scores weighted by influence (influence_weights())          |
// | budget        | MemoryBudget as it is: h_up, plans repeated steps                          |
// | pgac          | Pgac as the proposal has it: threshold and mask, made to fit               |
// | pgac:R        | Pgac by ranking R (influence, cost, product); fills the budget             |
// | pgac:lossy    | Pgac with its lossy tier                                                   |
//
// Pgac's names, and `random`, take parameters after commas, as in "pgac,q=0.25,gamma=linear".
#pragma once

#include <reprise/bytes.h>
#include <reprise/experimental/pgac.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "apps/cli/training/methods/task.h"

namespace reprise::app {

// Seconds of one step. Those of recomputation, packing and the tape passed inside of forward or
// backward. The tape's are of methods with a MemoryBudget: its own work beside operators.
struct StepSeconds {
  double forward = 0, backward = 0;
  double recompute = 0, packing = 0, tape = 0;
};

class TrainingMethod {
 public:
  virtual ~TrainingMethod() = default;

  // Forward and backward; the loss. Throws BudgetError where they do not fit.
  virtual double step(const TaskBatch& batch, StepSeconds& seconds) = 0;
  // After each step, numbered from 0.
  virtual void observe(std::int64_t /*step*/) {}
  // Only Pgac's methods have one, after the first step.
  virtual std::optional<PgacReport> report() const { return std::nullopt; }
};

struct MethodOptions {
  std::string name;        // with its parameters
  std::int64_t steps = 0;  // of the training
  std::uint64_t seed = 0;
};

const std::vector<std::string>& training_methods();
// False for "none" and "every-block", which take what they take.
bool needs_budget(const std::string& method);
// Whether gradients are the plain step's, bit for bit.
bool is_exact(const std::string& method);
// Throws UsageError, naming the method, for one or a parameter that does not exist.
void check_method(const MethodOptions& options);

// The options of Pgac that a name stands for, without a budget. Parameters:
//
// | q, alpha     | numbers, as PgacOptions has them                                        |
// | gamma        | constant, linear or cosine (both from 1.5 to 0.5), learned              |
// | fill, search | yes or no: PgacOptions::fill_budget, exact_search                       |
// | far, error   | of pgac:lossy: LossyOptions::int4_threshold and gradient_error          |
PgacOptions pgac_options(const MethodOptions& options);

// The names of the blocks, and of the head with the loss, which Pgac takes for a layer as well.
std::vector<std::string> layer_names(const Task& task);

// `budget` is what forward and backward may add to the bytes that are live before them. Throws
// UsageError as check_method() does, and BudgetError where it is clear before the first step that
// the budget does not suffice. The task must live as long as the method.
std::unique_ptr<TrainingMethod> make_method(const MethodOptions& options, const Task& task,
                                            c10::Device device, Bytes budget);

}  // namespace reprise::app
