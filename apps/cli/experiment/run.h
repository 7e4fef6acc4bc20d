// One run of an experiment: a model trained under a method from a seed, every step written down.
#pragma once

#include <reprise/bytes.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>

#include "apps/cli/experiment/settings.h"

namespace reprise::app {

struct RunPlace {
  std::string model, method;
  std::int64_t seed = 1;
};

// FOLDER/runs/MODEL/METHOD/SEED.jsonl
std::filesystem::path run_file(const std::filesystem::path& folder, const RunPlace& place);
// What an unfinished run of that file was to go on from; none where it is complete.
void remove_save(const std::filesystem::path& file);
// Is told of each step that was done; false: the run is to be saved and left.
using AfterStep = std::function<bool(std::int64_t step)>;

// Trains, or goes on with what an earlier call has saved beside the file, if the file still has the
// lines of the steps until then; without them it begins anew. A budget that cannot be kept is a run
// with a failure. `plain_peak`: of the model's plain step, above what is live before. Returns
// whether the run is complete. Throws Error if a file cannot be written, or a loss is not a finite
// number.
bool train_run(const ExperimentSettings& settings, const RunPlace& place, Bytes plain_peak,
               const AfterStep& after_step);

// The peak of a plain step above what is live before it, and what the task says of itself.
struct PlainStep {
  Bytes peak;
  std::string model, data;
  std::uint64_t fingerprint = 0;  // of the data
};
PlainStep measure_plain_step(const ExperimentSettings& settings, const std::string& model);

}  // namespace reprise::app
