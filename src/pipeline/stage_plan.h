// A plan of residency as a stage runs it: which layers of a micro-batch run as regions.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "pipeline/stage.h"
#include "plan/chain/nested_schedule.h"

namespace reprise::pipeline {

struct StagePlan {
  // The layers of each stage of the plan's chain. The loss counts as a layer behind the last.
  struct Part {
    std::size_t begin = 0, end = 0;
  };
  std::vector<Part> parts;
  plan::Nests nests;
  // The layers write to the stage's input, and the first one gets a copy.
  bool copies_input = false;
  // Input and weight gradients come apart: all that runs again does so before either.
  bool recomputes_all_ahead = false;
};

struct PlannedRun {
  Tensors outputs;
  // The regions whose recomputation needs no gradient of this stage, in order.
  std::vector<std::shared_ptr<region::Frame>> ahead;
};

// Runs the stage on a micro-batch as the plan says.
PlannedRun run_by_plan(const std::shared_ptr<const Stage>& stage,
                       const std::shared_ptr<const StagePlan>& plan, Tensors inputs,
                       const Stage::Run& run, const StageRun::Then& then);

}  // namespace reprise::pipeline
