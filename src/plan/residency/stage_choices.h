// Schedules of one stage's layers that keep few bytes of a micro-batch or many.
//
// A chain's planner runs backward right after forward. In a pipeline other micro-batches come
// between the two. So the chain gets one more stage at its end, which takes no time and as many
// temporary bytes as the others then need. If these are r, a schedule within m bytes keeps at most
// m - r bytes meanwhile.
#pragma once

#include <reprise/pipeline_residency.h>

#include <vector>

namespace reprise::plan {

struct StageChoice {
  PipelineMicroBatch micro_batch;
  Schedule schedule;

  Seconds recompute() const { return micro_batch.recompute + micro_batch.recompute_within; }
};

// From the least time to the most. None is as good as another in all of time, kept bytes and peaks.
// `is_split`: the schedule of the pipeline has I and W, so that all that runs again does so before
// I, and stays.
std::vector<StageChoice> choices_of(const PipelineStageProfile& profile, bool is_split);

}  // namespace reprise::plan
