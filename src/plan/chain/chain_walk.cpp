// The model of reprise/chain.h, executed.
#include "plan/chain/chain_walk.h"

#include <reprise/error.h>

#include <algorithm>
#include <string>
#include <utility>

namespace reprise::plan {
namespace {

using Kind = ScheduleOp::Kind;

const char* name_of(Kind kind) {
  switch (kind) {
    case Kind::kForwardKeep:
      return "forward, kept";
    case Kind::kForwardCheckpoint:
      return "forward, its input kept";
    case Kind::kForwardDrop:
      return "forward, its input dropped";
    case Kind::kBackward:
      return "backward";
    case Kind::kOffload:
      return "to the store";
    case Kind::kLoad:
      return "back from the store";
  }
  return "";
}

}  // namespace

std::string stage_label(const ChainStage& stage) {
  constexpr std::size_t kLongest = 40;
  std::string label = stage.name.substr(0, kLongest);
  if (stage.name.size() > kLongest) {
    // Not within a character of several bytes.
    const auto is_rest = [](char c) { return (static_cast<unsigned char>(c) & 0xC0) == 0x80; };
    if (is_rest(stage.name[kLongest])) {
      while (!label.empty() && is_rest(label.back())) label.pop_back();
      if (!label.empty()) label.pop_back();
    }
    label += "...";
  }
  std::replace_if(
      label.begin(), label.end(),
      [](char c) { return static_cast<unsigned char>(c) < ' ' || c == '\x7f'; }, ' ');
  return label;
}

std::string stage_text(const Chain& chain, std::int64_t stage) {
  const std::string label = stage_label(chain.stages[static_cast<std::size_t>(stage)]);
  return "stage " + std::to_string(stage) + (label.empty() ? "" : " (\"" + label + "\")");
}

ChainWalk::ChainWalk(const Chain& chain, const TransferRate& store)
    : chain_(chain),
      store_(store),
      state_(chain.stages.size()),
      next_backward_(static_cast<std::int64_t>(chain.stages.size()) - 1) {}

void ChainWalk::refuse(const ScheduleOp& op, const std::string& reason) const {
  throw PlanError("operation " + std::to_string(ops_) + " of the schedule, " +
                  stage_text(chain_, op.stage) + " " + name_of(op.kind) + ": " + reason);
}

void ChainWalk::apply(const ScheduleOp& op) {
  if (op.stage < 0 || static_cast<std::size_t>(op.stage) >= chain_.stages.size()) {
    throw PlanError("operation " + std::to_string(ops_) + " of the schedule is of stage " +
                    std::to_string(op.stage) + "; the chain has " +
                    std::to_string(chain_.stages.size()) + ", from 0");
  }
  const ChainStage& stage = chain_.stages[static_cast<std::size_t>(op.stage)];
  switch (op.kind) {
    case Kind::kForwardKeep:
    case Kind::kForwardCheckpoint:
    case Kind::kForwardDrop:
      forward(op, stage);
      break;
    case Kind::kBackward:
      backward(op, stage);
      break;
    case Kind::kOffload:
    case Kind::kLoad:
      transfer(op, stage);
      break;
  }
  ++ops_;
}

void ChainWalk::finish() const {
  if (next_backward_ < 0) return;
  throw PlanError("the schedule ends after " + std::to_string(ops_) +
                  " operations, before the backward of " + stage_text(chain_, next_backward_));
}

void ChainWalk::reach(Bytes above) { cost_.peak = std::max(cost_.peak, live_ + above); }

void ChainWalk::need_input(const ScheduleOp& op) const {
  if (op.stage == 0) return;
  const auto before = static_cast<std::size_t>(op.stage) - 1;
  if (!has_output(before)) {
    refuse(op, "its input, the output of stage " + std::to_string(before) + ", is not there");
  }
}

void ChainWalk::drop_output(std::size_t stage) {
  state_[stage].waits = false;
  if (std::exchange(state_[stage].output, false)) live_ -= chain_.stages[stage].output;
}

void ChainWalk::forward(const ScheduleOp& op, const ChainStage& stage) {
  const auto index = static_cast<std::size_t>(op.stage);
  State& state = state_[index];
  if (op.stage > next_backward_) refuse(op, "its backward has been");
  need_input(op);
  if (has_output(index) || state.kept || state.offloaded) {
    refuse(op, "its output is there already");
  }
  const bool keeps = op.kind == Kind::kForwardKeep;
  state.kept = keeps;
  state.output = !(keeps && stage.saves_output);
  const Bytes made = (keeps ? stage.saved : Bytes(0)) + (state.output ? stage.output : Bytes(0));
  reach(made + (keeps ? stage.keep_temporaries : stage.forward_temporaries));
  live_ += made;
  if (index > 0) {
    State& before = state_[index - 1];
    if (op.kind == Kind::kForwardCheckpoint) before.waits = true;
    const bool stays =
        op.kind == Kind::kForwardCheckpoint || (keeps && (stage.needs_input || before.waits));
    if (!stays) drop_output(index - 1);
  }
  // The end of what runs again: nobody reads its output.
  const bool is_last = keeps && op.stage == next_backward_;
  if (is_last && index + 1 < chain_.stages.size()) drop_output(index);
  ++cost_.forwards;
  cost_.time += stage.forward;
  if (std::exchange(state.has_run, true)) cost_.recompute += stage.forward;
}

void ChainWalk::backward(const ScheduleOp& op, const ChainStage& stage) {
  const auto index = static_cast<std::size_t>(op.stage);
  State& state = state_[index];
  if (op.stage != next_backward_) {
    refuse(op, next_backward_ < 0 ? "all of backward has been"
                                  : "it is the turn of stage " + std::to_string(next_backward_));
  }
  if (state.offloaded) refuse(op, "what was kept of it is in the store");
  if (!state.kept) refuse(op, "it was not run kept");
  if (stage.needs_input) need_input(op);
  // The first gradient is the caller's, and comes when backward begins.
  const bool is_last = index + 1 == chain_.stages.size();
  if (is_last) live_ += stage.output_gradient;
  const Bytes made =
      (index > 0 ? chain_.stages[index - 1].output_gradient : chain_.input_gradient) +
      stage.parameter_gradients;
  reach(std::max(made + stage.backward_temporaries, Bytes(0)));
  live_ += made - stage.output_gradient - stage.saved;
  state.kept = false;
  // The caller holds the chain's output until all of backward is over.
  if (is_last && stage.saves_output && !std::exchange(state.output, true)) live_ += stage.output;
  reach({});
  if (!is_last) drop_output(index);
  if (index > 0) drop_output(index - 1);
  --next_backward_;
  cost_.time += stage.backward;
}

void ChainWalk::transfer(const ScheduleOp& op, const ChainStage& stage) {
  State& state = state_[static_cast<std::size_t>(op.stage)];
  if (!(store_.bytes_per_second > 0)) refuse(op, "there is no store");
  const bool is_load = op.kind == Kind::kLoad;
  if (!(is_load ? state.offloaded : state.kept)) {
    refuse(op, is_load ? "it is not in the store" : "nothing of it is kept in memory");
  }
  const Seconds seconds(static_cast<double>(stage.saved.count) / store_.bytes_per_second);
  cost_.time += seconds;
  cost_.transfer += seconds;
  if (is_load) reach(stage.saved);
  live_ += is_load ? stage.saved : -stage.saved;
  state.kept = is_load;
  state.offloaded = !is_load;
  // The output that was part of it stays, for the stages after it.
  if (!is_load && stage.saves_output && !std::exchange(state.output, true)) live_ += stage.output;
}

}  // namespace reprise::plan

namespace reprise {
namespace {

void expect_layers(const Chain& chain, const Schedule& schedule) {
  if (schedule.layers.empty()) return;
  if (schedule.layers.size() != chain.stages.size()) {
    throw PlanError("the schedule has layers of " + std::to_string(schedule.layers.size()) +
                    " stages, but the chain has " + std::to_string(chain.stages.size()) +
                    "; plan for this chain");
  }
  for (std::size_t i = 0; i < chain.stages.size(); ++i) {
    if (schedule.layers[i] == chain.stages[i].layers) continue;
    throw PlanError(plan::stage_text(chain, static_cast<std::int64_t>(i)) + " is of " +
                    std::to_string(chain.stages[i].layers) + " layers, but in the schedule of " +
                    std::to_string(schedule.layers[i]) + "; plan for this chain");
  }
}

}  // namespace

ScheduleCost evaluate(const Chain& chain, const Schedule& schedule, const TransferRate& store) {
  chain.check();
  expect_layers(chain, schedule);
  plan::ChainWalk walk(chain, store);
  for (const ScheduleOp& op : schedule.ops) walk.apply(op);
  walk.finish();
  return walk.cost();
}

}  // namespace reprise
