// Follows a schedule operation by operation through the figures of its chain: what is in memory,
// and whether an operation may be. The one place that knows the model; see reprise/chain.h.
#pragma once

#include <reprise/chain.h>

#include <cstdint>
#include <utility>
#include <vector>

namespace reprise::plan {

// The most layers that a stage may have.
inline constexpr std::int64_t kMostLayers = 1'000'000'000;

class ChainWalk {
 public:
  explicit ChainWalk(const Chain& chain, const TransferRate& store = {});

  // Throws PlanError where the operation may not be; the walk is then over.
  void apply(const ScheduleOp& op);
  // Throws PlanError if something is left to do.
  void finish() const;

  Bytes live() const { return live_; }
  // The peak since the last call; the next one counts from what is live now.
  Bytes take_peak() { return std::exchange(cost_.peak, live_); }
  const ScheduleCost& cost() const { return cost_; }

  // What of a stage is in memory between operations, or in the store.
  bool has_output(std::size_t stage) const {
    return state_[stage].has_output(chain_.stages[stage]);
  }
  bool is_kept(std::size_t stage) const { return state_[stage].kept; }
  bool is_offloaded(std::size_t stage) const { return state_[stage].offloaded; }

 private:
  struct State {
    bool kept = false;       // what it saved is in memory
    bool offloaded = false;  // or in the store
    bool output = false;     // its output is there, beside what it saved
    bool waits = false;      // its output is what the stages after it will be run again from
    bool has_run = false;

    bool has_output(const ChainStage& stage) const {
      return output || (kept && stage.saves_output);
    }
  };

  [[noreturn]] void refuse(const ScheduleOp& op, const std::string& reason) const;
  void forward(const ScheduleOp& op, const ChainStage& stage);
  void backward(const ScheduleOp& op, const ChainStage& stage);
  void transfer(const ScheduleOp& op, const ChainStage& stage);
  void need_input(const ScheduleOp& op) const;
  void drop_output(std::size_t stage);
  void reach(Bytes above);

  const Chain& chain_;
  const TransferRate store_;
  std::vector<State> state_;
  std::int64_t ops_ = 0;
  std::int64_t next_backward_;
  Bytes live_;
  ScheduleCost cost_;
};

// A stage's name on one line, shortened; empty if it has none.
std::string stage_label(const ChainStage& stage);
// A stage's place and name, for texts: `stage 3 ("conv4")`.
std::string stage_text(const Chain& chain, std::int64_t stage);

}  // namespace reprise::plan
