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
  if (plan_.residency == nullptr) return;
  // The caller gives all at once, and does not wait for room.
  const auto& stages = plan_.residency->plan.stages;
  for (std::int64_t s = 0; s < std::ssize(stages); ++s) {
    const auto& stage = stages[static_cast<std::size_t>(s)];
    if (s > 0) exchange_->limit(Way::kForward, s, stage.most_inputs_waiting);
    if (s + 1 < std::ssize(stages)) {
      exchange_->limit(Way::kBackward, s, stage.most_gradients_waiting);
    }
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

const libtorch::WorkerStreams* Step::streams_of(std::int64_t stage) const {
  const bool is_callers = stage < 0 || stage >= std::ssize(runs_);
  if (is_callers) return nullptr;
  const auto worker = core_->layout.stages[static_cast<std::size_t>(stage)].worker;
  return &core_->streams[static_cast<std::size_t>(worker)];
}

void Step::send(Way way, std::int64_t from, std::int64_t to, std::int64_t micro_batch,
                std::int64_t port, Tensors tensors, std::vector<Twins> twins) {
  // The caller gives all micro-batches at once. Each goes to the stage's device when it is taken.
  const bool is_callers = streams_of(from) == nullptr;
  // Before anything takes memory of the receiver.
  if (port == 0 && !is_callers) exchange_->wait_for_room(way, to);
  exchange_->send(way, to, micro_batch, port,
                  {libtorch::ship(std::move(tensors), streams_of(from),
                                  is_callers ? nullptr : streams_of(to), way),
                   std::move(twins)});
}

Step::Received Step::receive(Way way, std::int64_t stage, std::int64_t micro_batch,
                             std::int64_t port) {
  Parcel parcel = exchange_->receive(way, stage, micro_batch, port);
  Received received{libtorch::take(std::move(parcel.shipment)), std::move(parcel.twins)};
  received.twins.resize(received.tensors.size());
  const bool is_callers = streams_of(stage + (way == Way::kForward ? -1 : 1)) == nullptr;
  if (!is_callers || port > 0) return received;
  received.tensors =
      libtorch::take(libtorch::ship(std::move(received.tensors), nullptr, streams_of(stage), way));
  return received;
}

void Step::give_input(std::int64_t micro_batch, Tensors inputs) {
  auto twins = twins_of(inputs, std::vector<std::int64_t>(inputs.size(), 0));
  send(Way::kForward, -1, 0, micro_batch, 0, std::move(inputs), std::move(twins));
}

Tensors Step::take_output(std::int64_t micro_batch) {
  return receive(Way::kForward, std::ssize(runs_), micro_batch, 0).tensors;
}

void Step::give_gradient(std::int64_t micro_batch, Tensors gradients) {
  const std::int64_t end = std::ssize(runs_);
  send(Way::kBackward, end, end - 1, micro_batch, 0, std::move(gradients));
}

Tensors Step::take_input_gradient(std::int64_t micro_batch) {
  return receive(Way::kBackward, -1, micro_batch, 0).tensors;
}

void Step::run(const std::vector<Actions>& actions, bool keep) {
  record_->start();
  // Workers begin after what the caller's streams were given, and these go on after the workers.
  libtorch::StreamPoints before;
  for (const auto& streams : core_->streams) before.add_current(streams.device());
  std::vector<libtorch::StreamPoints> after(core_->streams.size());
  core_->workers->run([&](std::int64_t worker) {
    const auto w = static_cast<std::size_t>(worker);
    const libtorch::WorkerStreams& streams = core_->streams[w];
    const libtorch::WorkerStreams::Scope here(streams);
    try {
      before.hold_back_current(streams.device());
      if (core_->options.threads > 0) at::set_num_threads(core_->options.threads);
      work(worker, actions[w], keep);
      after[w].add_current(streams.device());
    } catch (...) {
      exchange_->fail(std::current_exception());
    }
  });
  record_->stop();
  for (std::size_t w = 0; w < after.size(); ++w) {
    after[w].hold_back_current(core_->streams[w].device());
  }
  for (const auto& stage : core_->layout.stages) {
    const auto& streams = core_->streams[static_cast<std::size_t>(stage.worker)];
    for (std::int64_t i = stage.first_layer; i < stage.first_layer + stage.layers; ++i) {
      libtorch::lend_gradients(core_->layers[static_cast<std::size_t>(i)].parameters, streams);
    }
  }
  if (const auto error = exchange_->error()) {
    for (const auto& streams : core_->streams) streams.drain();
    runs_.clear();
    exchange_ = std::make_unique<Exchange>();
    exchange_->fail(error);
    std::rethrow_exception(error);
  }
}

void Step::update_running_statistics() {
  for (std::size_t s = 0; s < runs_.size(); ++s) {
    std::vector<std::shared_ptr<GatheredStatistics>> parts;
    for (StageRun& run : runs_[s]) parts.push_back(run.take_statistics());
    if (parts.front() == nullptr) continue;
    pipeline::update_running_statistics(core_->stages[s]->batch_norms, parts);
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
      Received inputs = receive(Way::kForward, action.stage, action.micro_batch, 0);
      const auto& stage = core_->layout.stages[static_cast<std::size_t>(action.stage)];
      for (std::int64_t port = 1; port <= std::ssize(stage.takes); ++port) {
        Received skip = receive(Way::kForward, action.stage, action.micro_batch, port);
        inputs.tensors.push_back(std::move(skip.tensors.front()));
        inputs.twins.push_back(std::move(skip.twins.front()));
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

void Step::forward(const PipelineAction& action, Received received) {
  const auto& layout = core_->layout;
  const auto& stage = layout.stages[static_cast<std::size_t>(action.stage)];
  const bool is_last = action.stage + 1 == static_cast<std::int64_t>(runs_.size());
  StageRun::Then then;
  if (is_last && plan_.then) {
    then = [micro_batch = action.micro_batch, function = plan_.then](Tensors outputs) {
      return function(micro_batch, std::move(outputs));
    };
  }
  TwinWatch twins(action.stage, received.tensors, std::move(received.twins));
  const auto destinations = [&](std::size_t outputs) {
    std::vector<std::int64_t> to(outputs - stage.sends.size(), action.stage + 1);
    for (const std::size_t skip : stage.sends) to.push_back(layout.skips[skip].to);
    return to;
  };
  auto [outputs, output_twins] = run_of(action).forward(
      core_->stages[static_cast<std::size_t>(action.stage)], received.tensors,
      {plan_.seed, action.micro_batch, residency_of(action), then}, twins, destinations);
  const std::size_t values = outputs.size() - stage.sends.size();
  for (std::size_t i = 0; i < stage.sends.size(); ++i) {
    const auto& skip = layout.skips[stage.sends[i]];
    send(Way::kForward, action.stage, skip.to, action.micro_batch, skip.taken_as,
         {std::move(outputs[values + i])}, {std::move(output_twins[values + i])});
  }
  outputs.resize(values);
  output_twins.resize(values);
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
  send(Way::kForward, action.stage, action.stage + 1, action.micro_batch, 0, std::move(outputs),
       std::move(output_twins));
}

Tensors Step::gradients_of(const PipelineAction& action) {
  Tensors gradients = receive(Way::kBackward, action.stage, action.micro_batch, 0).tensors;
  const auto& stage = core_->layout.stages[static_cast<std::size_t>(action.stage)];
  for (std::int64_t port = 1; port <= static_cast<std::int64_t>(stage.sends.size()); ++port) {
    Tensors skip = receive(Way::kBackward, action.stage, action.micro_batch, port).tensors;
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
    send(Way::kBackward, action.stage, skip.from, action.micro_batch, skip.sent_as,
         {std::move(gradients[values + i])});
  }
  gradients.resize(values);
  send(Way::kBackward, action.stage, action.stage - 1, action.micro_batch, 0, std::move(gradients));
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
