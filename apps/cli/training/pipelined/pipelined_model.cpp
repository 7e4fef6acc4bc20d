#include "apps/cli/training/pipelined/pipelined_model.h"

#include <ATen/Parallel.h>
#include <ATen/ops/full_like.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <reprise/random_state.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

namespace reprise::app {

namespace {

class ThreadsScope {
 public:
  explicit ThreadsScope(int threads) : before_(at::get_num_threads()) {
    at::set_num_threads(threads);
  }
  ~ThreadsScope() { at::set_num_threads(before_); }
  ThreadsScope(const ThreadsScope&) = delete;
  ThreadsScope& operator=(const ThreadsScope&) = delete;

 private:
  const int before_;
};

// Parameters of the first layer are all that belong to no block: a head's are in use with the last
// stage's loss, and no other stage has them.
std::vector<ModelLayer> layers_of(const ModelParts& parts) {
  ModelLayer first("embedding", parts.first);
  std::vector<ModelLayer> layers = {first};
  for (std::size_t i = 0; i < parts.blocks.size(); ++i) {
    layers.push_back(ModelLayer(parts.block_names[i], parts.blocks[i]));
  }
  for (const auto& child : parts.model->named_children()) {
    const auto place = std::ranges::find(parts.block_names, child.key());
    const auto layer = place == parts.block_names.end() ? 0 : place - parts.block_names.begin() + 1;
    layers[static_cast<std::size_t>(layer)]->register_module(child.key(), child.value());
  }
  for (const auto& own : parts.model->named_parameters(/*recurse=*/false)) {
    first->register_parameter(own.key(), own.value());
  }
  return layers;
}

std::vector<std::int64_t> balance_of(const PipelineChoice& choice, std::int64_t stages,
                                     const std::vector<ModelLayer>& layers,
                                     const at::Tensor& micro_batch, c10::Device device) {
  auto given = choice.layers_of_stages();
  if (!given.empty()) return given;
  const std::array<c10::Device, 1> devices = {device};
  const RandomState before = RandomState::of_devices(devices);
  auto balance = choice.balance == "bytes" ? balance_by_bytes(layers, micro_batch, stages)
                                           : balance_by_time(layers, micro_batch, stages);
  before.restore();
  return balance;
}

// The micro-batches as their gradients reach the parameters. All stages have the same order.
std::vector<std::int64_t> backward_order(const PipelineSchedule& schedule) {
  std::vector<std::int64_t> order;
  for (const auto& worker : schedule.workers) {
    for (const PipelineSlot& slot : worker) {
      for (const PipelineAction& action : slot) {
        const bool is_last_of_stage =
            action.work == PipelineWork::kBackward || action.work == PipelineWork::kWeightGradient;
        if (action.stage == 0 && is_last_of_stage) order.push_back(action.micro_batch);
      }
    }
  }
  return order;
}

}  // namespace

PipelinedModel::PipelinedModel(const PipelineChoice& choice, const ModelParts& parts,
                               const at::Tensor& input, c10::Device device,
                               const CheckpointOptions& regions)
    : schedule_(choice.make()),
      checkpoint_stop_(choice.checkpoint_stop(schedule_)),
      threads_(std::max(1, at::get_num_threads() / static_cast<int>(workers()))),
      loss_(parts.loss),
      layers_(layers_of(parts)),
      balance_(balance_of(choice, schedule_.stages, layers_,
                          input.chunk(schedule_.micro_batches).front(), device)),
      pipeline_(layers_, options(choice, device, regions)) {}

PipelineOptions PipelinedModel::options(const PipelineChoice& choice, c10::Device device,
                                        const CheckpointOptions& regions) const {
  PipelineOptions options{.balance = balance_,
                          .devices = std::vector<c10::Device>(schedule_.workers.size(), device),
                          .chunks = schedule_.micro_batches,
                          .checkpoint_stop = checkpoint_stop_,
                          .schedule = choice.schedule,
                          .threads = threads_,
                          .regions = regions};
  if (!choice.csv.empty()) options.custom_schedule = schedule_;
  return options;
}

Pipeline::Loss PipelinedModel::scaled_loss(double scale) const {
  if (scale == 1) return loss_;
  return [loss = loss_, scale](const at::Tensor& output, const at::Tensor& target) {
    return loss(output, target) * scale;
  };
}

at::Tensor PipelinedModel::step(const at::Tensor& input, const at::Tensor& target, double scale) {
  return pipeline_.step(input, target, scaled_loss(scale)).loss;
}

at::Tensor PipelinedModel::plain_step(const at::Tensor& input, const at::Tensor& target,
                                      double scale) {
  const ThreadsScope as_a_worker(threads_);
  const std::uint64_t seed = seed_of_pipeline();
  const auto inputs = input.chunk(schedule_.micro_batches);
  const auto targets = target.chunk(schedule_.micro_batches);
  const Pipeline::Loss loss = scaled_loss(scale);
  std::vector<at::Tensor> parts(inputs.size());
  for (const std::int64_t micro_batch : backward_order(schedule_)) {
    const auto i = static_cast<std::size_t>(micro_batch);
    at::Tensor x = inputs[i];
    for (std::size_t layer = 0; layer < layers_.size(); ++layer) {
      const DrawsOfLayer draws(seed, micro_batch, static_cast<std::int64_t>(layer));
      x = layers_[layer]->forward(x);
    }
    const double weight =
        static_cast<double>(inputs[i].size(0)) / static_cast<double>(input.size(0));
    const at::Tensor made = loss(x, targets[i]);
    made.backward(at::full_like(made, weight));
    parts[i] = made.detach() * weight;
  }
  at::Tensor whole;
  for (const at::Tensor& part : parts) whole = whole.defined() ? whole + part : part;
  return whole;
}

std::string PipelinedModel::describe() const {
  return fmt::format(
      "{}: stages of {} layers on {} worker{} with {} thread{} each, {} of {} micro-batches "
      "checkpointed",
      schedule_.name.empty() ? "a table" : schedule_.name, fmt::join(balance_, ", "), workers(),
      workers() == 1 ? "" : "s", threads_, threads_ == 1 ? "" : "s", checkpoint_stop_,
      schedule_.micro_batches);
}

nlohmann::json PipelinedModel::json() const {
  return {{"schedule", schedule_.name},
          {"balance", balance_},
          {"workers", workers()},
          {"micro_batches", schedule_.micro_batches},
          {"checkpoint_stop", checkpoint_stop_},
          {"threads_per_worker", threads_}};
}

}  // namespace reprise::app
