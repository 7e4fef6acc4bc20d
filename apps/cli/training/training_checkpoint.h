// The state of a training run on disk: model, optimizer, random generators, how far it came, and
// the options that it was made with. One file a folder, replaced in one step (atomic_file.h), so
// that a run can go on from it bit for bit at any time.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>
#include <torch/serialize/input-archive.h>

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

namespace reprise::app {

// The rest of the state: {"step": …, "options": {…}, "data": fingerprint}.
using TrainingFacts = nlohmann::json;

std::filesystem::path training_checkpoint_file(const std::filesystem::path& folder);

// Whether the folder holds a checkpoint. Throws UsageError if what is in its place cannot be one.
bool holds_training(const std::filesystem::path& folder);
// Throws UsageError unless it does.
void require_training(const std::filesystem::path& folder);

// Throws Error, saying what is left, if the file cannot be written.
void save_training(const std::filesystem::path& folder, const TrainingFacts& facts,
                   const torch::nn::Module& model, const torch::optim::Optimizer& optimizer,
                   c10::Device device);

// A checkpoint that was read and found whole. First look at the facts, then restore.
class SavedTraining {
 public:
  // Throws UsageError if there is none in the folder or it is damaged.
  explicit SavedTraining(const std::filesystem::path& folder);

  const TrainingFacts& facts() const { return facts_; }
  // Also sets the default generators of the CPU and of the device, if its state was saved.
  void restore(torch::nn::Module& model, torch::optim::Optimizer& optimizer, c10::Device device);

 private:
  std::string bytes_;
  TrainingFacts facts_;
};

}  // namespace reprise::app
