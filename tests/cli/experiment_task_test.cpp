// The tasks of experiments: the same seed gives the same run, whatever a method does in between;
// batches are what the papers say; validation measures and leaves no trace.
#include <gmock/gmock.h>
#include <torch/torch.h>

#include <cmath>

#include "apps/cli/experiment/bert_task.h"
#include "apps/cli/experiment/task.h"
#include "models/strategy.h"
#include "models/transformer.h"
#include "tests/cli/experiment_files.h"

namespace reprise::app {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// Data for every task, and small models of it.
class ExperimentTask : public testing::Test {
 protected:
  ExperimentTask()
      : nothing_installed_("REPRISE_EXPERIMENT_DATA", ""), home_("HOME", folder_.path()) {
    std::string text;
    for (int line = 0; line < 200; ++line)
      text += "All work and no play, line " + std::to_string(line) + ".\n";
    write_file(folder_ / "text.txt", text);
    std::string table = "sentence\tother\tlabel\n", digits;
    for (int i = 0; i < 60; ++i) {
      table += i % 2 == 0 ? "good\tfine\tyes\n" : "bad\tpoor and more of it\tno\n";
      digits += i % 2 == 0 ? digit_record(0, 16) : digit_record(1, 0);
    }
    write_file(folder_ / "labels.tsv", table);
    write_file(folder_ / "digits.csv", digits);
  }

  TaskOptions small(const std::string& model, const std::string& file) const {
    TaskOptions options;
    options.model = model;
    options.data = {folder_ / file};
    options.batch = 4;
    options.layers = 3;
    options.width = 16;
    options.heads = 2;
    if (model != "vit") options.context = 20;
    return options;
  }
  TaskOptions gpt() const { return small("gpt2", "text.txt"); }
  TaskOptions masked() const { return small("bert", "text.txt"); }
  TaskOptions classes() const {
    TaskOptions options = small("bert", "labels.tsv");
    options.classify = true;
    options.columns.second = "other";
    return options;
  }
  TaskOptions images() const { return small("vit", "digits.csv"); }
  std::vector<TaskOptions> all() const { return {gpt(), masked(), classes(), images()}; }

  TemporaryFolder folder_;

 private:
  EnvironmentVariable nothing_installed_, no_data_{"XDG_DATA_HOME", ""}, home_;
};

std::string make_refusal(const TaskOptions& options) {
  return refusal_of([&] { make_task(options); });
}

at::Tensor loss_of(Task& task, const TaskBatch& batch, const std::string& strategy = "none") {
  const auto method = models::Strategy::parse(strategy);
  return task.loss(method.run(task.layers(), task.first(batch.input)), batch.target);
}

std::vector<at::Tensor> weights_of(Task& task) {
  std::vector<at::Tensor> weights;
  for (const at::Tensor& parameter : task.module().parameters()) {
    weights.push_back(parameter.detach().clone());
  }
  return weights;
}

bool are_equal(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  return std::ranges::equal(a, b,
                            [](const at::Tensor& x, const at::Tensor& y) { return x.equal(y); });
}

TEST_F(ExperimentTask, TheSameSeedGivesTheSameWeightsAndBatchesInAnyOrder) {
  for (TaskOptions options : all()) {
    SCOPED_TRACE(options.model);
    const auto one = make_task(options), other = make_task(options);
    EXPECT_TRUE(are_equal(weights_of(*one), weights_of(*other)));
    const TaskBatch first = one->training_batch(0), later = one->training_batch(30);
    EXPECT_TRUE(other->training_batch(30).input.equal(later.input));
    EXPECT_TRUE(other->training_batch(0).input.equal(first.input));
    EXPECT_TRUE(other->training_batch(0).target.equal(first.target));
    EXPECT_FALSE(later.input.equal(first.input));
    options.seed = 2;
    const auto third = make_task(options);
    EXPECT_FALSE(are_equal(weights_of(*one), weights_of(*third)));
    EXPECT_FALSE(third->training_batch(0).input.equal(first.input));
  }
}

TEST_F(ExperimentTask, NothingIsDrawnFromTheDefaultGenerator) {
  for (const TaskOptions& options : all()) {
    SCOPED_TRACE(options.model);
    torch::manual_seed(5);
    const at::Tensor expected = at::rand({4});
    torch::manual_seed(5);
    const auto task = make_task(options);
    task->training_batch(3);
    task->validate();
    EXPECT_TRUE(at::rand({4}).equal(expected));
  }
}

TEST_F(ExperimentTask, BlocksMayBeRunAgainWithTheGradientsOfThePlainStep) {
  for (const TaskOptions& options : all()) {
    SCOPED_TRACE(options.model);
    const auto task = make_task(options);
    const TaskBatch batch = task->training_batch(0);
    const auto gradients = [&](const char* strategy) {
      torch::manual_seed(1);
      task->module().zero_grad();
      loss_of(*task, batch, strategy).backward();
      std::vector<at::Tensor> all;
      for (const auto& parameter : task->module().parameters())
        all.push_back(parameter.grad().clone());
      return all;
    };
    EXPECT_TRUE(are_equal(gradients("none"), gradients("every-block")));
  }
}

TEST_F(ExperimentTask, StepsLowerTheLossThatValidationMeasures) {
  for (TaskOptions options : all()) {
    SCOPED_TRACE(options.model);
    options.dropout = 0;
    const auto task = make_task(options);
    const Validation before = task->validate();
    torch::optim::AdamW optimizer(task->module().parameters(), torch::optim::AdamWOptions(3e-3));
    for (int step = 0; step < 60; ++step) {
      optimizer.zero_grad();
      loss_of(*task, task->training_batch(step)).backward();
      optimizer.step();
    }
    EXPECT_LT(task->validate().loss, before.loss - 0.3);
  }
}

TEST_F(ExperimentTask, ValidationLeavesModeAndGradientsAlone) {
  for (const TaskOptions& options : all()) {
    SCOPED_TRACE(options.model);
    const auto task = make_task(options);
    const Validation once = task->validate(), twice = task->validate();
    EXPECT_EQ(once.loss, twice.loss);
    EXPECT_TRUE(task->module().is_training());
    for (const auto& parameter : task->module().parameters())
      EXPECT_FALSE(parameter.grad().defined());
    task->module().eval();
    task->validate();
    EXPECT_FALSE(task->module().is_training());
  }
}

TEST_F(ExperimentTask, WordsHaveAPerplexityAndClassesAnAccuracy) {
  for (const TaskOptions& options : {gpt(), masked()}) {
    const Validation found = make_task(options)->validate();
    ASSERT_TRUE(found.perplexity.has_value());
    EXPECT_DOUBLE_EQ(*found.perplexity, std::exp(found.loss));
    EXPECT_NEAR(found.loss, std::log(261.0), 0.2);
    EXPECT_FALSE(found.accuracy.has_value());
  }
  for (const TaskOptions& options : {classes(), images()}) {
    const Validation found = make_task(options)->validate();
    EXPECT_FALSE(found.perplexity.has_value());
    ASSERT_TRUE(found.accuracy.has_value());
    EXPECT_GE(*found.accuracy, 0);
    EXPECT_LE(*found.accuracy, 1);
  }
}

TEST_F(ExperimentTask, AccuracyIsTheShareOfHeldOutExamplesThatAreRight) {
  TaskOptions options = images();
  options.validation_data = {folder_ / "held_out.csv"};
  write_file(folder_ / "held_out.csv",
             digit_record(3, 3) + digit_record(5, 5) + digit_record(3, 7) + digit_record(3, 0));
  const auto task = make_task(options);
  // Always a three.
  for (auto& entry : task->module().named_parameters()) {
    const torch::NoGradGuard no_grad;
    if (entry.key() == "head.weight") entry.value().zero_();
    if (entry.key() == "head.bias") entry.value()[3] = 10;
  }
  EXPECT_DOUBLE_EQ(*task->validate().accuracy, 0.75);
}

TEST_F(ExperimentTask, Gpt2GuessesTheNextToken) {
  const auto task = make_task(gpt());
  const TaskBatch batch = task->training_batch(0);
  EXPECT_EQ(batch.input.sizes(), (std::vector<std::int64_t>{4, 20}));
  EXPECT_TRUE(batch.input.slice(1, 1).equal(batch.target.slice(1, 0, 19)));
  EXPECT_EQ(batch.units, 80);
  EXPECT_EQ(task->units(), "tokens");
}

TEST_F(ExperimentTask, BertGuessesFifteenPercentOfTheWords) {
  const auto task = make_task(masked());
  for (std::int64_t step = 0; step < 5; ++step) {
    const TaskBatch batch = task->training_batch(step);
    const auto guessed = batch.target.ne(models::BertImpl::kNotMasked);
    // 15 % of 18.
    EXPECT_TRUE(guessed.sum(1).eq(3).all().item<bool>());
    EXPECT_TRUE(batch.input.select(1, 0).eq(Vocabulary::kClass).all().item<bool>());
    EXPECT_TRUE(batch.input.select(1, 19).eq(Vocabulary::kSeparator).all().item<bool>());
    EXPECT_FALSE(guessed.select(1, 0).any().item<bool>());
    EXPECT_FALSE(guessed.select(1, 19).any().item<bool>());
    EXPECT_TRUE(batch.target.ge(Vocabulary::kSpecialTokens).eq(guessed).all().item<bool>());
  }
}

TEST(MaskWords, HidesEightyOfAHundredAndReplacesTen) {
  constexpr std::size_t kWords = 20'000;
  const std::vector<std::int64_t> before(kWords + 2, 50);
  std::vector<std::int64_t> tokens = before, targets(kWords + 2, -1);
  Draws draws(1, 2);
  mask_words(tokens, targets, 1, kWords + 1, kWords / 2, 1000, draws);
  std::size_t guessed = 0, hidden = 0, replaced = 0;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    if (targets[i] == -1) {
      EXPECT_EQ(tokens[i], 50);
      continue;
    }
    ++guessed;
    EXPECT_EQ(targets[i], 50);
    hidden += tokens[i] == Vocabulary::kMask;
    replaced += tokens[i] != Vocabulary::kMask && tokens[i] != 50;
    EXPECT_TRUE(tokens[i] == Vocabulary::kMask || tokens[i] >= Vocabulary::kSpecialTokens);
    EXPECT_LT(tokens[i], 1000);
  }
  EXPECT_EQ(guessed, kWords / 2);
  EXPECT_NEAR(static_cast<double>(hidden) / guessed, 0.8, 0.015);
  EXPECT_NEAR(static_cast<double>(replaced) / guessed, 0.1, 0.01);
}

TEST(EncodeTexts, PutsSpecialTokensAroundAndPaddingAfter) {
  const EncodedText one = encode_texts({10, 11}, {}, 6);
  EXPECT_THAT(one.tokens, ElementsAre(2, 10, 11, 3, 0, 0));
  EXPECT_THAT(one.segments, ElementsAre(0, 0, 0, 0, 0, 0));
  const EncodedText two = encode_texts({10, 11}, {20}, 8);
  EXPECT_THAT(two.tokens, ElementsAre(2, 10, 11, 3, 20, 3, 0, 0));
  EXPECT_THAT(two.segments, ElementsAre(0, 0, 0, 0, 1, 1, 0, 0));
}

TEST(EncodeTexts, CutsTheLongerFirst) {
  EXPECT_THAT(encode_texts({10, 11, 12, 13}, {}, 5).tokens, ElementsAre(2, 10, 11, 12, 3));
  EXPECT_THAT(encode_texts({10, 11, 12, 13}, {20}, 6).tokens, ElementsAre(2, 10, 11, 3, 20, 3));
  EXPECT_THAT(encode_texts({10}, {20, 21, 22, 23, 24}, 7).tokens,
              ElementsAre(2, 10, 3, 20, 21, 22, 3));
  EXPECT_THAT(encode_texts({10, 11, 12, 13}, {20, 21, 22, 23}, 6).tokens.size(), 6u);
  EXPECT_THAT(encode_texts({10}, {20}, 3).tokens, ElementsAre(2, 3, 3));
}

TEST_F(ExperimentTask, ClassesOfTextsComeWithTheirSegments) {
  const auto task = make_task(classes());
  const TaskBatch batch = task->training_batch(0);
  EXPECT_EQ(batch.input.sizes(), (std::vector<std::int64_t>{4, 2, 20}));
  EXPECT_TRUE(batch.input.select(1, 1).eq(1).any().item<bool>());
  EXPECT_EQ(batch.target.sizes(), (std::vector<std::int64_t>{4}));
  EXPECT_EQ(batch.units, 80);
}

TEST_F(ExperimentTask, SaysWhatItTrainsOnWhat) {
  const auto task = make_task(gpt());
  EXPECT_THAT(
      task->model(),
      testing::MatchesRegex("GPT-2, 3 layers of width 16, 2 heads, context 20: .* parameters"));
  EXPECT_THAT(task->data(), testing::MatchesRegex(".* bytes of .*text.txt, .* more held out"));
  EXPECT_THAT(task->layer_names(), ElementsAre("block0", "block1", "block2"));
  EXPECT_EQ(task->layers().size(), 3u);
  EXPECT_THAT(make_task(images())->data(), HasSubstr("54 images of 10 classes of "));
  EXPECT_EQ(make_task(images())->units(), "images");
  EXPECT_THAT(make_task(classes())->data(), HasSubstr("54 texts of 2 classes of "));
}

TEST_F(ExperimentTask, TheFingerprintIsOfTheDataAlone) {
  const auto fingerprint = [](const TaskOptions& options) {
    return make_task(options)->fingerprint();
  };
  for (TaskOptions options : all()) {
    const std::uint64_t before = fingerprint(options);
    options.layers = 1;
    options.seed = 2;
    EXPECT_EQ(fingerprint(options), before) << options.model;
    // The same bytes elsewhere, and one more record.
    const std::string more = options.model == "vit" ? digit_record(1, 3)
                             : options.classify     ? "new\tnewer\tyes\n"
                                                    : "new";
    const std::filesystem::path path = options.data[0];
    options.data = {folder_ / "moved" + path.extension().string()};
    write_file(options.data[0], contents(path));
    EXPECT_EQ(fingerprint(options), before) << options.model;
    write_file(options.data[0], contents(path) + more);
    EXPECT_NE(fingerprint(options), before) << options.model;
  }
}

TEST_F(ExperimentTask, QuickIsHalfTheBatch) {
  TaskOptions options = images();
  options.batch.reset();
  const std::int64_t whole = make_task(options)->training_batch(0).units;
  options.quick = true;
  EXPECT_EQ(make_task(options)->training_batch(0).units, whole / 2);
}

TEST_F(ExperimentTask, TrueShapesTakeWordsAndAllTheirClasses) {
  const auto sizes_of = [](TaskOptions options, const char* name) {
    options.full_size = true;
    options.layers = 1;
    return make_task(options)->module().named_parameters()[name].sizes().vec();
  };
  EXPECT_THAT(sizes_of(gpt(), "token_embedding.weight"), ElementsAre(50257, 16));
  EXPECT_THAT(sizes_of(masked(), "token_embedding.weight"), ElementsAre(30522, 16));
  EXPECT_THAT(sizes_of(images(), "head.weight"), ElementsAre(1000, 16));
  EXPECT_THAT(sizes_of(images(), "positions"), ElementsAre(1, 1 + 14 * 14, 16));
  TaskOptions options = gpt();
  options.full_size = true;
  options.layers = 1;
  const auto task = make_task(options);
  EXPECT_THAT(task->data(), HasSubstr(" words ("));
  // "work" and "play", every line's.
  EXPECT_LT(task->training_batch(0).input.max().item<std::int64_t>(), 1000);
}

TEST_F(ExperimentTask, TakesWhatIsInstalled) {
  write_file(
      folder_ / "manifest.tsv",
      "text\ttext.txt\tsome play\nlabels\tlabels.tsv\tsome table\ndigits\tdigits.csv\tten\n");
  const EnvironmentVariable variable("REPRISE_EXPERIMENT_DATA", folder_.path());
  for (TaskOptions options : all()) {
    options.data.clear();
    EXPECT_THAT(make_task(options)->data(),
                testing::AnyOf(HasSubstr("some play"), HasSubstr("some table"), HasSubstr("ten")));
  }
}

TEST_F(ExperimentTask, HeldOutTextsMayBeGiven) {
  TaskOptions options = classes();
  options.validation_data = {folder_ / "held_out.tsv"};
  write_file(folder_ / "held_out.tsv", "label\tsentence\tother\nyes\tgood\tfine\n");
  EXPECT_THAT(make_task(options)->data(), HasSubstr("60 texts of 2 classes"));
  EXPECT_THAT(make_task(options)->data(), HasSubstr("1 more held out"));
  options = gpt();
  options.validation_data = {folder_ / "held_out.tsv"};
  EXPECT_THAT(make_task(options)->data(), HasSubstr("35 more held out"));
}

TEST_F(ExperimentTask, RefusesWhatItCannotTrain) {
  const auto with = [](TaskOptions options, auto change) {
    change(options);
    return make_refusal(options);
  };
  EXPECT_THAT(with(gpt(), [](auto& o) { o.model = "gpt3"; }),
              HasSubstr("unknown model 'gpt3'; choose one of bert, gpt2, vit"));
  EXPECT_THAT(with(gpt(), [](auto& o) { o.classify = true; }),
              HasSubstr("gpt2 has no classes of labelled texts"));
  EXPECT_THAT(with(gpt(), [](auto& o) { o.patch = 2; }), HasSubstr("gpt2 has no patch size"));
  EXPECT_THAT(with(masked(), [](auto& o) { o.image = 2; }), HasSubstr("bert has no image size"));
  EXPECT_THAT(with(images(), [](auto& o) { o.context = 2; }), HasSubstr("vit has no context"));
  EXPECT_THAT(with(images(), [](auto& o) { o.patch = 3; }), HasSubstr("patch 3 does not divide"));
  EXPECT_THAT(with(gpt(), [](auto& o) { o.batch = 0; }), HasSubstr("batch is 0"));
  EXPECT_THAT(with(masked(), [](auto& o) { o.context = 2; }),
              HasSubstr("context is 2; of bert it must be at least 3"));
  EXPECT_THAT(with(gpt(), [](auto& o) { o.context = 5000; }),
              HasSubstr("and one sequence needs 5001; give longer data, or a shorter context"));
  EXPECT_THAT(
      with(images(), [](auto& o) { o.data.push_back("more"); }),
      HasSubstr("vit takes one folder of pictures or one table of digits, and 2 are given"));
}

TEST_F(ExperimentTask, MissingDataNamesTheSetup) {
  for (TaskOptions options : {classes(), images()}) {
    options.data.clear();
    EXPECT_THAT(make_refusal(options), HasSubstr("run scripts/setup --experiments"));
  }
}

TEST_F(ExperimentTask, TextWithoutLabelsIsAlwaysThere) {
  TaskOptions options = gpt();
  options.data.clear();
  EXPECT_THAT(make_task(options)->data(), HasSubstr(REPRISE_SOURCE_DIR));
}

}  // namespace
}  // namespace reprise::app
