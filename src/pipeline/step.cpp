#include "pipeline/step.h"

#include <ATen/Parallel.h>
#include <ATen/ops/full_like.h>
#include <reprise/error.h>

#include <algorithm>
#include <utility>

namespace reprise::pipeline {

Step::Step(std::shared_ptr<Core> core, Plan plan)
    : core_(std::move(core)),
      plan_(std::move(plan)),
      record_(std::make_shared<Record>(core_->layout.workers)) {
  for (std::size_t stage = 0; stage < core_->stages.size(); ++stage) {
    runs_.emplace_back(static_cast<std::size_t>(plan_.micro_batches));
  }
}

StageRun& Step::run_of(const PipelineAction& action) {
  return runs_[static_cast<std::size_t>(action.stage)]
              [static_cast<std::size_t>(action.micro_batch)];
}

StageRun::Residency Step::residency_of(const PipelineAction& action) const {
  if (plan_.residency == nullptr) return {action.micro_batch < plan_.checkpoint_stop, nullptr};
  return {false, plan_.residency->of(action.stage, action.micro_batch)};
}

void Step::give_input(std::int64_t micro_batch, Tensors inputs) {
  exchange_->send(Way::kForward, 0, micro_batch, 0, std::move(inputs));
}

Tensors Step::take_output(std::int64_t micro_batch) {
  return exchange_->receive(Way::kForward, static_cast<std::int64_t>(runs_.size()), micro_batch, 0);
}

void Step::give_gradient(std::int64_t micro_batch, Tensors gradients) {
  exchange_->send(Way::kBackward, static_cast<std::int64_t>(runs_.size()) - 1, micro_batch, 0,
                  std::move(gradients));
}

Tensors Step::take_input_gradient(std::int64_t micro_batch) {
  return exchange_->receive(Way::kBackward, -1, micro_batch, 0);
}

void Step::run(const std::vector<Actions>& actions, bool keep) {
  record_->start();
  core_->workers->run([&](std::int64_t worker) {
    try {
      if (core_->options.threads > 0) at::set_num_threads(core_->options.threads);
      work(worker, actions[static_cast<std::size_t>(worker)], keep);
    } catch (...) {
      exchange_->fail(std::current_exception());
    }
  });
  record_->stop();
  if (const auto error = exchange_->error()) {
    runs_.clear();
    exchange_ = std::make_unique<Exchange>();
    exchange_->fail(error);
    std::rethrow_exception(error);
  }
}

void Step::work(std::int64_t worker, const Actions& actions, bool keep) {
  for (const PipelineAction& action : actions) {
    if (exchange_->error() != nullptr) return;
    perform(worker, action, keep);
  }
}

void Step::perform(std::int64_t worker, const PipelineAction& action, bool keep) {
  StageRun& run = run_of(action);
  const auto timed = [&](bool recompute, const auto& work) {
    const PipelineEvent event = record_->timed(worker, action, recompute, work);
    if (core_->options.on_event) core_->options.on_event(event);
  };
  switch (action.work) {
    case PipelineWork::kForward: {
      Tensors inputs = exchange_->receive(Way::kForward, action.stage, action.micro_batch, 0);
      const auto& stage = core_->layout.stages[static_cast<std::size_t>(action.stage)];
      for (std::int64_t port = 1; port <= static_cast<std::int64_t>(stage.takes.size()); ++port) {
        Tensors skip = exchange_->receive(Way::kForward, action.stage, action.micro_batch, port);
        inputs.push_back(std::move(skip.front()));
      }
      timed(false, [&] { forward(action, std::move(inputs)); });
      return;
    }
    case PipelineWork::kBackward:
    case PipelineWork::kInputGradient: {
      // Before the gradient is there.
      if (run.waits_for_recompute()) timed(true, [&] { run.recompute(); });
      Tensors gradients = gradients_of(action);
      timed(false, [&] {
        send_input_gradients(action, action.work == PipelineWork::kBackward
                                         ? run.backward(std::move(gradients), keep)
                                         : run.backward_inputs(std::move(gradients)));
      });
      return;
    }
    case PipelineWork::kWeightGradient:
      timed(false, [&] { run.backward_weights(); });
  }
}

void Step::forward(const PipelineAction& action, Tensors inputs) {
  const auto& layout = core_->layout;
  const auto& stage = layout.stages[static_cast<std::size_t>(action.stage)];
  const bool is_last = action.stage + 1 == static_cast<std::int64_t>(runs_.size());
  StageRun::Then then;
  if (is_last && plan_.then) {
    then = [micro_batch = action.micro_batch, function = plan_.then](Tensors outputs) {
      return function(micro_batch, std::move(outputs));
    };
  }
  Tensors outputs = run_of(action).forward(core_->stages[static_cast<std::size_t>(action.stage)],
                                           inputs, plan_.seed, action.micro_batch,
                                           residency_of(action), then);
  const std::size_t values = outputs.size() - stage.sends.size();
  for (std::size_t i = 0; i < stage.sends.size(); ++i) {
    const auto& skip = layout.skips[stage.sends[i]];
    exchange_->send(Way::kForward, skip.to, action.micro_batch, skip.taken_as,
                    {std::move(outputs[values + i])});
  }
  outputs.resize(values);
  if (is_last && plan_.then) {
    at::Tensor& loss = outputs.front();
    // at::mse_loss returns its one element in memory of the size of the output.
    const bool requires_grad = loss.requires_grad();
    loss = loss.detach().clone().set_requires_grad(requires_grad);
    Tensors gradients(outputs.size());
    if (requires_grad) {
      gradients.front() =
          at::full_like(loss, plan_.weights[static_cast<std::size_t>(action.micro_batch)]);
    }
    give_gradient(action.micro_batch, std::move(gradients));
  }
  exchange_->send(Way::kForward, action.stage + 1, action.micro_batch, 0, std::move(outputs));
}

Tensors Step::gradients_of(const PipelineAction& action) {
  Tensors gradients = exchange_->receive(Way::kBackward, action.stage, action.micro_batch, 0);
  const auto& stage = core_->layout.stages[static_cast<std::size_t>(action.stage)];
  for (std::int64_t port = 1; port <= static_cast<std::int64_t>(stage.sends.size()); ++port) {
    Tensors skip = exchange_->receive(Way::kBackward, action.stage, action.micro_batch, port);
    gradients.push_back(std::move(skip.front()));
  }
  return gradients;
}

void Step::send_input_gradients(const PipelineAction& action, Tensors gradients) {
  const auto& layout = core_->layout;
  const auto& stage = layout.stages[static_cast<std::size_t>(action.stage)];
  const std::size_t values = gradients.size() - stage.takes.size();
  for (std::size_t i = 0; i < stage.takes.size(); ++i) {
    const auto& skip = layout.skips[stage.takes[i]];
    exchange_->send(Way::kBackward, skip.from, action.micro_batch, skip.sent_as,
                    {std::move(gradients[values + i])});
  }
  gradients.resize(values);
  exchange_->send(Way::kBackward, action.stage - 1, action.micro_batch, 0, std::move(gradients));
}

void Step::Record::start() { pauses_ += Clock::now() - stopped_; }

void Step::Record::stop() { stopped_ = Clock::now(); }

PipelineTimeline Step::Record::timeline() const {
  PipelineTimeline timeline;
  Seconds busy{};
  for (const auto& events : events_) {
    PipelineTimeline::Worker& worker = timeline.workers.emplace_back();
    worker.events = events;
    for (const PipelineEvent& event : events) {
      worker.busy += event.end - event.begin;
      timeline.time = std::max(timeline.time, event.end);
    }
    busy += worker.busy;
  }
  const double whole = timeline.time.count() * static_cast<double>(timeline.workers.size());
  timeline.bubble = whole > 0 ? 1 - busy.count() / whole : 0;
  return timeline;
}

namespace {

std::vector<Actions> by_stage(const Layout& layout, std::int64_t micro_batches, PipelineWork work) {
  std::vector<Actions> actions(static_cast<std::size_t>(layout.workers));
  for (std::int64_t s = 0; s < static_cast<std::int64_t>(layout.stages.size()); ++s) {
    auto& own =
        actions[static_cast<std::size_t>(layout.stages[static_cast<std::size_t>(s)].worker)];
    for (std::int64_t i = 0; i < micro_batches; ++i) own.push_back({s, work, i});
  }
  return actions;
}

}  // namespace

std::vector<Actions> forward_actions(const Layout& layout, std::int64_t micro_batches) {
  return by_stage(layout, micro_batches, PipelineWork::kForward);
}

std::vector<Actions> backward_actions(const Layout& layout, std::int64_t micro_batches) {
  auto actions = by_stage(layout, micro_batches, PipelineWork::kBackward);
  for (Actions& own : actions) std::reverse(own.begin(), own.end());
  return actions;
}

PipelineSchedule forward_schedule(const Layout& layout, std::int64_t micro_batches) {
  PipelineSchedule schedule{"forward", std::ssize(layout.stages), micro_batches, {}};
  schedule.workers.resize(static_cast<std::size_t>(layout.workers));
  for (const auto& actions :
       {forward_actions(layout, micro_batches), backward_actions(layout, micro_batches)}) {
    for (std::size_t worker = 0; worker < actions.size(); ++worker) {
      for (const PipelineAction& action : actions[worker]) {
        schedule.workers[worker].push_back({action});
      }
    }
  }
  return schedule;
}

std::vector<Actions> actions_of(const PipelineSchedule& schedule) {
  std::vector<Actions> actions;
  for (const auto& slots : schedule.workers) {
    Actions& own = actions.emplace_back();
    for (const PipelineSlot& slot : slots) own.insert(own.end(), slot.begin(), slot.end());
  }
  return actions;
}

}  // namespace reprise::pipeline
