// GPT-2 guesses the next token of a text (Radford et al., 2019).
#include <ATen/ops/empty.h>

#include "apps/cli/experiment/block_task.h"
#include "apps/cli/training/batches.h"
#include "models/gpt.h"

namespace reprise::app {

namespace {

constexpr std::int64_t kGptBatch = 4, kFullGptBatch = 4;
constexpr std::int64_t kGptValidationBatches = 8;

models::GptOptions gpt_shape(const TaskOptions& options) {
  models::GptOptions gpt = options.full_size
                               ? models::gpt2_medium()
                               : models::GptOptions{.layers = 8,
                                                    .width = 96,
                                                    .heads = 4,
                                                    .context = 128,
                                                    .vocabulary = Vocabulary::bytes().size()};
  gpt.layers = options.layers.value_or(gpt.layers);
  gpt.width = options.width.value_or(gpt.width);
  gpt.heads = options.heads.value_or(gpt.heads);
  gpt.context = options.context.value_or(gpt.context);
  gpt.dropout = options.dropout;
  gpt.fused_attention = options.fused_attention;
  models::check(gpt);
  return gpt;
}

class GptTask : public BlockTask {
 public:
  GptTask(const TaskOptions& options, const models::GptOptions& shape)
      : BlockTask(options.device, Guesses::kWords),
        seed_(options.seed),
        batch_(batch_of(options, options.full_size ? kFullGptBatch : kGptBatch)),
        data_(load_tokens(options, options.full_size ? shape.vocabulary : 0, shape.context + 1)),
        gpt_(with_seed(options.seed, [&] { return models::Gpt(shape); })) {
    use(gpt_);
    validation_starts_ =
        even_starts(kGptValidationBatches * batch_, data_.validation.size(), shape.context);
  }

  std::string model() const override {
    const models::GptOptions& shape = gpt_->options();
    return with_parameter_count(fmt::format("GPT-2, {} layers of width {}, {} heads, context {}",
                                            shape.layers, shape.width, shape.heads, shape.context));
  }
  std::string units() const override { return "tokens"; }
  std::string data() const override { return data_.description; }
  std::uint64_t fingerprint() const override { return data_.fingerprint; }

  at::Tensor first(const at::Tensor& input) override { return gpt_->embed(input); }
  at::Tensor loss(const at::Tensor& last, const at::Tensor& target) override {
    return models::next_token_loss(gpt_->head(last), target);
  }

  TaskBatch training_batch(std::int64_t step) override {
    return cut_tokens(data_.training,
                      random_starts(static_cast<std::int64_t>(seed_), step, batch_,
                                    data_.training.size(), gpt_->options().context));
  }

 protected:
  std::size_t validation_batches() const override {
    return batches_in(validation_starts_.size(), batch_);
  }
  TaskBatch validation_batch(std::size_t index) override {
    return cut_tokens(data_.validation, part_of(validation_starts_, index, batch_));
  }
  Outcome outcome(const at::Tensor& last, const at::Tensor& target) override {
    return {.loss = loss(last, target), .right = 0, .count = target.numel()};
  }

 private:
  TaskBatch cut_tokens(const std::vector<std::int64_t>& tokens,
                       const std::vector<std::size_t>& starts) const {
    const std::int64_t context = gpt_->options().context;
    const auto rows = static_cast<std::int64_t>(starts.size());
    const at::Tensor windows = at::empty({rows, context + 1}, at::kLong);
    auto* next = windows.mutable_data_ptr<std::int64_t>();
    for (const std::size_t start : starts) {
      next = std::copy_n(tokens.begin() + static_cast<std::ptrdiff_t>(start), context + 1, next);
    }
    return {.input = windows.narrow(1, 0, context).contiguous().to(device()),
            .target = windows.narrow(1, 1, context).contiguous().to(device()),
            .units = rows * context};
  }

  std::uint64_t seed_;
  std::int64_t batch_;
  TokenData data_;
  models::Gpt gpt_;
  std::vector<std::size_t> validation_starts_;
};

}  // namespace

std::unique_ptr<Task> make_gpt_task(const TaskOptions& options) {
  return std::make_unique<GptTask>(options, gpt_shape(options));
}

}  // namespace reprise::app
