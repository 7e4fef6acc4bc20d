// BERT guesses masked words: sequences of a text with 15 % of their words to be guessed (Devlin et
// al., arXiv:1810.04805, section 3.1).
#include <ATen/ops/from_blob.h>

#include <cmath>

#include "apps/cli/experiment/bert_task.h"
#include "apps/cli/experiment/block_task.h"
#include "apps/cli/training/batches.h"

namespace reprise::app {

namespace {

constexpr double kGuessedShare = 0.15;
constexpr std::int64_t kMaskedValidationBatches = 8;
// The masks of validation, apart from those of all training steps.
constexpr std::uint64_t kValidationStream = std::uint64_t{1} << 63;

class MaskedWordTask : public BlockTask {
 public:
  MaskedWordTask(const TaskOptions& options, const models::BertOptions& shape)
      : BlockTask(options.device, Guesses::kWords),
        seed_(options.seed),
        batch_(batch_of(options, options.full_size ? kFullBertBatch : kBertBatch)),
        words_(shape.context - 2),
        data_(load_tokens(options, options.full_size ? shape.vocabulary : 0, words_)),
        bert_(with_seed(options.seed, [&] { return models::Bert(shape); })) {
    use(bert_);
    validation_starts_ =
        even_starts(kMaskedValidationBatches * batch_, data_.validation.size() + 1, words_);
  }

  std::string model() const override { return with_parameter_count(describe(bert_->options())); }
  std::string units() const override { return "tokens"; }
  std::string data() const override { return data_.description; }
  std::uint64_t fingerprint() const override { return data_.fingerprint; }

  at::Tensor first(const at::Tensor& input) override { return bert_->embed(input); }
  at::Tensor loss(const at::Tensor& last, const at::Tensor& target) override {
    return bert_->head_loss(last, target);
  }

  TaskBatch training_batch(std::int64_t step) override {
    // Of a sequence's words none is a target that stands after it, so that one more place is there.
    return masked(data_.training,
                  random_starts(static_cast<std::int64_t>(seed_), step, batch_,
                                data_.training.size() + 1, words_),
                  static_cast<std::uint64_t>(step));
  }

 protected:
  std::size_t validation_batches() const override {
    return batches_in(validation_starts_.size(), batch_);
  }
  TaskBatch validation_batch(std::size_t index) override {
    return masked(data_.validation, part_of(validation_starts_, index, batch_),
                  kValidationStream + index);
  }
  Outcome outcome(const at::Tensor& last, const at::Tensor& target) override {
    return {.loss = loss(last, target),
            .right = 0,
            .count = target.ne(models::BertImpl::kNotMasked).sum().item<std::int64_t>()};
  }

 private:
  // The same number of words in every sequence, so that shapes stay the same from step to step.
  std::size_t guessed_words() const {
    const auto share = std::llround(kGuessedShare * static_cast<double>(words_));
    return static_cast<std::size_t>(std::max<std::int64_t>(1, share));
  }

  TaskBatch masked(const std::vector<std::int64_t>& text, const std::vector<std::size_t>& starts,
                   std::uint64_t stream) const {
    Draws draws(seed_, stream);
    const auto rows = static_cast<std::int64_t>(starts.size());
    const auto context = static_cast<std::size_t>(words_ + 2);
    std::vector<std::int64_t> input, target;
    for (const std::size_t start : starts) {
      const auto begin = text.begin() + static_cast<std::ptrdiff_t>(start);
      std::vector<std::int64_t> tokens(begin, begin + words_);
      tokens.insert(tokens.begin(), Vocabulary::kClass);
      tokens.push_back(Vocabulary::kSeparator);
      std::vector<std::int64_t> guessed(context, models::BertImpl::kNotMasked);
      mask_words(tokens, guessed, 1, context - 1, guessed_words(), data_.vocabulary.size(), draws);
      input.insert(input.end(), tokens.begin(), tokens.end());
      target.insert(target.end(), guessed.begin(), guessed.end());
    }
    const auto tensor = [&](std::vector<std::int64_t>& values) {
      return at::from_blob(values.data(), {rows, words_ + 2}, at::kLong).clone().to(device());
    };
    return {.input = tensor(input), .target = tensor(target), .units = rows * (words_ + 2)};
  }

  std::uint64_t seed_;
  std::int64_t batch_;
  std::int64_t words_;  // of a sequence, between its special tokens
  TokenData data_;
  models::Bert bert_;
  std::vector<std::size_t> validation_starts_;
};

}  // namespace

std::unique_ptr<Task> make_masked_word_task(const TaskOptions& options) {
  return std::make_unique<MaskedWordTask>(options, bert_shape(options));
}

}  // namespace reprise::app
