// Text, byte by byte: GPT guesses the next byte, and BERT the bytes that were masked (Devlin et al.,
// arXiv:1810.04805, section 3.1).
#include <ATen/ops/full_like.h>
#include <fmt/format.h>
#include <reprise/bytes.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "apps/cli/training/batches.h"
#include "apps/cli/training/draws.h"
#include "apps/cli/training/methods/task.h"
#include "apps/cli/training/text_data.h"
#include "models/bert.h"
#include "models/gpt.h"

namespace reprise::app {

namespace {

// `reprise train` validates on as many.
constexpr std::int64_t kHeldOutSequences = 64;
// The held-out words are masked the same in all runs.
constexpr std::uint64_t kHeldOutSeed = 0;
// The token after the 256 of bytes.
constexpr std::int64_t kMask = 256;
constexpr double kMaskedShare = 0.15;
// Out of a hundred words to guess, so many become the mask, and so many more another word.
constexpr std::size_t kHidden = 80, kReplaced = 10;

TaskBatch next_bytes(const Batch& windows) {
  return {.input = windows.tokens, .target = windows.targets, .units = windows.tokens.numel()};
}

// Masks `windows.tokens`. `number` is that of the batch.
TaskBatch masked_bytes(const Batch& windows, std::uint64_t seed, std::int64_t number,
                       c10::Device device) {
  const at::Tensor input = windows.tokens,
                   target = at::full_like(input, models::BertImpl::kNotMasked);
  const std::int64_t rows = input.size(0), context = input.size(1);
  const auto words = static_cast<std::size_t>(context);
  const auto masked = static_cast<std::size_t>(
      std::max<std::int64_t>(1, std::llround(kMaskedShare * static_cast<double>(context))));
  auto* const tokens = input.mutable_data_ptr<std::int64_t>();
  auto* const targets = target.mutable_data_ptr<std::int64_t>();
  for (std::int64_t row = 0; row < rows; ++row) {
    Draws draws(seed, static_cast<std::uint64_t>(number * rows + row));
    for (const std::size_t place : sample(words, masked, draws)) {
      const std::size_t at = static_cast<std::size_t>(row) * words + place;
      targets[at] = tokens[at];
      const std::size_t of_hundred = draws.below(100);
      if (of_hundred < kHidden) {
        tokens[at] = kMask;
      } else if (of_hundred < kHidden + kReplaced) {
        tokens[at] = static_cast<std::int64_t>(draws.below(kMask));
      }
    }
  }
  return {.input = input.to(device), .target = target.to(device), .units = input.numel()};
}

void use_gpt(Task& task, const RunOptions& run, c10::Device device) {
  models::Gpt gpt(run.gpt);
  use(task, gpt, device);
  task.model = "GPT";
  task.first = [gpt](const at::Tensor& tokens) mutable { return gpt->embed(tokens); };
  task.loss = [gpt](const at::Tensor& last, const at::Tensor& target) mutable {
    return models::next_token_loss(gpt->head(last), target);
  };
}

void use_bert(Task& task, const RunOptions& run, c10::Device device) {
  models::Bert bert(models::BertOptions{.layers = run.gpt.layers,
                                        .width = run.gpt.width,
                                        .heads = run.gpt.heads,
                                        .context = run.gpt.context,
                                        .vocabulary = kMask + 1,
                                        .dropout = run.gpt.dropout,
                                        .fused_attention = run.gpt.fused_attention,
                                        .tied_head = run.gpt.tied_head});
  use(task, bert, device);
  task.model = "BERT";
  task.first = [bert](const at::Tensor& tokens) mutable { return bert->embed(tokens); };
  task.loss = [bert](const at::Tensor& last, const at::Tensor& target) mutable {
    return bert->head_loss(last, target);
  };
}

}  // namespace

Task make_text_task(const TaskOptions& options, c10::Device device) {
  const RunOptions& run = options.run;
  const std::int64_t context = run.gpt.context;
  const bool is_bert = run.model == "bert";
  auto text = std::make_shared<const TextData>(load_text(run.data));
  check_context(*text, context);
  at::manual_seed(static_cast<std::uint64_t>(run.seed));
  Task task;
  is_bert ? use_bert(task, run, device) : use_gpt(task, run, device);
  task.model += fmt::format(", {} layers of width {}, {} heads, context {}", run.gpt.layers,
                            run.gpt.width, run.gpt.heads, context);
  const std::size_t bytes = text->training.size() + text->validation.size();
  task.data = fmt::format("{}: {}, a tenth held out", text->origin,
                          to_string(Bytes(static_cast<std::int64_t>(bytes))));
  task.units = "tokens";
  task.fingerprint = text->fingerprint;
  const auto make = [=](const Batch& windows, std::uint64_t seed, std::int64_t number) {
    return is_bert ? masked_bytes(windows, seed, number, device) : next_bytes(windows);
  };
  // Words are masked on the host.
  const c10::Device cut_on = is_bert ? c10::Device(c10::kCPU) : device;
  task.batch = [=, seed = run.seed, size = run.batch](std::int64_t step) {
    const auto starts = random_starts(seed, step, size, text->training.size(), context);
    return make(cut(text->training, starts, context, cut_on), static_cast<std::uint64_t>(seed),
                step);
  };
  const auto starts = even_starts(kHeldOutSequences, text->validation.size(), context);
  for (auto begin = starts.begin(); begin != starts.end();) {
    const auto end = begin + std::min<std::ptrdiff_t>(run.batch, starts.end() - begin);
    const Batch windows = cut(text->validation, {begin, end}, context, cut_on);
    task.held_out.push_back(make(windows, kHeldOutSeed, std::ssize(task.held_out)));
    begin = end;
  }
  return task;
}

}  // namespace reprise::app
