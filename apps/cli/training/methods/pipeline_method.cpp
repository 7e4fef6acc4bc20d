#include "apps/cli/training/methods/pipeline_method.h"

#include "apps/cli/training/pipelined/pipelined_model.h"

namespace reprise::app {

namespace {

class PipelineMethod final : public TrainingMethod {
 public:
  PipelineMethod(const PipelineChoice& choice, const Task& task, c10::Device device)
      : model_(choice,
               {.model = task.module.get(),
                .first = task.first,
                .blocks = task.blocks,
                .block_names = task.block_names,
                .loss = task.loss},
               task.batch(0).input, device, {}) {}

  double step(const TaskBatch& batch, StepSeconds& seconds) override {
    const at::Tensor loss = model_.step(batch.input, batch.target);
    for (const auto& worker : model_.timeline().workers) {
      for (const PipelineEvent& event : worker.events) {
        const bool is_forward = event.action.work == PipelineWork::kForward;
        const double taken = (event.end - event.begin).count();
        (is_forward ? seconds.forward : seconds.backward) += taken;
        if (event.recompute) seconds.recompute += taken;
      }
    }
    return loss.item<double>();
  }

 private:
  PipelinedModel model_;
};

}  // namespace

std::unique_ptr<TrainingMethod> make_pipeline_method(const PipelineChoice& choice, const Task& task,
                                                     c10::Device device) {
  return std::make_unique<PipelineMethod>(choice, task, device);
}

}  // namespace reprise::app
