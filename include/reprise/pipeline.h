// A model cut into stages that work on micro-batches at the same time.
//
//   torch::nn::Sequential model = ...;                                     // six layers
//   reprise::Pipeline pipe(model, {.balance = {3, 3}, .chunks = 8});
//   auto loss = torch::mse_loss(pipe.forward(x), target);
//   loss.backward();
//
//   reprise::Pipeline pipe(model, {.balance = {3, 3}, .chunks = 8, .schedule = "1f1b"});
//   auto result = pipe.step(x, target, [](const auto& output, const auto& expected) {
//     return torch::mse_loss(output, expected);
//   });
//
// The layers are cut into contiguous *stages*. Each *worker*, a thread with a device, runs one
// stage or several. A mini-batch is cut along its first dimension into `chunks` *micro-batches*, as
// by tensor.chunk(): the last one may be smaller, and there may be fewer. A stage works on one
// micro-batch while the next stage works on the one before.
//
// A *checkpointed* micro-batch keeps only its input in each stage, and a stage's forward runs again
// right before its backward. It does not wait for the gradient of the next stage. Such a stage is a
// region (reprise/checkpoint.h), with what `regions` says.
//
// Sources: Huang et al., "GPipe", arXiv:1811.06965; Kim et al., "torchgpipe", arXiv:2004.09910; for
// the other schedules see reprise/pipeline_schedule.h.
//
// Gradients are bitwise those of the same micro-batches run one after another, each through all
// layers and then backward, in the order in which the schedule has the backwards. Layers that draw
// random numbers (dropout) do so from a stream of their own for each micro-batch and layer. Its
// seed comes from one number that each forward() and step() draws from the CPU's default generator.
// So results depend neither on the balance nor on the schedule; DrawsOfLayer gives code outside of
// a pipeline the same draws.
//
// Each stage has an alias or a copy of its own of a tensor with two uses: one that was stashed
// (reprise/skip.h), given twice to forward() or returned twice by a layer. A stage that changes such
// a tensor in place while another use is to come is refused with UsageError, for the other use would
// not see the change.
//
// On an accelerator each worker has a stream for its operators and two for copies. Nothing waits on
// the host, but copies to the host do. The caller's streams go on after the workers'.
//
// In evaluation (grad mode off, or eval()) no micro-batch is checkpointed. BatchNorm normalizes by
// micro-batch in training. Its running averages count each micro-batch once, or each mini-batch with
// PipelineOptions::deferred_batch_norm, in every checkpoint mode.
//
// Thread rules: one thread at a time may call a pipeline, and run a backward through it. Layers are
// called from the workers' threads, with the caller's grad mode, autocast and other settings.
// Recomputations of two stages run at the same time, also where layers write to state (BatchNorm).
// So layers of two stages must not write to the same tensors. Recomputations that replay draws of a
// generator of the program's own run one at a time in the process.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <reprise/bytes.h>
#include <reprise/checkpoint.h>
#include <reprise/detail/pipeline_layers.h>
#include <reprise/pipeline_residency.h>
#include <reprise/pipeline_schedule.h>
#include <reprise/sequential.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace reprise {

// Which micro-batches are checkpointed in training: all, all but the last, or none. In GPipe the
// last one's backward comes right after its forward, so that to recompute it would save nothing.
enum class CheckpointMode { kAlways, kExceptLast, kNever };

struct PipelineOptions {
  // The number of layers of each stage. Must sum to the number of layers. balance_by_time() and
  // balance_by_bytes() below choose it.
  std::vector<std::int64_t> balance;
  // The device of each worker; layers are moved there. Empty: a worker on the CPU for each stage.
  // With fewer workers than stages, each runs several, as its schedule says.
  std::vector<c10::Device> devices = {};
  // At least 1.
  std::int64_t chunks = 1;
  CheckpointMode checkpoint = CheckpointMode::kExceptLast;
  // In place of `checkpoint`: micro-batches with an index below it are checkpointed.
  std::optional<std::int64_t> checkpoint_stop = std::nullopt;
  // In place of both: the most bytes that the stages of each worker may take, one number for all
  // workers or one for each. Which micro-batches are kept, and which layers of the others run again,
  // is then planned (reprise/pipeline_residency.h). The bytes are for parameters, their gradients,
  // buffers, and what forwards and backwards keep and need for a moment. The mini-batch, outputs
  // of the model and losses are the caller's. Optimizer states do not count either. The bytes are
  // planned from layers that were measured one by one. In tests a step passed them by up to 3 %.
  //
  // The first call for a mini-batch of a form runs each layer, and the loss, some times on the first
  // micro-batch, as profile_chain() does. So no other thread should allocate meanwhile. The call
  // throws BudgetError, before the step, if a worker's stages cannot fit, and UsageError for layers
  // that take or return several tensors, or have skips.
  std::vector<Bytes> bytes = {};
  // By name (schedules::names()) or, if `custom_schedule` has stages, that one. forward() runs as
  // "gpipe" whatever is chosen; step() runs this.
  std::string schedule = "gpipe";
  PipelineSchedule custom_schedule = {};
  // Running statistics of BatchNorm modules count each mini-batch once, with the mean and the unbiased
  // variance of all its samples, as without a pipeline (Kim et al., section 3). They are updated
  // when forward() or step() ends well. False: they count each micro-batch.
  bool deferred_batch_norm = false;
  // Threads inside operators of each worker on the CPU; 0: as many as the caller has. Choose cores
  // / workers for speed.
  int threads = 0;
  // The options of checkpointed stages. `reentrant` and `skip_zero_gradients` are refused.
  CheckpointOptions regions = {};
  // Told of every action when it ends, on the worker's thread: for logs.
  std::function<void(const PipelineEvent&)> on_event = {};
};

// How step() adds up the losses of micro-batches.
enum class LossReduction {
  kMean,  // their mean, weighted by samples: for a loss that is a mean over samples
  kSum,   // their sum
};

struct StepOptions {
  LossReduction reduction = LossReduction::kMean;
  bool outputs = false;  // also return the model's outputs
};

struct StepResult {
  at::Tensor loss;                  // of the mini-batch, without history
  std::vector<at::Tensor> outputs;  // if asked for, without history
};

class Pipeline {
 public:
  // Loss of a micro-batch: a tensor with one element.
  using Loss = std::function<at::Tensor(const at::Tensor& output, const at::Tensor& target)>;

  // A torch::nn::Sequential or a list of modules, whose layers take and return one tensor. Throws
  // UsageError for a balance, a schedule or devices that do not fit the model, for parameters or
  // buffers that two stages share, and for skips without their counterpart. So it does for
  // deferred_batch_norm without a BatchNorm.
  template <detail::IsLayers Model>
  Pipeline(const Model& model, PipelineOptions options)
      : Pipeline(detail::pipeline_layers<at::Tensor>(model), std::move(options)) {}

  // The same where all layers take and return a tuple, a vector or another type that holds tensors
  // only: Pipeline::of<std::tuple<at::Tensor, at::Tensor>>(model, options).
  template <class Value, detail::IsLayers Model>
  static Pipeline of(const Model& model, PipelineOptions options) {
    return Pipeline(detail::pipeline_layers<Value>(model), std::move(options));
  }

  // From layers made by hand.
  Pipeline(std::vector<PipelineLayer> layers, PipelineOptions options);
  ~Pipeline();
  Pipeline(Pipeline&&) noexcept;
  Pipeline& operator=(Pipeline&&) noexcept;

  // The model's output for a mini-batch. Backward of the result runs backward of all stages, the
  // last micro-batch first. Each parameter's gradient accumulates once a micro-batch, and so are
  // its hooks called. Tensors may be of any shape, but have the same number of samples (the size of
  // the first dimension).
  //
  // Throws UsageError for a tensor without a first dimension, fewer samples than one, numbers of
  // samples that differ, and inside of checkpoint(). The first error of a layer passes through: the
  // other workers stop at their next action, and the next call works. Backward throws UsageError
  // with create_graph and for gradients of chosen tensors (autograd::grad).
  template <class Value>
  Value forward(Value input) {
    return detail::from_tensors<Value>(forward_tensors(detail::to_tensors(std::move(input))));
  }

  // Forward and backward of a mini-batch as the schedule has them. Gradients accumulate. `target`
  // is cut like `input`; neither may require grad. The loss is part of the last stage, and
  // recomputed with it.
  StepResult step(const at::Tensor& input, const at::Tensor& target, const Loss& loss,
                  const StepOptions& options = {});
  StepResult step_tensors(
      std::vector<at::Tensor> input, std::vector<at::Tensor> target,
      const std::function<at::Tensor(const std::vector<at::Tensor>& output,
                                     const std::vector<at::Tensor>& target)>& loss,
      const StepOptions& options = {});

  // Training mode of all layers, as torch::nn::Module has it.
  void train(bool on = true);
  void eval() { train(false); }
  bool is_training() const;
  std::vector<at::Tensor> parameters() const;

  std::int64_t stages() const;
  // The first micro-batch that is not checkpointed, in a mini-batch of so many. It depends on grad
  // mode and training mode.
  std::int64_t checkpoint_stop(std::int64_t micro_batches) const;
  // The schedule that step() runs for so many micro-batches.
  PipelineSchedule schedule(std::int64_t micro_batches) const;
  // What the stages keep of each micro-batch of such a mini-batch in step(), or in forward() and its
  // backward, planned as `bytes` says; without `bytes`, all is kept. Runs layers, but no step.
  PipelineResidency plan(const at::Tensor& input, const at::Tensor& target, const Loss& loss);
  PipelineResidency plan(const at::Tensor& input);
  // What the last forward(), its backward, or the last step() did. Bytes are not measured.
  PipelineTimeline timeline() const;

  struct Impl;

 private:
  std::vector<at::Tensor> forward_tensors(std::vector<at::Tensor> input);
  std::unique_ptr<Impl> impl_;
};

// -- Balance
//
// These functions measure each layer (profile_chain(), reprise/sequential.h) on a micro-batch and
// return the balance for `stages` stages. Layers that profile_chain() puts together stay together.
// Layers may stash and pop (reprise/skip.h). The model must take and return one tensor between
// layers, and be on one device. They throw UsageError as profile_chain() does, and for more stages
// than there are layers to cut between.

namespace detail {
std::vector<std::int64_t> balance_by_time(const Layers& layers, const at::Tensor& micro_batch,
                                          std::int64_t stages, Bytes bytes_per_stage,
                                          const ProfileOptions& options);
std::vector<std::int64_t> balance_by_bytes(const Layers& layers, const at::Tensor& micro_batch,
                                           std::int64_t stages, const ProfileOptions& options);
}  // namespace detail

// The cut whose slowest stage, forward and backward, is fastest. With `bytes_per_stage`, among the
// cuts in which no stage takes more: its parameters, their gradients, and what one micro-batch
// keeps for backward. Throws BudgetError, with the least bytes that would do, if there is none.
template <detail::IsLayers Model>
std::vector<std::int64_t> balance_by_time(const Model& model, const at::Tensor& micro_batch,
                                          std::int64_t stages,
                                          Bytes bytes_per_stage = Bytes(std::int64_t{1} << 52),
                                          const ProfileOptions& options = {}) {
  return detail::balance_by_time(detail::layers_of(model), micro_batch, stages, bytes_per_stage,
                                 options);
}

// The cut whose largest stage, in those bytes, is smallest.
template <detail::IsLayers Model>
std::vector<std::int64_t> balance_by_bytes(const Model& model, const at::Tensor& micro_batch,
                                           std::int64_t stages,
                                           const ProfileOptions& options = {}) {
  return detail::balance_by_bytes(detail::layers_of(model), micro_batch, stages, options);
}

// -- Random draws

// The draws of a layer of a pipeline, for code outside of one: until destroyed, operators of this
// thread draw from the stream of layer `layer`, counted from 0 over the whole model, of micro-batch
// `micro_batch`. `seed`: the number that forward() draws, seed_of_pipeline().
class DrawsOfLayer {
 public:
  DrawsOfLayer(std::uint64_t seed, std::int64_t micro_batch, std::int64_t layer);
  ~DrawsOfLayer();
  DrawsOfLayer(const DrawsOfLayer&) = delete;
  DrawsOfLayer& operator=(const DrawsOfLayer&) = delete;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Draws the number from which a forward() or step() makes its streams, from the CPU's default
// generator.
std::uint64_t seed_of_pipeline();

}  // namespace reprise
