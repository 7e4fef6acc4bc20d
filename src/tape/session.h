// A budget, and the steps under it.
#pragma once

#include <reprise/budget.h>
#include <reprise/memory.h>

#include <exception>
#include <memory>
#include <optional>
#include <string>

#include "core/peak_tracker.h"
#include "libtorch/memory/limited_work.h"
#include "libtorch/memory/memory_limit.h"
#include "libtorch/operators/operator_interceptor.h"
#include "plan/simulate/heuristic.h"
#include "tape/accelerator.h"
#include "tape/learning.h"
#include "tape/least_bytes.h"
#include "tape/recorder.h"
#include "tape/refusal.h"
#include "tape/tape.h"

namespace reprise::tape {

// Steps are planned, and what replays take is measured for that. Paranoid ones drop everything,
// whatever it costs.
inline bool learns(const BudgetOptions& options) {
  return options.plan_repeated_steps && !options.paranoid;
}

class Budget final : public libtorch::LimitKeeper {
 public:
  Budget(Bytes limit, BudgetOptions options);

  Room make_room(std::int64_t wanted) override { return make_room(wanted, /*is_guess=*/false); }
  // A guess is no reason to fail.
  Room make_room(std::int64_t wanted, bool is_guess);
  bool give_up(std::int64_t bytes) override;
  bool wait_for_store(std::int64_t wanted);
  StepReport& waiting_step();
  // What the error says where `wanted` more bytes are not to be had.
  Refusal refusal(std::int64_t wanted);
  c10::Device device() const;
  // Handed out on the device, and promised to operators that run there.
  std::int64_t taken() const;

  const Bytes limit;
  const BudgetOptions options;
  const std::unique_ptr<plan::EvictionHeuristic> heuristic;
  libtorch::CallForms forms;
  ReplayCosts costs;
  // Where the device is one.
  std::optional<Accelerator> accelerator;
  Learning learning;
  // Where there is a store.
  std::optional<Parking> parking;
  StepReport last;
  LeastBytes least;
  // Where a plan has to fit the next step.
  std::optional<LearnedPlan> expected_step;
  std::vector<Tape*> tapes;
  bool warned = false;
  bool warned_of_idle_device = false;
  // Bytes above the limit that steps under way may take: of OnExceeded::kPass.
  std::int64_t passed = 0;
  // Of the step under way for which it is most.
  struct Spent {
    Seconds replays{0};
    Seconds elapsed{0};
  };
  // When it was last passed: whether replays take too long is seen anew from then on.
  Spent when_passed;

 private:
  bool fits(std::int64_t wanted) const { return taken() + wanted <= limit.count + passed; }
  Spent spent() const;
  bool replays_too_long() const;
};

// The report of a step for users: peaks so far; own_time becomes seconds of the steady clock, without the
// replays, packing and transfers that happened on the way.
StepReport settled(const Tape& tape);

// Whether one step is open on the device. Under the lock.
bool is_alone_on(c10::Device device);

class Session {
 public:
  explicit Session(std::shared_ptr<Budget> budget);
  // Quiet.
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;
  void finish();
  // Once a budget, where no bytes of its device were live in a step: the program works elsewhere.
  void warn_of_idle_device();

 private:
  // `is_whole`: the program ran it to its end.
  void end(bool is_whole);
  void close(bool may_throw);
  void note_end();
  void bring_back();

  std::shared_ptr<Budget> budget_;
  std::shared_ptr<Recorder> recorder_;
  std::optional<libtorch::LimitScope> limit_;
  std::optional<libtorch::OperatorInterceptorScope> interceptor_;
  std::unique_ptr<PeakScope> peak_;
  PeakTracker::Period other_threads_;
  PeakTracker::Period past_operators_;
  // The plan of a step that this one has to be.
  std::optional<LearnedPlan> expected_;
  // Why a plan is not of this step; empty: nothing was expected, or it is.
  std::string other_step_;
  bool is_whole_ = true;  // as far as is known
  // Under way when it began.
  int exceptions_ = std::uncaught_exceptions();
};

}  // namespace reprise::tape
