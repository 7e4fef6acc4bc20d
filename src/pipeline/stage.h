// One stage: some layers on one device, and what it does with one micro-batch.
#pragma once

#include <reprise/pipeline.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "libtorch/autograd/stage_graph.h"
#include "libtorch/operators/draw_stream.h"
#include "pipeline/deferred_batch_norm.h"
#include "pipeline/micro_batches.h"
#include "pipeline/twins.h"
#include "region/frame.h"

namespace reprise::pipeline {

// Shared by all steps, and with their graphs.
struct Stage {
  std::vector<PipelineLayer> layers;
  std::int64_t first_layer = 0;
  c10::Device device{c10::kCPU};
  // The names of the skips that it takes and sends, by port.
  std::vector<std::string> takes, sends;
  std::shared_ptr<libtorch::DrawStream> draws = std::make_shared<libtorch::DrawStream>();
  CheckpointOptions regions;
  // Whose running statistics are deferred; empty: none.
  std::vector<BatchNorm> batch_norms;
  // Held by one recomputation at a time that turns back what the layers have written.
  std::shared_ptr<std::mutex> replay_lock = std::make_shared<std::mutex>();
  // Whether the layers change the stage's inputs in place, once that was seen. A recomputation
  // could not start from these, so the layers of a checkpointed micro-batch then get copies.
  enum class Changes { kUnknown, kNo, kYes };
  mutable std::atomic<Changes> changes_inputs{Changes::kUnknown};

  // A run needs these besides tensors.
  struct Run {
    std::uint64_t seed = 0;
    std::int64_t micro_batch = 0;
    // Null if nothing is deferred.
    std::shared_ptr<GatheredStatistics> statistics = nullptr;
  };
  // Runs the layers. Skips stand behind the values, of the inputs and of the outputs.
  Tensors run(const Tensors& inputs, const Run& of) const;
  // The same on copies of the inputs that are no twins, and notes whether the layers have changed
  // them.
  Tensors run_on_copies(const Tensors& inputs, const std::vector<bool>& are_twins,
                        const Run& of) const;
};

struct StagePlan;

// A stage and a micro-batch, from forward to backward.
class StageRun {
 public:
  // The loss, which follows the layers of the last stage and belongs to that stage.
  using Then = std::function<Tensors(Tensors)>;
  // Kept as a whole, checkpointed as a whole, or by a plan.
  struct Residency {
    bool checkpointed = false;
    std::shared_ptr<const StagePlan> plan = nullptr;
  };

  struct Work {
    std::uint64_t seed = 0;
    std::int64_t micro_batch = 0;
    Residency residency = {};
    Then then = {};
  };
  struct Made {
    Tensors outputs;
    std::vector<Twins> twins;  // of each
  };

  // Records a graph if grad mode is on. Inputs that require grad get gradients. The outputs have no
  // history, and require grad where backward needs their gradients. Throws UsageError for a change
  // of a twin. `destinations`: the stages that so many outputs go to.
  Made forward(const std::shared_ptr<const Stage>& stage, const Tensors& inputs, const Work& work,
               const TwinWatch& twins,
               const std::function<std::vector<std::int64_t>(std::size_t)>& destinations);

  // Whether recompute() has something to do.
  bool waits_for_recompute() const;
  void recompute();
  // Gradients are freed as soon as they are used.
  Tensors backward(Tensors gradients, bool keep);
  Tensors backward_inputs(Tensors gradients);
  void backward_weights();

  // Gives the statistics of forward away. Null if nothing is deferred.
  std::shared_ptr<GatheredStatistics> take_statistics() { return std::move(statistics_); }

 private:
  libtorch::StageGraph graph_;
  std::shared_ptr<GatheredStatistics> statistics_;
  // These can run again before the gradient is there.
  std::vector<std::shared_ptr<region::Frame>> frames_;
};

}  // namespace reprise::pipeline
