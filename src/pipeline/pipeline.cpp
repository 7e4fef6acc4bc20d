// The entry points behind reprise/pipeline.h.
#include <reprise/pipeline.h>

#include <ATen/ops/add.h>
#include <ATen/ops/mul.h>
#include <c10/core/GradMode.h>
#include <reprise/error.h>

#include <algorithm>
#include <mutex>
#include <string>
#include <utility>

#include "libtorch/autograd/own_backward.h"
#include "libtorch/autograd/saved_tensor.h"
#include "pipeline/residency.h"
#include "pipeline/step.h"

namespace reprise {

using pipeline::Step;
using pipeline::Tensors;

void detail::check_count(std::size_t wanted, std::size_t given) {
  if (wanted == given) return;
  throw UsageError("Pipeline: a layer returned " + std::to_string(given) +
                   " tensors where its type has " + std::to_string(wanted) +
                   "; all layers must take and return the same type, or a vector of tensors");
}

namespace {

using LossOfTensors = std::function<at::Tensor(const Tensors& output, const Tensors& target)>;

}  // namespace

struct Pipeline::Impl {
  std::shared_ptr<pipeline::Core> core;
  std::mutex mutex;  // guards what follows
  std::shared_ptr<const Step::Record> last;
  pipeline::ResidencyPlans plans;  // has a lock of its own

  void note(const Step& step) {
    const std::lock_guard<std::mutex> lock(mutex);
    last = step.record();
  }

  // The plan for step(), by the first micro-batch.
  std::shared_ptr<const pipeline::PlannedResidency> plan_of(const PipelineSchedule& schedule,
                                                            const Tensors& input,
                                                            const Tensors& target,
                                                            const LossOfTensors& loss) {
    const auto loss_of = [&](const at::Tensor& output) { return loss({output}, target); };
    return plans.plan_for(*core, {schedule, input, target, loss_of});
  }
  // The plan for forward() of that mini-batch.
  std::shared_ptr<const pipeline::PlannedResidency> plan_of(
      const Tensors& input, const std::vector<std::int64_t>& sizes) {
    Tensors first;
    {
      const c10::AutoGradMode no_history(false);
      first = pipeline::scatter(input, {sizes.front()}).front();
    }
    for (std::size_t i = 0; i < first.size(); ++i)
      first[i].set_requires_grad(input[i].requires_grad());
    return plans.plan_for(*core,
                          {pipeline::forward_schedule(core->layout, std::ssize(sizes)), first,
                           /*target=*/{}, /*loss=*/{}});
  }
};

namespace {

// A region's hooks would see what the workers save in an order that depends on chance, and a
// recomputation would wait for workers that wait for it.
void check_caller(const char* call) {
  if (!c10::GradMode::is_enabled() || (!is_checkpointing() && !is_recomputing())) return;
  throw UsageError(std::string("Pipeline::") + call +
                   ": a pipeline cannot run inside of checkpoint() or of a checkpointed stage; use "
                   "the pipeline's own PipelineOptions::checkpoint");
}

std::shared_ptr<pipeline::Stage> make_stage(const std::vector<PipelineLayer>& layers,
                                            const pipeline::Layout& layout, std::size_t index,
                                            const PipelineOptions& options) {
  const auto& part = layout.stages[index];
  auto stage = std::make_shared<pipeline::Stage>();
  stage->layers.assign(layers.begin() + part.first_layer,
                       layers.begin() + part.first_layer + part.layers);
  stage->first_layer = part.first_layer;
  stage->device = part.device;
  for (const std::size_t skip : part.takes) stage->takes.push_back(layout.skips[skip].name);
  for (const std::size_t skip : part.sends) stage->sends.push_back(layout.skips[skip].name);
  stage->regions = options.regions;
  if (stage->regions.name.empty()) stage->regions.name = "stage " + std::to_string(index);
  for (const PipelineLayer& layer : stage->layers) {
    if (layer.move && !options.devices.empty()) layer.move(part.device);
    if (!options.deferred_batch_norm || layer.module == nullptr) continue;
    pipeline::add_batch_norms(layer.module, stage->batch_norms);
  }
  return stage;
}

}  // namespace

Pipeline::Pipeline(std::vector<PipelineLayer> layers, PipelineOptions options)
    : impl_(std::make_unique<Impl>()) {
  auto core = std::make_shared<pipeline::Core>();
  core->layout = pipeline::layout_of(layers, options);
  for (std::size_t stage = 0; stage < core->layout.stages.size(); ++stage) {
    core->stages.push_back(make_stage(layers, core->layout, stage, options));
  }
  if (options.deferred_batch_norm &&
      std::all_of(core->stages.begin(), core->stages.end(),
                  [](const auto& stage) { return stage->batch_norms.empty(); })) {
    throw UsageError(
        "Pipeline: deferred_batch_norm is true, and no layer has a BatchNorm module with running "
        "statistics; leave it out, or give layers that are made by hand their "
        "PipelineLayer::module");
  }
  for (std::int64_t worker = 0; worker < core->layout.workers; ++worker) {
    core->streams.emplace_back(core->layout.device_of(worker));
  }
  core->options = std::move(options);
  core->layers = std::move(layers);
  core->workers = std::make_unique<pipeline::Workers>(core->layout.workers);
  impl_->core = std::move(core);
}

Pipeline::~Pipeline() = default;
Pipeline::Pipeline(Pipeline&&) noexcept = default;
Pipeline& Pipeline::operator=(Pipeline&&) noexcept = default;

std::vector<at::Tensor> Pipeline::forward_tensors(std::vector<at::Tensor> input) {
  check_caller("forward()");
  const auto& core = impl_->core;
  const auto sizes = pipeline::sizes_of(pipeline::samples_of(input, "input"), core->options.chunks);
  const auto micro_batches = static_cast<std::int64_t>(sizes.size());
  Step::Plan plan{micro_batches, checkpoint_stop(micro_batches)};
  if (!core->options.bytes.empty() && c10::GradMode::is_enabled()) {
    plan.residency = impl_->plan_of(input, sizes);
  }
  plan.seed = seed_of_pipeline();
  const auto step = std::make_shared<Step>(core, std::move(plan));
  impl_->note(*step);

  const bool records = c10::GradMode::is_enabled();
  Tensors bare;
  for (const at::Tensor& tensor : input) {
    bare.push_back(libtorch::alias_without_history(tensor));
    bare.back().set_requires_grad(records && tensor.requires_grad());
  }
  {
    const c10::AutoGradMode no_history(false);
    auto parts = pipeline::scatter(bare, sizes);
    for (std::int64_t i = 0; i < micro_batches; ++i) {
      auto& part = parts[static_cast<std::size_t>(i)];
      for (std::size_t k = 0; k < part.size(); ++k)
        part[k].set_requires_grad(bare[k].requires_grad());
      step->give_input(i, std::move(part));
    }
  }
  step->run(pipeline::forward_actions(core->layout, micro_batches));
  step->update_running_statistics();

  std::vector<Tensors> parts;
  for (std::int64_t i = 0; i < micro_batches; ++i) parts.push_back(step->take_output(i));
  const c10::AutoGradMode no_history(false);
  Tensors output = pipeline::gather(parts, sizes);
  if (!records) return output;

  // Of the outputs with a history, their places among all.
  std::vector<std::size_t> places;
  // Their first dimension in each micro-batch, which need not be the number of samples.
  std::vector<std::vector<std::int64_t>> rows;
  Tensors with_history;
  for (std::size_t k = 0; k < output.size(); ++k) {
    const auto has_history = [k](const Tensors& part) {
      return part[k].defined() && part[k].requires_grad();
    };
    if (std::none_of(parts.begin(), parts.end(), has_history)) continue;
    std::vector<std::int64_t>& own = rows.emplace_back();
    for (const Tensors& part : parts) own.push_back(part[k].dim() > 0 ? part[k].size(0) : 1);
    places.push_back(k);
    with_history.push_back(libtorch::alias_without_history(output[k]));
  }
  if (places.empty()) return output;
  const std::size_t outputs = output.size();
  const auto run_backward = [core, step, sizes, places, rows, outputs](Tensors gradients,
                                                                       bool keep) {
    const auto micro_batches = static_cast<std::int64_t>(sizes.size());
    std::vector<std::int64_t> begins(places.size());
    for (std::int64_t i = 0; i < micro_batches; ++i) {
      Tensors part(outputs);
      for (std::size_t k = 0; k < places.size(); ++k) {
        const std::int64_t size = rows[k][static_cast<std::size_t>(i)];
        const bool is_whole = micro_batches == 1 || !gradients[k].defined();
        part[places[k]] = is_whole ? gradients[k] : gradients[k].narrow(0, begins[k], size);
        begins[k] += size;
      }
      step->give_gradient(i, std::move(part));
    }
    gradients.clear();
    step->run(pipeline::backward_actions(core->layout, micro_batches), keep);
    std::vector<Tensors> made;
    for (std::int64_t i = 0; i < micro_batches; ++i) made.push_back(step->take_input_gradient(i));
    return pipeline::gather(made, sizes);
  };
  libtorch::set_own_backward(with_history, input, {run_backward, "Pipeline::forward()"});
  for (std::size_t k = 0; k < places.size(); ++k) output[places[k]] = with_history[k];
  return output;
}

StepResult Pipeline::step(const at::Tensor& input, const at::Tensor& target, const Loss& loss,
                          const StepOptions& options) {
  return step_tensors(
      {input}, {target},
      [loss](const Tensors& output, const Tensors& targets) {
        detail::check_count(1, output.size());
        return loss(output.front(), targets.front());
      },
      options);
}

StepResult Pipeline::step_tensors(
    std::vector<at::Tensor> input, std::vector<at::Tensor> target,
    const std::function<at::Tensor(const std::vector<at::Tensor>&, const std::vector<at::Tensor>&)>&
        loss,
    const StepOptions& options) {
  check_caller("step()");
  for (const Tensors* tensors : {&input, &target}) {
    for (const at::Tensor& tensor : *tensors) {
      if (!tensor.defined() || !tensor.requires_grad()) continue;
      throw UsageError(std::string("Pipeline::step(): an ") +
                       (tensors == &input ? "input" : "target") +
                       " requires grad, and step() makes no gradients of these; detach it, or call "
                       "forward() and backward()");
    }
  }
  const auto& core = impl_->core;
  const std::int64_t samples = pipeline::samples_of(input, "input");
  pipeline::samples_of(target, "target", samples);
  if (!c10::GradMode::is_enabled()) {
    throw UsageError(
        "Pipeline::step(): grad mode is off, and a step runs backward; call forward()");
  }
  const auto sizes = pipeline::sizes_of(samples, core->options.chunks);
  const auto micro_batches = static_cast<std::int64_t>(sizes.size());
  const PipelineSchedule order = schedule(micro_batches);
  std::vector<Tensors> targets, inputs;
  {
    const c10::AutoGradMode no_history(false);
    targets = pipeline::scatter(target, sizes);
    inputs = pipeline::scatter(input, sizes);
  }
  const bool keeps_outputs = options.outputs;
  // The function owns what it needs: a region that outlives a failed step may run again.
  const auto then = [loss, targets, keeps_outputs](std::int64_t micro_batch, Tensors outputs) {
    const at::Tensor value = loss(outputs, targets[static_cast<std::size_t>(micro_batch)]);
    if (!value.defined() || value.numel() != 1) {
      throw UsageError("Pipeline::step(): the loss of a micro-batch has " +
                       std::to_string(value.defined() ? value.numel() : 0) +
                       " elements; it must return a tensor with one");
    }
    Tensors result{value};
    if (keeps_outputs) {
      for (const at::Tensor& output : outputs)
        result.push_back(output.defined() ? output.detach() : output);
    }
    return result;
  };
  std::vector<double> weights;
  for (const std::int64_t size : sizes) {
    const bool is_mean = options.reduction == LossReduction::kMean;
    weights.push_back(is_mean ? static_cast<double>(size) / static_cast<double>(samples) : 1.0);
  }
  Step::Plan plan{.micro_batches = micro_batches,
                  .checkpoint_stop = checkpoint_stop(micro_batches),
                  .then = then,
                  .weights = weights};
  if (!core->options.bytes.empty()) {
    plan.residency = impl_->plan_of(order, inputs.front(), targets.front(), loss);
  }
  plan.seed = seed_of_pipeline();
  const auto step = std::make_shared<Step>(core, std::move(plan));
  impl_->note(*step);
  for (std::int64_t i = 0; i < micro_batches; ++i) {
    step->give_input(i, std::move(inputs[static_cast<std::size_t>(i)]));
  }
  step->run(pipeline::actions_of(order));
  step->update_running_statistics();
  const c10::AutoGradMode no_history(false);
  StepResult result;
  std::vector<Tensors> outputs;
  for (std::int64_t i = 0; i < micro_batches; ++i) {
    Tensors made = step->take_output(i);
    const at::Tensor value = at::mul(made.front(), weights[static_cast<std::size_t>(i)]);
    result.loss = result.loss.defined() ? at::add(result.loss, value) : value;
    outputs.emplace_back(made.begin() + 1, made.end());
  }
  if (keeps_outputs) result.outputs = pipeline::gather(outputs, sizes);
  return result;
}

void Pipeline::train(bool on) {
  for (const PipelineLayer& layer : impl_->core->layers) {
    if (layer.train) layer.train(on);
  }
}

bool Pipeline::is_training() const {
  const auto& layers = impl_->core->layers;
  return std::any_of(layers.begin(), layers.end(), [](const PipelineLayer& layer) {
    return layer.is_training && layer.is_training();
  });
}

std::vector<at::Tensor> Pipeline::parameters() const {
  std::vector<at::Tensor> parameters;
  for (const PipelineLayer& layer : impl_->core->layers) {
    parameters.insert(parameters.end(), layer.parameters.begin(), layer.parameters.end());
  }
  return parameters;
}

std::int64_t Pipeline::stages() const {
  return static_cast<std::int64_t>(impl_->core->stages.size());
}

std::int64_t Pipeline::checkpoint_stop(std::int64_t micro_batches) const {
  if (!c10::GradMode::is_enabled() || !is_training()) return 0;
  const PipelineOptions& options = impl_->core->options;
  if (options.checkpoint_stop) return std::min(*options.checkpoint_stop, micro_batches);
  switch (options.checkpoint) {
    case CheckpointMode::kAlways:
      return micro_batches;
    case CheckpointMode::kExceptLast:
      return micro_batches - 1;
    case CheckpointMode::kNever:
      break;
  }
  return 0;
}

PipelineSchedule Pipeline::schedule(std::int64_t micro_batches) const {
  return pipeline::schedule_for(impl_->core->options, micro_batches);
}

PipelineResidency Pipeline::plan(const at::Tensor& input) {
  const auto sizes =
      pipeline::sizes_of(pipeline::samples_of({input}, "input"), impl_->core->options.chunks);
  return impl_->plan_of({input}, sizes)->plan;
}

PipelineResidency Pipeline::plan(const at::Tensor& input, const at::Tensor& target,
                                 const Loss& loss) {
  const std::int64_t samples = pipeline::samples_of({input}, "input");
  pipeline::samples_of({target}, "target", samples);
  const auto sizes = pipeline::sizes_of(samples, impl_->core->options.chunks);
  const c10::AutoGradMode no_history(false);
  const auto first = [&](const at::Tensor& whole) {
    return pipeline::scatter({whole}, {sizes.front()}).front();
  };
  const auto loss_of = [&](const Tensors& output, const Tensors& targets) {
    return loss(output.front(), targets.front());
  };
  return impl_->plan_of(schedule(std::ssize(sizes)), first(input), first(target), loss_of)->plan;
}

PipelineTimeline Pipeline::timeline() const {
  const std::lock_guard<std::mutex> lock(impl_->mutex);
  return impl_->last != nullptr ? impl_->last->timeline() : PipelineTimeline();
}

}  // namespace reprise
