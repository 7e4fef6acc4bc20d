// The steps of one call of `reprise train`, with what happens between them: the line of metrics,
// the live line, saving, and the end by count or by signal.
#pragma once

#include <reprise/bytes.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "apps/reprise/metrics.h"
#include "apps/reprise/options.h"
#include "apps/reprise/trainer.h"

namespace reprise::app {

// What the steps came to.
struct Outcome {
  std::vector<double> milliseconds;
  double seconds = 0;
  StepReport last;
  Bytes peak;
  double validation_loss = 0;  // not measured if a signal has come
  int signal = 0;              // that ended the call before its steps were done; else 0
  std::vector<double> verification_milliseconds;  // of the verified steps
  Bytes verification_peak;
  std::optional<GradientDifference> difference;  // of the last step, which was then not done
};

// Saves at the end, and as the options say, if there is a --checkpoint-dir. Throws Error if a loss
// or a weight is not finite, or if a file cannot be written; if that is the metrics, the run is
// saved first. A difference that a verification finds ends the call as if the steps before were all
// that was asked for.
Outcome run_steps(const TrainOptions& options, Trainer& trainer, MetricsFile& metrics);

// The file of the checkpoint; empty if there is none.
std::string saved_where(const TrainOptions& options);

}  // namespace reprise::app
