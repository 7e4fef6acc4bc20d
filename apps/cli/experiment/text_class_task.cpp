// BERT tells the classes of texts, one or two texts an example, by the place of [CLS] (Devlin et
// al., arXiv:1810.04805, section 4.1). Weights are drawn, not pretrained.
#include <ATen/ops/empty.h>
#include <fmt/ranges.h>
#include <reprise/error.h>

#include <numeric>

#include "apps/cli/experiment/bert_task.h"
#include "apps/cli/experiment/block_task.h"
#include "apps/cli/experiment/fingerprint.h"
#include "apps/cli/experiment/installed_data.h"
#include "apps/cli/io/figures.h"
#include "apps/cli/training/draws.h"

namespace reprise::app {

namespace {

struct TextClasses {
  LabelledText all;  // held-out examples too
  Split split;
  std::string origin;
};

TextClasses load_text_classes(const TaskOptions& options) {
  TextClasses data;
  std::vector<std::string> paths = options.data, origins = options.data;
  if (paths.empty()) {
    const InstalledData installed = find_installed_data();
    if (installed.labels.empty()) {
      throw UsageError(
          fmt::format("there are no labelled texts; give tables with --labelled, or {}",
                      installed_data_remedy(installed)));
    }
    for (const InstalledData::Source& source : installed.labels) {
      paths.push_back(source.path);
      origins.push_back(source.origin);
    }
  }
  data.all = read_labelled_text(paths, options.columns);
  data.origin = fmt::format("{}", fmt::join(origins, "; "));
  if (options.validation_data.empty()) {
    data.split = split_examples(data.all.examples.size(), data.origin);
    return data;
  }
  LabelledText held_out =
      read_labelled_text(options.validation_data, options.columns, data.all.labels);
  if (held_out.examples.empty()) {
    throw UsageError(fmt::format("{} has no examples; give others for validation",
                                 fmt::join(options.validation_data, ", ")));
  }
  data.split.training.resize(data.all.examples.size());
  std::iota(data.split.training.begin(), data.split.training.end(), std::size_t{0});
  for (LabelledText::Example& example : held_out.examples) {
    data.split.validation.push_back(data.all.examples.size());
    data.all.examples.push_back(std::move(example));
  }
  return data;
}

Vocabulary vocabulary_of(const TextClasses& data, std::int64_t words) {
  if (words == 0) return Vocabulary::bytes();
  std::string text;
  for (const std::size_t index : data.split.training) {
    const LabelledText::Example& example = data.all.examples[index];
    text += example.text + ' ' + example.second + ' ';
  }
  return Vocabulary::words(text, words);
}

class TextClassTask : public BlockTask {
 public:
  TextClassTask(const TaskOptions& options, models::BertOptions shape)
      : BlockTask(options.device, Guesses::kClasses),
        batch_(batch_of(options, options.full_size ? kFullBertBatch : kBertBatch)),
        data_(load_text_classes(options)),
        vocabulary_(vocabulary_of(data_, options.full_size ? shape.vocabulary : 0)),
        order_(options.seed, data_.split.training.size()) {
    shape.classes = static_cast<std::int64_t>(data_.all.labels.size());
    bert_ = with_seed(options.seed, [&] { return models::Bert(shape); });
    use(bert_);
    validation_ = evenly(data_.split.validation, kValidationExamples);
  }

  std::string model() const override { return with_parameter_count(describe(bert_->options())); }
  std::string units() const override { return "tokens"; }
  std::string data() const override {
    return fmt::format("{} texts of {} classes of {}, {} more held out",
                       format_count(static_cast<double>(data_.split.training.size())),
                       data_.all.labels.size(), data_.origin,
                       format_count(static_cast<double>(data_.split.validation.size())));
  }
  std::uint64_t fingerprint() const override {
    Fingerprint fingerprint;
    for (const std::string& label : data_.all.labels) fingerprint.add(label);
    for (const auto* part : {&data_.split.training, &data_.split.validation}) {
      fingerprint.add(part->size());
      for (const std::size_t index : *part) {
        const LabelledText::Example& example = data_.all.examples[index];
        fingerprint.add(example.text);
        fingerprint.add(example.second);
        fingerprint.add(example.label);
      }
    }
    return fingerprint.value();
  }

  at::Tensor first(const at::Tensor& input) override {
    return bert_->embed(input.select(1, 0), input.select(1, 1));
  }
  at::Tensor loss(const at::Tensor& last, const at::Tensor& target) override {
    return bert_->head_loss(last, target);
  }

  TaskBatch training_batch(std::int64_t step) override {
    std::vector<std::size_t> examples = order_.batch(step, batch_);
    for (std::size_t& example : examples) example = data_.split.training[example];
    return encode(examples);
  }

 protected:
  std::size_t validation_batches() const override { return batches_in(validation_.size(), batch_); }
  TaskBatch validation_batch(std::size_t index) override {
    return encode(part_of(validation_, index, batch_));
  }
  Outcome outcome(const at::Tensor& last, const at::Tensor& target) override {
    return class_outcome(bert_->head(last), target);
  }

 private:
  // input: int64 [batch, 2, context]: tokens and segments.
  TaskBatch encode(const std::vector<std::size_t>& examples) const {
    const std::int64_t context = bert_->options().context;
    const auto rows = static_cast<std::int64_t>(examples.size());
    const at::Tensor input = at::empty({rows, 2, context}, at::kLong);
    const at::Tensor target = at::empty({rows}, at::kLong);
    auto* next = input.mutable_data_ptr<std::int64_t>();
    auto* label = target.mutable_data_ptr<std::int64_t>();
    for (const std::size_t index : examples) {
      const LabelledText::Example& example = data_.all.examples[index];
      const EncodedText text = encode_texts(vocabulary_.encode(example.text),
                                            vocabulary_.encode(example.second), context);
      next = std::copy(text.tokens.begin(), text.tokens.end(), next);
      next = std::copy(text.segments.begin(), text.segments.end(), next);
      *label++ = static_cast<std::int64_t>(example.label);
    }
    return {.input = input.to(device()), .target = target.to(device()), .units = rows * context};
  }

  std::int64_t batch_;
  TextClasses data_;
  Vocabulary vocabulary_;
  EpochOrder order_;
  models::Bert bert_{nullptr};
  std::vector<std::size_t> validation_;
};

}  // namespace

std::unique_ptr<Task> make_text_class_task(const TaskOptions& options) {
  return std::make_unique<TextClassTask>(options, bert_shape(options));
}

}  // namespace reprise::app
