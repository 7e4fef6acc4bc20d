// One training run: model, data and optimizer, advanced step by step and put back where a
// checkpoint left off. It prints nothing; the train command does.
#pragma once

#include <reprise/budget_extensions.h>
#include <reprise/bytes.h>
#include <torch/optim/adamw.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "apps/cli/training/learning_rate.h"
#include "apps/cli/training/network.h"
#include "apps/cli/training/pipelined/pipelined_model.h"
#include "apps/cli/training/text_data.h"
#include "apps/cli/training/train_options.h"
#include "apps/cli/training/training_budget.h"
#include "apps/cli/training/training_checkpoint.h"
#include "apps/cli/training/verification.h"
#include "models/strategy.h"

namespace reprise::app {

struct TrainedStep {
  std::int64_t step = 0;  // counted from 1
  double loss = 0;        // mean over the step's batches, in nats per byte
  double learning_rate = 0;
  double gradient_norm = 0;  // before clipping
  double milliseconds = 0;   // without those of the verification
  std::int64_t tokens = 0;
  Bytes peak;  // most bytes alive during the step, the verification's plain step not included
  // On an accelerator, what its allocator holds of the device after the step, used or free.
  Bytes reserved;
  std::optional<VerificationReport> verification;  // if the step was verified
  std::optional<StepReport> tape;                  // if it ran under a budget

  bool differs() const { return verification && verification->difference; }
};

// AdamW over the parameters. Matrices decay towards zero; biases and the scales of norms do not, as
// in GPT-2.
torch::optim::AdamW make_optimizer(const torch::nn::Module& model, const TrainOptions& options);

class Trainer {
 public:
  // The strategy must be prepared for the device. With options.verify an accelerator is told to use
  // deterministic kernels: others would differ from run to run by themselves.
  Trainer(const TrainOptions& options, models::Strategy strategy, TextData data,
          c10::Device device);

  // Opens the budget that the options ask for, if any. Call it once, after resume() and before the
  // first step. A share of the plain peak needs a plain forward and backward of the first step, and
  // the least bytes a recorded one; their effects are undone. Throws UsageError unless the budget
  // is above what is live before a step.
  void open_budget();
  const std::optional<TrainingBudget>& budget() const { return budget_; }

  // Throws Error, before the parameters are changed, if the loss is not a finite number. Where the
  // verification finds a difference, the step is not done: parameters, random state and number of
  // steps stay as they were.
  //
  // An observer is told what a tape sees of the step: that of the budget, or, without one, of a
  // tape that has all the room in the world.
  TrainedStep step(const std::shared_ptr<BudgetObserver>& observer = nullptr);
  // Steps done, those of earlier processes included.
  std::int64_t steps_done() const { return done_; }
  // Mean loss over sequences taken evenly from the validation text, without dropout.
  double validation_loss();
  // The first line with something in it that the model writes, cut at `length` bytes. The same for
  // the same weights and seed; leaves the random state as it is.
  std::string sample(std::int64_t length);

  // Throws Error, naming the step and the remedy, if a weight or `validation_loss` is not a finite
  // number: what the last step has ruined is not to be saved as good.
  void require_finite_weights();
  void require_finite(double validation_loss) const;

  // Throws as require_finite_weights() does.
  void save(const std::filesystem::path& folder);
  // Throws UsageError, naming the option, if the checkpoint was made by another run than this.
  void resume(const std::filesystem::path& folder);

  Network& network() { return network_; }
  // Steps run through it. Null if there is none.
  const PipelinedModel* pipeline() const { return pipeline_ ? &*pipeline_ : nullptr; }

 private:
  enum class Run { kAsAsked, kPlainly };
  // Forward and backward of all batches of the next step; returns their mean loss. Plainly: without
  // recomputation, or without the pipeline.
  double accumulate(Run run);
  Batch batch_of_next_step(std::int64_t part) const;
  double finite_loss(double loss) const;
  Bytes least_of_backward(const BudgetOptions& options);
  // Weights, data and the optimizer's moments, which it makes in its first step.
  Bytes live_before_step();
  bool is_verified_next() const { return options_.verify > 0 && done_ % options_.verify == 0; }

  TrainOptions options_;
  TextData data_;
  Network network_;
  models::Strategy strategy_;
  LearningRate learning_rate_;
  torch::optim::AdamW optimizer_;
  std::int64_t done_ = 0;
  std::optional<TrainingBudget> budget_;
  std::optional<PipelinedModel> pipeline_;
};

}  // namespace reprise::app
