// One mini-batch on its way through the stages: what each worker does at each action of its list.
//
// A Step holds the micro-batches in flight. Workers share nothing of it but the exchange, since a
// stage belongs to one worker. For forward() it lives in the graph until backward has run.
#pragma once

#include <reprise/pipeline.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "pipeline/exchange.h"
#include "pipeline/layout.h"
#include "pipeline/stage.h"
#include "pipeline/stage_plan.h"
#include "pipeline/workers.h"

namespace reprise::pipeline {

// What steps share, and their graphs keep alive.
struct Core {
  PipelineOptions options;
  Layout layout;
  std::vector<std::shared_ptr<Stage>> stages;
  std::vector<PipelineLayer> layers;
  std::vector<libtorch::WorkerStreams> streams;  // of each worker
  std::unique_ptr<Workers> workers;
};

// A plan of residency, and as the stages run it.
struct PlannedResidency {
  PipelineResidency plan;
  std::vector<std::vector<std::shared_ptr<const StagePlan>>> choices;  // of each stage

  std::shared_ptr<const StagePlan> of(std::int64_t stage, std::int64_t micro_batch) const {
    const auto s = static_cast<std::size_t>(stage);
    const auto& choice_of = plan.stages[s].choice_of;
    return choices[s][static_cast<std::size_t>(choice_of[static_cast<std::size_t>(micro_batch)])];
  }
};

// A worker's actions, in order.
using Actions = std::vector<PipelineAction>;

class Step {
 public:
  struct Plan {
    std::int64_t micro_batches = 1;
    std::int64_t checkpoint_stop = 0;
    // In place of checkpoint_stop.
    std::shared_ptr<const PlannedResidency> residency = nullptr;
    std::uint64_t seed = 0;
    // Ends the last stage: makes the loss of a micro-batch, and what else is to be returned, of the
    // outputs. Backward begins at the loss with the gradient `weights[micro_batch]`.
    std::function<Tensors(std::int64_t micro_batch, Tensors outputs)> then = {};
    std::vector<double> weights = {};
  };

  Step(std::shared_ptr<Core> core, Plan plan);

  // Into the first stage, and out of the last one. Inputs that require grad get gradients.
  void give_input(std::int64_t micro_batch, Tensors inputs);
  Tensors take_output(std::int64_t micro_batch);
  void give_gradient(std::int64_t micro_batch, Tensors gradients);
  Tensors take_input_gradient(std::int64_t micro_batch);

  // Each worker does its actions; returns when all are done. Throws the first error, after which the
  // step holds nothing. `keep`: backward keeps what it has used.
  void run(const std::vector<Actions>& actions, bool keep = false);

  // Once all forwards are done: running statistics of deferred batch normalization.
  void update_running_statistics();

  // The record outlives the step, and holds no tensors.
  class Record;
  std::shared_ptr<const Record> record() const { return record_; }

 private:
  struct Received {
    Tensors tensors;
    std::vector<Twins> twins;
  };
  void work(std::int64_t worker, const Actions& actions, bool keep);
  void perform(std::int64_t worker, const PipelineAction& action, bool keep);
  void forward(const PipelineAction& action, Received received);
  Tensors gradients_of(const PipelineAction& action);
  void send_input_gradients(const PipelineAction& action, Tensors gradients);
  // To a stage, or past the last or the first one to the caller.
  void send(Way way, std::int64_t from, std::int64_t to, std::int64_t micro_batch,
            std::int64_t port, Tensors tensors, std::vector<Twins> twins = {});
  Received receive(Way way, std::int64_t stage, std::int64_t micro_batch, std::int64_t port);
  const libtorch::WorkerStreams* streams_of(std::int64_t stage) const;
  StageRun& run_of(const PipelineAction& action);
  StageRun::Residency residency_of(const PipelineAction& action) const;

  const std::shared_ptr<Core> core_;
  const Plan plan_;
  std::vector<std::vector<StageRun>> runs_;  // by stage and micro-batch
  std::unique_ptr<Exchange> exchange_ = std::make_unique<Exchange>();
  const std::shared_ptr<Record> record_;
};

// When each worker did what. Time stands still between forward() and its backward.
class Step::Record {
 public:
  explicit Record(std::int64_t workers) : events_(static_cast<std::size_t>(workers)) {}

  // Around the workers' running.
  void start();
  void stop();
  // On the worker's thread.
  template <class Work>
  PipelineEvent timed(std::int64_t worker, const PipelineAction& action, bool recompute,
                      Work&& work) {
    PipelineEvent event{action, recompute, now(), {}};
    work();
    event.end = now();
    events_[static_cast<std::size_t>(worker)].push_back(event);
    return event;
  }
  // While no worker runs.
  PipelineTimeline timeline() const;

 private:
  using Clock = std::chrono::steady_clock;
  Seconds now() const { return Clock::now() - begin_ - pauses_; }

  std::vector<std::vector<PipelineEvent>> events_;
  Clock::time_point begin_ = Clock::now(), stopped_ = begin_;
  Clock::duration pauses_{};
};

// The actions of forward() and of its backward: all of one kind, stage by stage.
std::vector<Actions> forward_actions(const Layout& layout, std::int64_t micro_batches);
std::vector<Actions> backward_actions(const Layout& layout, std::int64_t micro_batches);
// Both, one after the other, as a schedule.
PipelineSchedule forward_schedule(const Layout& layout, std::int64_t micro_batches);
std::vector<Actions> actions_of(const PipelineSchedule& schedule);

}  // namespace reprise::pipeline
