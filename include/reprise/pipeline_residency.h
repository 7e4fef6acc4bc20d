// Residency of a pipeline, planned from bytes: what each stage keeps of each micro-batch between its
// forward and its backward, and which layers it runs again.
//
//   reprise::Pipeline pipe(model, {.balance = {4, 4}, .chunks = 8, .schedule = "1f1b",
//                                  .bytes = {reprise::MB(400)}});
//   std::cout << pipe.plan(x, target, loss).text();
//
// Pipeline measures its layers and calls plan_residency() by itself. The functions here are plain
// arithmetic, without tensors, and may be called from any thread.
//
// How a plan is found. For each stage, planners::rotor() makes schedules of its layers that keep
// few bytes or many and take much time or little (Beaumont et al., arXiv:1911.13214). Each
// micro-batch of the stage then gets one of these. The bytes of a worker are followed action by
// action, as its list has them: what its micro-batches in flight keep, what the action itself
// takes, and what may have arrived for later actions. Upgrades go to micro-batches in the order of
// their forwards or backwards, from each schedule as the common start. Among the results with the
// least recomputation, the simulated step (simulate()) decides.
#pragma once

#include <reprise/bytes.h>
#include <reprise/chain.h>
#include <reprise/pipeline_schedule.h>

#include <cstdint>
#include <string>
#include <vector>

namespace reprise {

// The times and bytes of one stage of a pipeline.
struct PipelineStageProfile {
  // Its layers, as profile_chain() measures them on one micro-batch. The last stage's loss is its
  // last layer.
  Chain layers;
  Bytes input;     // of the stage; held from its arrival until its backward, if that needs it
  Bytes resident;  // parameters with their gradients, and buffers
  Seconds send{};  // of the output to the next stage, and of the gradient back
  // Only where the schedule has I and W. The most bytes at once during I, above what is kept, what
  // stays between I and W, and the most at once during W. Times of I and W; both zero: each takes
  // half of the backward.
  Bytes input_gradient_peak, kept_for_weights, weight_gradient_peak;
  Seconds input_gradient{}, weight_gradient{};
};

struct PipelineResidency {
  struct Stage {
    std::int64_t worker = 0;
    // The most inputs from the stage before, and gradients from the stage after, that wait for the
    // worker: senders wait for room. As many wait in a simulated step of even stages, so no worker
    // waits forever.
    std::int64_t most_inputs_waiting = 1, most_gradients_waiting = 1;
    // The plan of each micro-batch is one of `choices`.
    std::vector<std::int64_t> choice_of;
    std::vector<PipelineMicroBatch> choices;
    // The schedule of each choice. It has one stage more than the layers' chain: the last one stands
    // for the rest of the step, between the micro-batch's forward and its backward.
    std::vector<Schedule> schedules;

    const PipelineMicroBatch& of(std::int64_t micro_batch) const {
      return choices[static_cast<std::size_t>(choice_of[static_cast<std::size_t>(micro_batch)])];
    }
  };
  std::vector<Stage> stages;
  // Both are of each worker: the most bytes at once, whenever tensors arrive, and the bytes given.
  std::vector<Bytes> peaks, bytes;
  PipelineTimeline timeline;  // the predicted step

  // Says for each stage which micro-batches are kept as a whole, and how many layers of the others
  // run again. Says for each worker the bytes, predicted beside given.
  std::string text() const;
};

// Chooses for each stage and micro-batch the layers that run again. No worker's stages take more than
// its bytes, and the predicted step takes little time. `bytes`: one number for all
// workers, or one for each; none: no bound.
//
// Throws BudgetError, naming the worker, its bytes and the least that would do, if a worker's
// stages cannot fit. Throws UsageError for profiles that are not those of `schedule.stages` stages,
// for another number of bytes, and for chains that Chain::check() refuses, and PlanError as
// PipelineSchedule::check().
PipelineResidency plan_residency(const PipelineSchedule& schedule,
                                 const std::vector<PipelineStageProfile>& profiles,
                                 const std::vector<Bytes>& bytes);

}  // namespace reprise
