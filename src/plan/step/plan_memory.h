// A graph plan and its memory, changed a run at a time: what a search needs, which tries thousands
// of changes a second.
//
// A storage that operator o makes in slot s is there until the last of its readers before o's next
// run, readers of its views included. Between the slots in which that begins and ends it counts
// through and through; in those two only from and to an operator, so that they are looked at
// operator by operator, and only when something in them has changed.
#pragma once

#include <cstdint>
#include <vector>

#include "plan/step/graph_plan.h"
#include "plan/step/step_graph.h"

namespace reprise::plan {

class PlanMemory {
 public:
  using Index = StepGraph::Index;

  struct Run {
    Index op = 0;
    Index slot = 0;
    bool loads = false;  // from the store; does not matter where it is removed
    bool operator==(const Run&) const = default;
  };

  // A storage from one run of its operator on.
  struct Interval {
    Index begin = 0;   // slot
    Index end = 0;     // slot of the last reader
    Index end_op = 0;  // and the operator; the storage's own if nobody reads it
    bool operator==(const Interval&) const = default;
  };

  PlanMemory(const StepGraph& graph, const GraphPlan& plan, std::int64_t budget);

  const GraphPlan& plan() const { return plan_; }
  // Beyond running each operator once: of those that run again, and of transfers.
  std::int64_t nanoseconds() const { return nanoseconds_; }
  // Bytes above the budget, of all slots together.
  std::int64_t excess() const { return excess_; }
  std::int64_t bytes(Index slot) const { return through_[slot] + inside_[slot]; }

  // The operator must not run there yet, or must run there again.
  void add(Run run);
  void remove(Run run);
  // Runs of the operator, its first one included, in order.
  const std::vector<Index>& runs(Index op) const { return runs_[op]; }
  // Of the latest run that a reader in the slot sees.
  std::size_t run_seen(Index op, Index slot) const;
  bool runs_in(Index op, Index slot) const;
  const std::vector<Interval>& intervals(Index storage) const { return intervals_[storage]; }
  // Whether anything that the run makes is read before the operator's next run.
  bool is_read(Run run) const;
  // The first slot from `slot` on in which a tensor on the storage is read by what sees that run; 0
  // if there is none.
  Index next_read(Index storage, std::size_t run, Index slot) const;

 private:
  struct End {
    Index slot, op;
    bool operator<(const End& other) const {
      return slot != other.slot ? slot < other.slot : op < other.op;
    }
  };

  void change(Run run, bool adds);
  std::int64_t price(Run run) const;
  void recount(Index storage);
  void count(Index storage, const Interval& interval, bool adds);
  // Of the tensor, as it was made in that slot, with `next` the slot of its next run.
  End last_read(Index tensor, Index slot, Index next) const;
  void look_into(Index slot);

  const StepGraph& graph_;
  GraphPlan plan_;
  const std::int64_t budget_;
  std::vector<std::vector<Index>> runs_;
  std::vector<std::vector<Index>> computed_;      // of these, those that are no loads
  std::vector<std::vector<Interval>> intervals_;  // by storage, one a run of its operator
  std::vector<Interval> fresh_;
  std::vector<std::int64_t> through_;  // by slot, with what is fixed
  std::vector<std::int64_t> inside_;
  // By slot, the intervals that begin or end there.
  struct Edge {
    Index begin_op, end_op;  // kBefore and kAfter where it is not in this slot
    std::int64_t bytes;
    bool operator==(const Edge&) const = default;
  };
  std::vector<std::vector<Edge>> edges_;
  std::vector<bool> is_changed_;
  std::vector<Index> changed_;
  std::int64_t nanoseconds_ = 0;
  std::int64_t excess_ = 0;
};

}  // namespace reprise::plan
