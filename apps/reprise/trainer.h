// One training run: model, data and optimizer, advanced step by step and put back where a
// checkpoint left off. It prints nothing; the train command does.
#pragma once

#include <reprise/bytes.h>
#include <torch/optim/adamw.h>

#include <cstdint>
#include <filesystem>
#include <string>

#include "apps/reprise/network.h"
#include "apps/reprise/options.h"
#include "apps/reprise/schedule.h"
#include "apps/reprise/text_data.h"
#include "apps/reprise/training_checkpoint.h"

namespace reprise::app {

struct StepReport {
  std::int64_t step = 0;  // counted from 1
  double loss = 0;        // mean over the step's batches, in nats per byte
  double learning_rate = 0;
  double gradient_norm = 0;  // before clipping
  double milliseconds = 0;
  std::int64_t tokens = 0;
  Bytes peak;  // most bytes alive during the step
};

class Trainer {
 public:
  Trainer(const TrainOptions& options, TextData data, c10::Device device);

  // Throws Error, before the parameters are changed, if the loss is not a finite number.
  StepReport step();
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

 private:
  double finite_loss(double loss) const;

  TrainOptions options_;
  TextData data_;
  Network network_;
  models::Strategy strategy_;
  Schedule schedule_;
  torch::optim::AdamW optimizer_;
  std::int64_t done_ = 0;
};

}  // namespace reprise::app
