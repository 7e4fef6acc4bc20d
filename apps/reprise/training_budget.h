// The byte budget of a training run: steps under it, and what they came to.
#pragma once

#include <reprise/bytes.h>
#include <reprise/memory_budget.h>

#include <memory>
#include <string>

#include "apps/reprise/asked_budget.h"

namespace reprise::app {

class TrainingBudget {
 public:
  // `live`: the bytes before a step. `options.verify` holds for all steps. Throws UsageError.
  TrainingBudget(AskedBudget asked, Bytes live, Bytes plain_peak, const BudgetOptions& options);

  // Steps that are verified, or observed, have a budget of their own, of the same bytes.
  MemoryBudget& of_step(bool verified, std::shared_ptr<BudgetObserver> observer);

  const AskedBudget& asked() const { return asked_; }
  Bytes limit() const { return asked_.limit(live_, plain_peak_); }
  Bytes live() const { return live_; }
  // 0 where it was not measured.
  Bytes plain_peak() const { return plain_peak_; }
  std::string describe() const;

 private:
  AskedBudget asked_;
  Bytes live_, plain_peak_;
  BudgetOptions options_;
  std::unique_ptr<MemoryBudget> usual_, special_;
};

}  // namespace reprise::app
