// The byte budget of a training run: steps under it, and what they came to.
#pragma once

#include <reprise/budget.h>
#include <reprise/bytes.h>

#include <memory>
#include <string>

#include "apps/cli/training/asked_budget.h"

namespace reprise::app {

class TrainingBudget {
 public:
  // `live` is the bytes before a step, and `measured` what AskedBudget::limit() takes.
  // `options.verify` holds for all steps. Throws UsageError.
  TrainingBudget(AskedBudget asked, Bytes live, Bytes measured, const BudgetOptions& options);

  // Steps that are verified, or observed, have a budget of their own, of the same bytes.
  MemoryBudget& of_step(bool verified, std::shared_ptr<BudgetObserver> observer);

  const AskedBudget& asked() const { return asked_; }
  Bytes limit() const { return limit_; }
  Bytes live() const { return live_; }
  // The plain step's peak, or the least bytes; 0 where nothing was measured.
  Bytes measured() const { return measured_; }
  std::string describe() const;

 private:
  AskedBudget asked_;
  Bytes live_, measured_, limit_;
  BudgetOptions options_;
  std::unique_ptr<MemoryBudget> usual_, special_;
  bool is_special_observed_ = false;
};

}  // namespace reprise::app
