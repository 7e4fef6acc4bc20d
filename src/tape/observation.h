// Words to a BudgetObserver: what happened on the tape, in the public interface's terms. Under
// libtorch::limit_mutex().
#pragma once

#include <reprise/budget_extensions.h>

#include <cstdint>
#include <span>

#include "tape/value.h"

namespace reprise::tape {

// One call that is recorded. Made before it runs: its arguments are gone when it is done.
class ObservedCall {
 public:
  ObservedCall(const Tape& tape, const libtorch::OperatorCall& call);
  // `written`: the slots whose memory the call has changed.
  void tell(BudgetObserver& observer, const libtorch::OperatorCall& call,
            std::span<const std::int16_t> written, double seconds) const;

 private:
  const Tape& tape_;
  c10::SmallVector<BudgetObserver::Memory, 4> arguments_;
  c10::SmallVector<std::int16_t, 4> slots_;
};

void tell_dropped(BudgetObserver& observer, const Tape& tape, const Value& value);
void tell_spent(BudgetObserver& observer, const Tape& tape, const Value& value);
void tell_restored(BudgetObserver& observer, const Tape& tape, const Value& value);
void tell_replayed(BudgetObserver& observer, const Tape& tape, const Producer& producer,
                   double seconds);
void tell_released(BudgetObserver& observer, const Cell& cell);

}  // namespace reprise::tape
