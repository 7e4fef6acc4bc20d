// The steps of one call of `reprise train`, with what happens between them: the line of metrics,
// the live line, saving, and the end by count or by signal.
#pragma once

#include <reprise/bytes.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "apps/cli/training/metrics.h"
#include "apps/cli/training/step_trace_file.h"
#include "apps/cli/training/train_options.h"
#include "apps/cli/training/trainer.h"

namespace reprise::app {

// The result of the steps.
struct Outcome {
  std::vector<double> milliseconds;
  double seconds = 0;
  TrainedStep last;
  Bytes peak;
  Bytes reserved;              // on an accelerator
  double validation_loss = 0;  // not measured if a signal has come
  int signal = 0;              // that ended the call before its steps were done; else 0
  StepReport tape;             // sums over the steps; nothing if there was no budget
  std::vector<double> verification_milliseconds;  // of the verified steps
  Bytes verification_peak;
  std::int64_t traced_step = 0;                  // 0: none was
  std::optional<GradientDifference> difference;  // of the last step, which was then not done
};

// `trace` is given the step that the options name.
//
// Saves at the end, and as the options say, if there is a --checkpoint-dir. Throws Error if a loss
// or a weight is not finite, or if a file cannot be written; if that is the metrics or the trace,
// the run is saved first. A difference that a verification finds ends the call as if the steps
// before were all that was asked for.
Outcome run_steps(const TrainOptions& options, Trainer& trainer, MetricsFile& metrics,
                  StepTraceFile trace = StepTraceFile(""));

// The file of the checkpoint; empty if there is none.
std::string saved_where(const TrainOptions& options);

}  // namespace reprise::app
