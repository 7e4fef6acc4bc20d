// Only what is certain is counted, so that nothing is refused that would have worked.
#include "apps/cli/training/memory_need.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>
#include <reprise/error.h>
#include <reprise/memory.h>
#include <torch/optim/adamw.h>
#include <unistd.h>

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "apps/cli/training/device.h"

namespace reprise::app {

namespace {

constexpr double kWordBytes = 4;      // of a weight or an activation in f32
constexpr double kTokenBytes = 16;    // an index of 8 bytes as input and one as target
constexpr double kHalfWordBytes = 2;  // of either in bf16
// What a block saves of each token, in widths: its input, both norms' results, q, k and v, the
// mixed values, the sum after attention, and the MLP's hidden values before and after GELU.
constexpr double kSavedWidths = 1 + 2 + 3 + 1 + 1 + 2 * 4;

std::string text_of(double bytes) {
  return to_string(Bytes(static_cast<std::int64_t>(std::min(bytes, 9e18))));
}

// The loss and the norm of each gradient, which clipping needs: the bytes of one allocation on the
// CPU and on an accelerator, and their number beside the weights'.
constexpr Bytes kNumber(64);
constexpr Bytes kNumberOnDevice(512);
constexpr std::int64_t kNumbers = 4;

// Accelerators' allocators hand out pieces, which shows where a model has many small tensors.
Bytes bytes_of(const at::Tensor& tensor) {
  const auto bytes = static_cast<std::int64_t>(tensor.nbytes());
  const std::int64_t piece = tensor.device().is_cpu() ? 1 : kNumberOnDevice.count;
  return Bytes((bytes + piece - 1) / piece * piece);
}

Bytes weight_bytes(const torch::nn::Module& model) {
  Bytes bytes;
  for (const at::Tensor& parameter : model.parameters()) bytes += bytes_of(parameter);
  return bytes;
}

// Bytes that AdamW has alive while it updates one weight, besides the moments. They are measured on
// a copy, because an update would change the weights.
Bytes update_bytes(const at::Tensor& weight) {
  at::Tensor alike = at::zeros(weight.sizes(), weight.options()).requires_grad_();
  alike.mutable_grad() = at::zeros(weight.sizes(), weight.options());
  torch::optim::AdamW optimizer(std::vector<at::Tensor>{alike}, torch::optim::AdamWOptions());
  const PeakScope scope(weight.device());
  optimizer.step();
  return scope.peak_above_start() - bytes_of(alike) * 2;
}

}  // namespace

double physical_memory() {
  return static_cast<double>(sysconf(_SC_PHYS_PAGES)) * static_cast<double>(sysconf(_SC_PAGE_SIZE));
}

double parameters_needed(const models::GptOptions& gpt) {
  const auto width = static_cast<double>(gpt.width);
  const double block = 12 * width * width + 13 * width;
  const auto rows = static_cast<double>(gpt.vocabulary) + static_cast<double>(gpt.context);
  return static_cast<double>(gpt.layers) * block + (rows + 2) * width;
}

// The tokens, the embedded sequences and the logits; unfused attention also holds one layer's
// weights.
double batch_bytes_needed(const RunOptions& options) {
  const auto context = static_cast<double>(options.gpt.context);
  const double tokens = static_cast<double>(options.batch) * context;
  const auto columns = static_cast<double>(options.gpt.width + options.gpt.vocabulary);
  const double scores =
      options.gpt.fused_attention ? 0 : static_cast<double>(options.gpt.heads) * context;
  return tokens * (kTokenBytes + kWordBytes * (columns + scores));
}

double plain_step_bytes_needed(const RunOptions& options) {
  const auto context = static_cast<double>(options.gpt.context);
  const double tokens = static_cast<double>(options.batch) * context;
  const double scores =
      options.gpt.fused_attention ? 0 : static_cast<double>(options.gpt.heads) * context;
  const double words = tokens * (kSavedWidths * static_cast<double>(options.gpt.width) + scores);
  const double word = options.dtype == "bf16" ? kHalfWordBytes : kWordBytes;
  return static_cast<double>(options.gpt.layers) * words * word;
}

void check_memory(const RunOptions& options, int copies, c10::Device device) {
  const double memory = physical_memory();
  // Weights are drawn on the CPU even for an accelerator, which then holds the rest.
  const int held = device.is_cpu() ? copies : 1;
  const double parameters = parameters_needed(options.gpt);
  if (parameters * kWordBytes * held > memory) {
    throw UsageError(fmt::format(
        "--layers {} of --width {} with --context {} make {:.3g} parameters, which need at least "
        "{} ({} times 4 bytes each), and this machine has {}; choose a smaller --width, --layers "
        "or --context",
        options.gpt.layers, options.gpt.width, options.gpt.context, parameters,
        text_of(parameters * kWordBytes * held), held, text_of(memory)));
  }
  if (device.is_cpu() && batch_bytes_needed(options) > memory) {
    throw UsageError(fmt::format(
        "--batch {} of --context {} at --width {} needs at least {}, and this machine has {}; "
        "choose a smaller --batch, --context or --width",
        options.batch, options.gpt.context, options.gpt.width, text_of(batch_bytes_needed(options)),
        text_of(memory)));
  }
}

void check_verification_memory(const TrainOptions& options, c10::Device device) {
  const bool measures_share = options.budget && options.budget->is_share();
  if ((options.verify == 0 && !measures_share) || !device.is_cpu()) return;
  // Between forward and backward there are no gradients yet, and before the second step nothing of
  // the optimizer's.
  const int copies = options.verify > 0 && options.steps > options.verify ? 3 : 1;
  const double weights = parameters_needed(options.gpt) * kWordBytes * copies;
  const double needed = plain_step_bytes_needed(options) + weights;
  if (needed <= physical_memory()) return;
  throw UsageError(fmt::format(
      "{} runs steps of strategy none, which need at least {} for --layers {} at --batch "
      "{}, and this machine has {}; choose a smaller --batch, --context or --layers, or {}",
      options.verify > 0 ? fmt::format("--verify {}", options.verify)
                         : fmt::format("--budget {}", options.budget->text()),
      text_of(needed), options.gpt.layers, options.batch, text_of(physical_memory()),
      options.verify > 0 ? "leave out --verify" : "give the budget in bytes"));
}

void check_budget_memory(const std::string& asked, Bytes limit, c10::Device device) {
  if (device.is_cpu()) return;
  const std::optional<Bytes> available = available_bytes(device);
  if (!available || limit <= *available) return;
  throw UsageError(
      fmt::format("--budget {} comes to {}, and {} has {} ({} bytes) for this process, all other "
                  "programs' memory left out: give at most that, and some percent less, since the "
                  "allocator rounds",
                  asked, to_string(limit), device.str(), to_string(*available), available->count));
}

Bytes moment_bytes(const torch::nn::Module& model) { return weight_bytes(model) * 2; }

TrainingNeed need_of_training(const torch::nn::Module& model, Bytes live, Bytes backward) {
  const std::vector<at::Tensor> weights = model.parameters();
  // The update visits one weight after the other, so the largest decides what it needs.
  const auto largest = std::ranges::max_element(
      weights, {}, [](const at::Tensor& weight) { return weight.nbytes(); });
  const Bytes number = largest->device().is_cpu() ? kNumber : kNumberOnDevice;
  const Bytes numbers = number * (kNumbers + static_cast<std::int64_t>(weights.size()));
  const Bytes update = live + weight_bytes(model) + update_bytes(largest->detach()) + numbers;
  return {.live = live, .peak = std::max(backward, update)};
}

}  // namespace reprise::app
