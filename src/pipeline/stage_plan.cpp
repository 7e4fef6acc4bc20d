#include "pipeline/stage_plan.h"

#include <optional>

#include "pipeline/draws.h"

namespace reprise::pipeline {
namespace {

// All regions of one micro-batch share this.
struct Work {
  std::shared_ptr<const Stage> stage;
  std::shared_ptr<const StagePlan> plan;
  Stage::Run run;
  StageRun::Then then;
};

Tensors run_part(const Work& work, const StagePlan::Part& part, Tensors tensors) {
  const Stage& stage = *work.stage;
  if (part.begin == 0 && work.plan->copies_input) tensors.front() = tensors.front().clone();
  const libtorch::DrawStreamScope drawing(stage.draws);
  std::optional<GatheringScope> gathering;
  if (work.run.statistics != nullptr) gathering.emplace(stage.batch_norms, work.run.statistics);
  for (std::size_t i = part.begin; i < part.end; ++i) {
    if (i == stage.layers.size()) return work.then(std::move(tensors));
    stage.draws->start(seed_of_layer(work.run.seed, work.run.micro_batch,
                                     stage.first_layer + static_cast<std::int64_t>(i)));
    tensors = stage.layers[i].forward(std::move(tensors));
  }
  return tensors;
}

// The frames of the regions outside of others go to `frames`.
Tensors run_nests(const std::shared_ptr<const Work>& work, const plan::Nests& nests,
                  Tensors tensors, std::vector<std::shared_ptr<region::Frame>>* frames) {
  for (const plan::Nest& nest : nests) {
    if (nest.again.empty()) {
      tensors = run_part(*work, work->plan->parts[static_cast<std::size_t>(nest.stage)],
                         std::move(tensors));
      continue;
    }
    // The plan outlives the region, which holds the work.
    const auto again = [work, &inner = nest.again](Tensors values) {
      return run_nests(work, inner, std::move(values), nullptr);
    };
    auto call = detail::make_call(again, std::move(tensors));
    auto frame = region::run_in_frame(work->stage->regions, call);
    tensors = call->take_result();
    if (frames != nullptr) frames->push_back(std::move(frame));
  }
  return tensors;
}

}  // namespace

PlannedRun run_by_plan(const std::shared_ptr<const Stage>& stage,
                       const std::shared_ptr<const StagePlan>& plan, Tensors inputs,
                       const Stage::Run& of, const StageRun::Then& then) {
  const auto work = std::make_shared<const Work>(Work{stage, plan, of, then});
  PlannedRun run;
  std::vector<std::shared_ptr<region::Frame>> frames;
  run.outputs = run_nests(work, plan->nests, std::move(inputs), &frames);
  if (plan->recomputes_all_ahead) {
    run.ahead = std::move(frames);
  } else if (!plan->nests.back().again.empty()) {
    // Only what lies at the stage's end needs nothing of this backward.
    run.ahead.push_back(std::move(frames.back()));
  }
  return run;
}

}  // namespace reprise::pipeline
