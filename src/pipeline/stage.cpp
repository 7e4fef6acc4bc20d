#include "pipeline/stage.h"

#include <c10/core/GradMode.h>
#include <reprise/error.h>

#include <algorithm>
#include <utility>

#include "libtorch/autograd/saved_tensor.h"
#include "libtorch/base/thread_state.h"
#include "pipeline/draws.h"
#include "pipeline/skips.h"
#include "pipeline/stage_plan.h"

namespace reprise::pipeline {
namespace {

std::shared_ptr<libtorch::ThreadState> state_with(std::shared_ptr<detail::SkipTracker> tracker) {
  auto state = libtorch::copy_of_current_state();
  state->skips = std::move(tracker);
  return state;
}

// Without history. Outputs that share memory may go to two workers: each gets its own.
Tensors apart(Tensors outputs) {
  for (at::Tensor& output : outputs) {
    if (!output.defined()) continue;
    const bool requires_grad = output.requires_grad();
    output = libtorch::alias_without_history(output);
    output.set_requires_grad(requires_grad);
  }
  for (std::size_t i = 1; i < outputs.size(); ++i) {
    const auto shares = [&](const at::Tensor& other) {
      return other.defined() && outputs[i].has_storage() && other.has_storage() &&
             other.storage().is_alias_of(outputs[i].storage());
    };
    const auto end = outputs.begin() + static_cast<std::ptrdiff_t>(i);
    if (!outputs[i].defined() || std::none_of(outputs.begin(), end, shares)) continue;
    const bool requires_grad = outputs[i].requires_grad();
    outputs[i] = outputs[i].detach().clone().set_requires_grad(requires_grad);
  }
  return outputs;
}

}  // namespace

Tensors Stage::run(const Tensors& inputs, const Run& of) const {
  const auto tracker = std::make_shared<detail::SkipTracker>();
  const libtorch::ThreadStateScope skips(state_with(tracker));
  const std::size_t values = inputs.size() - takes.size();
  for (std::size_t i = 0; i < takes.size(); ++i) tracker->stash(takes[i], inputs[values + i]);
  Tensors tensors(inputs.begin(), inputs.begin() + static_cast<std::ptrdiff_t>(values));
  const libtorch::DrawStreamScope drawing(draws);
  std::optional<GatheringScope> gathering;
  if (of.statistics != nullptr) gathering.emplace(batch_norms, of.statistics);
  for (std::size_t i = 0; i < layers.size(); ++i) {
    draws->start(
        seed_of_layer(of.seed, of.micro_batch, first_layer + static_cast<std::int64_t>(i)));
    tracker->begin_layer(layers[i]);
    tensors = layers[i].forward(std::move(tensors));
    tracker->end_layer();
  }
  for (const std::string& name : sends) tensors.push_back(tracker->pop(name));
  return tensors;
}

Tensors Stage::run_on_copies(const Tensors& inputs, const std::vector<bool>& are_twins,
                             const Run& of) const {
  Tensors copies;
  std::vector<std::uint32_t> versions;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const at::Tensor& input = inputs[i];
    copies.push_back(input.defined() && !are_twins[i] ? input.clone() : input);
    versions.push_back(input.defined() ? libtorch::version_of(copies.back()) : 0);
  }
  Tensors outputs = run(copies, of);
  bool is_changed = false;
  for (std::size_t i = 0; i < copies.size(); ++i) {
    is_changed =
        is_changed || (copies[i].defined() && libtorch::version_of(copies[i]) != versions[i]);
  }
  changes_inputs = is_changed ? Changes::kYes : Changes::kNo;
  return outputs;
}

StageRun::Made StageRun::forward(
    const std::shared_ptr<const Stage>& stage, const Tensors& inputs, const Work& work,
    const TwinWatch& twins,
    const std::function<std::vector<std::int64_t>(std::size_t)>& destinations) {
  const Residency& residency = work.residency;
  const bool copies = residency.checkpointed && stage->changes_inputs != Stage::Changes::kNo;
  std::vector<bool> are_twins, needs_gradient;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    are_twins.push_back(twins.is_twin(i));
    needs_gradient.push_back(inputs[i].defined() && inputs[i].requires_grad());
  }
  if (!stage->batch_norms.empty()) {
    statistics_ = std::make_shared<GatheredStatistics>(
        std::shared_ptr<const std::vector<BatchNorm>>(stage, &stage->batch_norms));
  }
  const Stage::Run run{work.seed, work.micro_batch, statistics_};
  const auto function = [stage, run, copies, are_twins, then = work.then](const Tensors& values) {
    Tensors outputs =
        copies ? stage->run_on_copies(values, are_twins, run) : stage->run(values, run);
    return then ? then(std::move(outputs)) : outputs;
  };
  const bool records = c10::GradMode::is_enabled();
  Tensors here = records ? graph_.enter(inputs, needs_gradient) : inputs;
  Tensors outputs;
  auto state = libtorch::copy_of_current_state();
  state->replay_lock = stage->replay_lock;
  const libtorch::ThreadStateScope own_lock(std::move(state));
  if (records && residency.plan != nullptr) {
    PlannedRun planned = run_by_plan(stage, residency.plan, std::move(here), run, work.then);
    outputs = std::move(planned.outputs);
    frames_ = std::move(planned.ahead);
  } else if (records && residency.checkpointed) {
    auto call = detail::make_call(function, std::move(here));
    frames_.push_back(region::run_in_frame(stage->regions, call));
    outputs = call->take_result();
  } else {
    outputs = function(here);
  }
  twins.check();
  Made made{{}, twins.of_outputs(outputs, destinations(outputs.size()))};
  if (records) {
    graph_.leave(outputs);
    outputs = apart(std::move(outputs));
  }
  made.outputs = std::move(outputs);
  return made;
}

bool StageRun::waits_for_recompute() const {
  return std::any_of(frames_.begin(), frames_.end(),
                     [](const auto& frame) { return !frame->is_done(); });
}

void StageRun::recompute() {
  // The graph holds what is needed of them from then on.
  for (const auto& frame : std::exchange(frames_, {})) frame->recompute_ahead();
}

Tensors StageRun::backward(Tensors gradients, bool keep) {
  Tensors result = graph_.backward(std::move(gradients), keep);
  if (!keep) frames_.clear();
  return result;
}

Tensors StageRun::backward_inputs(Tensors gradients) {
  return graph_.backward_inputs(std::move(gradients));
}

void StageRun::backward_weights() {
  graph_.backward_weights();
  frames_.clear();
}

}  // namespace reprise::pipeline
