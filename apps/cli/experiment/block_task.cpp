#include "apps/cli/experiment/block_task.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <c10/core/GradMode.h>
#include <reprise/error.h>

#include <cmath>
#include <mutex>

#include "apps/cli/io/figures.h"
#include "apps/cli/training/draws.h"
#include "models/transformer.h"

namespace reprise::app {

namespace {

constexpr std::size_t kHeldOutShare = 10;  // one example of so many
// The same for all runs, so that runs of several seeds are validated on the same examples.
constexpr std::uint64_t kSplitSeed = 0;

class EvaluationMode {
 public:
  explicit EvaluationMode(torch::nn::Module& module)
      : module_(module), was_training_(module.is_training()) {
    module_.eval();
  }
  ~EvaluationMode() { module_.train(was_training_); }
  EvaluationMode(const EvaluationMode&) = delete;
  EvaluationMode& operator=(const EvaluationMode&) = delete;

 private:
  torch::nn::Module& module_;
  bool was_training_;
  c10::NoGradGuard no_grad_;
};

}  // namespace

std::int64_t batch_of(const TaskOptions& options, std::int64_t usual) {
  const std::int64_t batch = options.batch.value_or(options.quick ? usual / 2 : usual);
  if (batch < 1) throw UsageError(fmt::format("batch is {}; it must be at least 1", batch));
  return batch;
}

Split split_examples(std::size_t count, const std::string& origin) {
  if (count < 2) {
    throw UsageError(
        fmt::format("{} has {} example{}; at least 2 are needed, one of them for validation",
                    origin, count, count == 1 ? "" : "s"));
  }
  Draws draws(kSplitSeed, count);
  std::vector<std::size_t> drawn = sample(count, count, draws);
  const auto held_out =
      drawn.begin() + static_cast<std::ptrdiff_t>(std::max<std::size_t>(1, count / kHeldOutShare));
  std::sort(drawn.begin(), held_out);
  std::sort(held_out, drawn.end());
  return {.training = {held_out, drawn.end()}, .validation = {drawn.begin(), held_out}};
}

std::vector<std::size_t> evenly(std::vector<std::size_t> examples, std::size_t most) {
  if (examples.size() <= most) return examples;
  std::vector<std::size_t> taken;
  for (std::size_t i = 0; i < most; ++i) taken.push_back(examples[i * examples.size() / most]);
  return taken;
}

std::size_t batches_in(std::size_t count, std::int64_t batch) {
  return (count + static_cast<std::size_t>(batch) - 1) / static_cast<std::size_t>(batch);
}

std::vector<std::size_t> part_of(const std::vector<std::size_t>& all, std::size_t index,
                                 std::int64_t batch) {
  const std::size_t begin = index * static_cast<std::size_t>(batch);
  const std::size_t end = std::min(begin + static_cast<std::size_t>(batch), all.size());
  return {all.begin() + static_cast<std::ptrdiff_t>(begin),
          all.begin() + static_cast<std::ptrdiff_t>(end)};
}

void seed_cpu_generator(std::uint64_t seed) {
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  const std::scoped_lock lock(generator.mutex());
  generator.set_current_seed(seed);
}

Outcome class_outcome(const at::Tensor& logits, const at::Tensor& classes) {
  return {.loss = at::cross_entropy_loss(logits, classes),
          .right = logits.argmax(-1).eq(classes).sum().item<std::int64_t>(),
          .count = classes.numel()};
}

std::string BlockTask::with_parameter_count(const std::string& text) const {
  return fmt::format("{}: {} parameters", text,
                     format_count(static_cast<double>(models::parameter_count(*module_))));
}

Validation BlockTask::validate() {
  const EvaluationMode evaluation(*module_);
  double loss = 0;
  std::int64_t right = 0, count = 0;
  for (std::size_t i = 0; i < validation_batches(); ++i) {
    const TaskBatch batch = validation_batch(i);
    const at::Tensor last = models::run_plainly(layers_, first(batch.input), 0, {});
    const Outcome found = outcome(last, batch.target);
    loss += found.loss.item<double>() * static_cast<double>(found.count);
    right += found.right;
    count += found.count;
  }
  Validation validation{.loss = loss / static_cast<double>(count),
                        .perplexity = std::nullopt,
                        .accuracy = std::nullopt};
  if (guesses_ == Guesses::kWords) {
    validation.perplexity = std::exp(validation.loss);
  } else {
    validation.accuracy = static_cast<double>(right) / static_cast<double>(count);
  }
  return validation;
}

}  // namespace reprise::app
