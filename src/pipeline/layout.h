// Where a model is cut, and who runs what: a pipeline's options checked against its layers.
#pragma once

#include <reprise/pipeline.h>

#include <cstdint>
#include <vector>

#include "pipeline/skips.h"

namespace reprise::pipeline {

// A skip between two stages, by its place in Layout::skips. A stage's output ports are 0 for the
// next stage and 1, 2, ... for the skips that it sends, its input ports likewise.
struct Layout {
  struct StagePart {
    std::int64_t first_layer = 0, layers = 0;
    std::int64_t worker = 0;
    c10::Device device{c10::kCPU};
    std::vector<std::size_t> sends, takes;
  };
  struct StageSkip {
    std::string name;
    std::int64_t from = 0, to = 0;           // stages
    std::int64_t sent_as = 0, taken_as = 0;  // ports
  };
  std::vector<StagePart> stages;
  std::vector<StageSkip> skips;
  std::int64_t workers = 0;

  c10::Device device_of(std::int64_t worker) const;
};

// Throws UsageError as reprise/pipeline.h says of the constructor.
Layout layout_of(const std::vector<PipelineLayer>& layers, const PipelineOptions& options);

// The schedule of the options for that many micro-batches.
PipelineSchedule schedule_for(const PipelineOptions& options, std::int64_t micro_batches);

}  // namespace reprise::pipeline
