// Compares what paths lead to, and what they would lead to once they exist.
#include "apps/cli/commands/overlaps.h"

#include <fmt/format.h>
#include <reprise/error.h>

#include <filesystem>
#include <system_error>
#include <vector>

#include "apps/cli/io/new_file.h"
#include "apps/cli/io/sealed_file.h"
#include "apps/cli/training/training_checkpoint.h"

namespace reprise::app {

namespace fs = std::filesystem;

namespace {

struct Place {
  const char* option;
  fs::path path;
};

bool are_same(const fs::path& a, const fs::path& b) {
  std::error_code error;
  if (fs::equivalent(a, b, error)) return true;
  const fs::path whole_a = fs::weakly_canonical(fs::absolute(a, error), error);
  if (error) return false;
  const fs::path whole_b = fs::weakly_canonical(fs::absolute(b, error), error);
  return !error && whole_a == whole_b;
}

void refuse_same(const Place& written, const Place& other) {
  if (!are_same(written.path, other.path)) return;
  throw UsageError(fmt::format("{} would write over {} of {}: choose another path for {}",
                               written.option, other.path.string(), other.option, written.option));
}

std::vector<Place> with_beginning(const char* option, const fs::path& path) {
  return {{option, path}, {option, place_beside(path)}};
}

}  // namespace

void refuse_overlap(const char* option, const std::string& path,
                    const std::vector<std::string>& data) {
  for (const Place& written : with_beginning(option, path)) {
    for (const std::string& each : data) refuse_same(written, {"--data", each});
  }
}

void refuse_overlaps(const TrainOptions& options) {
  std::vector<Place> metrics, checkpoint, trace;
  if (!options.trace_out.empty()) trace = with_beginning("--trace-out", options.trace_out);
  if (!options.metrics.empty()) metrics = with_beginning("--metrics", options.metrics);
  if (!options.checkpoint_dir.empty()) {
    const fs::path file = training_checkpoint_file(options.checkpoint_dir);
    checkpoint = {{"--checkpoint-dir", file}, {"--checkpoint-dir", path_aside(file)}};
    checkpoint.push_back({"--checkpoint-dir", options.checkpoint_dir});
  }
  for (const Place& each : trace) {
    for (const Place& written : metrics) refuse_same(each, written);
    for (const Place& saved : checkpoint) refuse_same(each, saved);
    for (const std::string& data : options.data) refuse_same(each, {"--data", data});
  }
  for (const Place& each : metrics) {
    for (const Place& saved : checkpoint) refuse_same(each, saved);
    for (const std::string& data : options.data) refuse_same(each, {"--data", data});
  }
  // The folder of the checkpoint may be one of the data: it is searched, not written over.
  if (!checkpoint.empty()) checkpoint.pop_back();
  for (const Place& each : checkpoint) {
    for (const std::string& data : options.data) refuse_same(each, {"--data", data});
  }
}

}  // namespace reprise::app
