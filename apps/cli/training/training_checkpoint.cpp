// LibTorch's archives inside a sealed file: the archive knows tensors, the seal knows damage.
#include "apps/cli/training/training_checkpoint.h"

#include <ATen/Context.h>
#include <fmt/format.h>
#include <reprise/error.h>
#include <torch/serialize/output-archive.h>

#include <mutex>
#include <string>
#include <string_view>
#include <system_error>

#include "apps/cli/io/atomic_file.h"

namespace reprise::app {

namespace fs = std::filesystem;

namespace {

std::string generator_key(c10::Device device) { return device.is_cpu() ? "cpu" : "accelerator"; }

std::vector<c10::Device> generator_devices(c10::Device device) {
  std::vector<c10::Device> devices{c10::Device(c10::kCPU)};
  if (!device.is_cpu()) devices.push_back(device);
  return devices;
}

void write_generators(torch::serialize::OutputArchive& archive, c10::Device device) {
  for (const c10::Device each : generator_devices(device)) {
    at::Generator generator = at::globalContext().defaultGenerator(each);
    const std::lock_guard lock(generator.mutex());
    archive.write(generator_key(each), generator.get_state(), /*is_buffer=*/true);
  }
}

void read_generators(torch::serialize::InputArchive& archive, c10::Device device) {
  for (const c10::Device each : generator_devices(device)) {
    at::Tensor state;
    if (!archive.try_read(generator_key(each), state, /*is_buffer=*/true)) continue;
    at::Generator generator = at::globalContext().defaultGenerator(each);
    const std::lock_guard lock(generator.mutex());
    generator.set_state(state.cpu());
  }
}

void replace_checkpoint(const fs::path& folder, std::string_view bytes) {
  const fs::path file = training_checkpoint_file(folder);
  try {
    write_sealed(file, bytes);
  } catch (const Error& error) {
    std::error_code ignored;
    throw Error(fmt::format("{}; {}free space or choose another --checkpoint-dir", error.what(),
                            fs::exists(file, ignored)
                                ? "the previous checkpoint is intact, go on from it with --resume: "
                                : ""));
  }
}

}  // namespace

fs::path training_checkpoint_file(const fs::path& folder) { return folder / "training.reprise"; }

bool holds_training(const fs::path& folder) {
  return file_exists(training_checkpoint_file(folder),
                     "remove it or choose another --checkpoint-dir");
}

void require_training(const fs::path& folder) {
  if (holds_training(folder)) return;
  throw UsageError(
      fmt::format("nothing to resume: there is no {}; leave out --resume to start anew",
                  training_checkpoint_file(folder).string()));
}

void save_training(const fs::path& folder, const TrainingFacts& facts,
                   const torch::nn::Module& model, const torch::optim::Optimizer& optimizer,
                   c10::Device device) {
  torch::serialize::OutputArchive archive, model_part, optimizer_part, generators;
  model.save(model_part);
  optimizer.save(optimizer_part);
  write_generators(generators, device);
  // Of the options, a path need not be text.
  archive.write("facts",
                c10::IValue(facts.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace)));
  archive.write("model", model_part);
  archive.write("optimizer", optimizer_part);
  archive.write("generators", generators);
  std::string bytes;
  archive.save_to([&bytes](const void* data, std::size_t size) {
    bytes.append(static_cast<const char*>(data), size);
    return size;
  });
  replace_checkpoint(folder, bytes);
}

SavedTraining::SavedTraining(const fs::path& folder) {
  require_training(folder);
  bytes_ = read_sealed(training_checkpoint_file(folder));
  torch::serialize::InputArchive archive;
  archive.load_from(bytes_.data(), bytes_.size(), c10::Device(c10::kCPU));
  c10::IValue facts;
  archive.read("facts", facts);
  facts_ = TrainingFacts::parse(facts.toStringRef());
}

void SavedTraining::restore(torch::nn::Module& model, torch::optim::Optimizer& optimizer,
                            c10::Device device) {
  torch::serialize::InputArchive archive, model_part, optimizer_part, generators;
  archive.load_from(bytes_.data(), bytes_.size(), device);
  archive.read("model", model_part);
  archive.read("optimizer", optimizer_part);
  archive.read("generators", generators);
  model.load(model_part);
  optimizer.load(optimizer_part);
  read_generators(generators, device);
}

}  // namespace reprise::app
