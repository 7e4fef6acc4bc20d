// What a budget learns of its steps: which ones come again, and how the next of them should go. The
// planning is done by a thread of low priority, which has only what was noted of a step.
//
// A step's end is told with its hash; of one in some is noted what it did. When a noted step comes
// again it is planned, first in a part of the time and then in all of it. A few kinds of steps are
// remembered, those that were followed last.
//
// Thread-safe.
#pragma once

#include <reprise/budget.h>
#include <reprise/bytes.h>

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "plan/step/planned_step.h"
#include "plan/step/step_record.h"
#include "plan/step/step_script.h"

namespace reprise::detail {

// The way from a LearnedPlan to the script that a step follows, and back.
struct LearnedPlanAccess {
  static LearnedPlan plan_of(plan::PlannedStep step);
  static const std::shared_ptr<const plan::StepScript>& script_of(const LearnedPlan& plan);
};

}  // namespace reprise::detail

namespace reprise::tape {

class Learning {
 public:
  using Script = std::shared_ptr<const plan::StepScript>;

  // Of steps in `limit`, planned for so long.
  Learning(Bytes limit, Seconds most);
  // Ends the planning.
  ~Learning();
  Learning(const Learning&) = delete;
  Learning& operator=(const Learning&) = delete;

  enum class Attention {
    kNone,    // nothing has been dropped so far: there is nothing to plan
    kFollow,  // calls are compared with those of planned steps
    kNote,    // what it does is noted as well
  };
  Attention attention() const;

  // Of a planned step that has begun like this; null if there is none.
  Script planned(std::size_t call, std::uint64_t prefix) const;

  struct End {
    std::uint64_t hash = 0;  // of its calls
    std::size_t calls = 0;
    std::int64_t followed = 0;  // of them, from the first one on
    bool dropped_any = false;   // whether there is anything to gain
    bool was_followed = false;  // from its first call to its last one
    std::optional<plan::StepRecord> record;
  };
  void step_ended(End end);

  void use(const LearnedPlan& plan);
  // The one that was followed, or made, last.
  std::optional<LearnedPlan> newest() const;
  // False if the time is over and it still plans.
  bool wait(Seconds most);

 private:
  static constexpr std::size_t kMostPlans = 8;
  // Steps for which a noted one waits to come again, and for which others are noted after one that
  // was not known.
  static constexpr int kMostWaiting = 8;

  void keep(const LearnedPlan& plan);
  std::vector<LearnedPlan>::const_iterator plan_of(std::uint64_t hash) const;
  void begin_search();
  void give_up(std::uint64_t hash);
  void search();
  void search_for(const plan::StepRecord& record);
  bool is_ending() const;

  const Bytes limit_;
  const Seconds most_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<LearnedPlan> plans_;  // the newest last
  std::optional<plan::StepRecord> waiting_;
  int waited_ = 0;
  bool is_under_pressure_ = false;
  int since_unknown_ = 0;  // steps that were known, after the last that was not
  std::optional<plan::StepRecord> to_plan_;
  std::uint64_t being_planned_ = 0;
  std::vector<std::uint64_t> hopeless_;  // for which no plan was found
  bool is_planning_ = false;
  bool is_ending_ = false;
  std::thread thread_;  // from the first planning on
};

}  // namespace reprise::tape
