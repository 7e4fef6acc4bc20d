#include "apps/cli/training/training_budget.h"

#include <fmt/format.h>

#include <utility>

namespace reprise::app {

TrainingBudget::TrainingBudget(AskedBudget asked, Bytes live, Bytes measured,
                               const BudgetOptions& options)
    : asked_(std::move(asked)),
      live_(live),
      measured_(measured),
      limit_(asked_.limit(live, measured)),
      options_(options),
      usual_(std::make_unique<MemoryBudget>(limit_, options_)) {}

MemoryBudget& TrainingBudget::of_step(bool verified, std::shared_ptr<BudgetObserver> observer) {
  if (!verified && observer == nullptr) return *usual_;
  BudgetOptions options = options_;
  options.verify = options.verify || verified;
  options.observer = std::move(observer);
  // A budget learns on an accelerator how many bytes calls take, so verified steps share one.
  const bool is_observed = options.observer != nullptr;
  const bool can_be_shared = special_ != nullptr && !is_observed && !is_special_observed_;
  if (options.device.is_cpu() || !can_be_shared) {
    special_ = std::make_unique<MemoryBudget>(limit_, std::move(options));
  }
  is_special_observed_ = is_observed;
  return *special_;
}

std::string TrainingBudget::describe() const {
  return fmt::format("{}; heuristic {}{}", asked_.describe(live_, measured_),
                     to_string(options_.heuristic),
                     options_.verify ? ", recomputed values are verified" : "");
}

}  // namespace reprise::app
