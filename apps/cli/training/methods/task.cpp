#include "apps/cli/training/methods/task.h"

#include <ATen/ops/argmax.h>
#include <c10/core/GradMode.h>
#include <fmt/format.h>

#include "apps/cli/io/figures.h"
#include "models/transformer.h"

namespace reprise::app {

namespace {

class EvaluationMode {
 public:
  explicit EvaluationMode(torch::nn::Module& module)
      : module_(module), was_training_(module.is_training()) {
    module_.eval();
  }
  ~EvaluationMode() { module_.train(was_training_); }
  EvaluationMode(const EvaluationMode&) = delete;
  EvaluationMode& operator=(const EvaluationMode&) = delete;

 private:
  torch::nn::Module& module_;
  bool was_training_;
  c10::NoGradGuard no_grad_;
};

}  // namespace

Task make_task(const TaskOptions& options, c10::Device device) {
  Task task = options.run.model == "vit" ? make_image_task(options, device)
                                         : make_text_task(options, device);
  task.model += fmt::format(
      ": {} parameters", format_count(static_cast<double>(models::parameter_count(*task.module))));
  return task;
}

Validation validate(const Task& task) {
  const EvaluationMode evaluation(*task.module);
  Validation found;
  double loss = 0, right = 0;
  std::int64_t examples = 0;
  for (const TaskBatch& batch : task.held_out) {
    at::Tensor x = task.first(batch.input);
    for (const models::Layer& block : task.blocks) x = block(x);
    const std::int64_t count = batch.input.size(0);
    loss += task.loss(x, batch.target).item<double>() * static_cast<double>(count);
    if (task.classify) {
      right += task.classify(x).argmax(-1).eq(batch.target).sum().item<double>();
    }
    examples += count;
  }
  found.loss = loss / static_cast<double>(examples);
  if (task.classify) found.accuracy = right / static_cast<double>(examples);
  return found;
}

}  // namespace reprise::app
