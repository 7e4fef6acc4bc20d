#include "plan/residency/stage_choices.h"

#include <reprise/planners.h>

#include <algorithm>
#include <cstddef>
#include <utility>

#include "plan/chain/chain_walk.h"

namespace reprise::plan {
namespace {

using Kind = ScheduleOp::Kind;

// Steps of the rest's bytes and of the budgets that are tried.
constexpr std::int64_t kSteps = 12;
// A few hundred slots of planners::rotor() lose less than a percent of the bytes.
constexpr std::int64_t kSlots = 400;

// Gradients of parameters are there throughout. A backward makes new ones and adds them up.
Chain with_rest(const PipelineStageProfile& profile, Bytes rest) {
  Chain chain = profile.layers;
  for (ChainStage& stage : chain.stages) {
    stage.backward_temporaries += std::exchange(stage.parameter_gradients, Bytes(0));
  }
  ChainStage last;
  last.name = "the rest of the step";
  last.needs_input = false;
  last.forward_temporaries = last.keep_temporaries = rest;
  chain.stages.push_back(std::move(last));
  return chain;
}

bool is_of(const ScheduleOp& op, std::size_t stage) {
  return op.stage == static_cast<std::int32_t>(stage);
}

class ChoiceOfSchedule {
 public:
  ChoiceOfSchedule(const PipelineStageProfile& profile, bool is_split)
      : profile_(profile), is_split_(is_split), chain_(with_rest(profile, Bytes(0))) {}

  StageChoice operator()(Schedule schedule) const {
    const std::size_t rest = chain_.stages.size() - 1;
    StageChoice choice;
    PipelineMicroBatch& made = choice.micro_batch;
    ChainWalk walk(chain_);
    std::vector<std::int64_t> runs(chain_.stages.size());
    auto op = schedule.ops.begin();
    // Forward.
    for (; !is_of(*op, rest); ++op) {
      walk.apply(*op);
      ++runs[static_cast<std::size_t>(op->stage)];
    }
    const bool keeps_input = schedule.ops.front().kind != Kind::kForwardKeep ||
                             profile_.layers.stages.front().needs_input;
    const Bytes input = keeps_input ? profile_.input : Bytes(0);
    made.forward_peak = profile_.input + walk.take_peak();
    walk.apply(*op++);
    made.kept = input + walk.live();
    walk.take_peak();
    walk.apply(*op++);
    // All that runs again before the first backward needs no gradient.
    for (; op->kind != Kind::kBackward; ++op) run_again(*op, walk, runs, made.recompute);
    for (; op != schedule.ops.end(); ++op) run_again(*op, walk, runs, made.recompute_within);
    made.backward_peak = input + walk.take_peak();
    for (std::size_t i = 0; i < rest; ++i) {
      made.layers += chain_.stages[i].layers;
      if (runs[i] > 1) made.recomputed_layers += chain_.stages[i].layers;
    }
    if (is_split_) run_all_before(schedule, runs, made);
    choice.schedule = std::move(schedule);
    return choice;
  }

 private:
  void run_again(const ScheduleOp& op, ChainWalk& walk, std::vector<std::int64_t>& runs,
                 Seconds& recompute) const {
    walk.apply(op);
    if (op.kind == Kind::kBackward) return;
    const auto stage = static_cast<std::size_t>(op.stage);
    ++runs[stage];
    recompute += chain_.stages[stage].forward;
  }

  // Each run of layers that is run again begins from an output that waits, and frees it.
  void run_all_before(const Schedule& schedule, const std::vector<std::int64_t>& runs,
                      PipelineMicroBatch& made) const {
    made.recompute = made.recompute_within = Seconds(0);
    for (std::size_t i = 0; i < runs.size(); ++i) {
      if (runs[i] > 1) made.recompute += chain_.stages[i].forward;
    }
    Bytes live = made.kept, peak = made.kept, twice;
    const auto& ops = schedule.ops;  // first come the forwards
    for (std::size_t i = 0; i + 1 < chain_.stages.size(); ++i) {
      if (ops[i].kind == Kind::kForwardKeep) continue;
      const ChainStage& stage = chain_.stages[i];
      const Bytes output = stage.saves_output ? Bytes(0) : stage.output;
      peak = std::max(peak, live + stage.saved + output + stage.keep_temporaries);
      live += stage.saved + output;
      if (i > 0 && !stage.needs_input) {
        const bool first_run_made_it =
            ops[i].kind == Kind::kForwardCheckpoint && ops[i - 1].kind != Kind::kForwardKeep;
        if (first_run_made_it || !chain_.stages[i - 1].saves_output) {
          live -= chain_.stages[i - 1].output;
        }
      }
      if (ops[i + 1].kind == Kind::kForwardDrop) continue;
      live -= output;
      // The layer after it has the first output, this one the second.
      if (stage.saves_output && chain_.stages[i + 1].needs_input) twice += stage.output;
    }
    made.backward_peak = std::max(peak, profile_.input + profile_.input_gradient_peak + twice);
  }

  const PipelineStageProfile& profile_;
  const bool is_split_;
  const Chain chain_;
};

bool is_as_good(const StageChoice& a, const StageChoice& b) {
  const PipelineMicroBatch &x = a.micro_batch, &y = b.micro_batch;
  return a.recompute() <= b.recompute() && x.recompute_within <= y.recompute_within &&
         x.kept <= y.kept && x.forward_peak <= y.forward_peak && x.backward_peak <= y.backward_peak;
}

}  // namespace

std::vector<StageChoice> choices_of(const PipelineStageProfile& profile, bool is_split) {
  const ChoiceOfSchedule choice_of(profile, is_split);
  const Chain bare = with_rest(profile, Bytes(0));
  std::vector<StageChoice> all{choice_of(planners::keep_all(bare))};
  const Bytes plain = evaluate(bare, planners::keep_all(bare)).peak;
  const auto steps_of = [](Bytes from, Bytes to, std::int64_t step) {
    return from + Bytes((to - from).count / kSteps * step);
  };
  for (std::int64_t i = 0; i <= kSteps; ++i) {
    // Where input and weight gradients come apart, all that runs again is there at once, and a plan
    // must not save bytes by running layers again within a backward.
    const Bytes rest = (is_split ? plain : Bytes(0)) + steps_of(Bytes(0), plain, i);
    const Chain chain = with_rest(profile, rest);
    const planners::Rotor rotor(chain, {.slots = kSlots, .store = {}});
    const Bytes least = rotor.least(), most = evaluate(chain, planners::keep_all(chain)).peak;
    for (std::int64_t k = 0; k <= kSteps; ++k) {
      const StageChoice found = choice_of(rotor.plan(steps_of(least, most, k)));
      if (std::ranges::none_of(all, [&](const auto& each) { return is_as_good(each, found); })) {
        std::erase_if(all, [&](const StageChoice& each) { return is_as_good(found, each); });
        all.push_back(found);
      }
    }
  }
  std::ranges::stable_sort(all, {}, &StageChoice::recompute);
  return all;
}

}  // namespace reprise::plan
