// Tasks, which methods train: batches that depend on seed and number alone, masked bytes, tables of
// pictures, and validation.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/ops/rand.h>
#include <c10/core/GradMode.h>
#include <gmock/gmock.h>

#include "apps/cli/training/methods/image_table.h"
#include "apps/cli/training/methods/task.h"
#include "models/bert.h"
#include "tests/cli/program.h"
#include "tests/cli/training/tables.h"
#include "tests/refusal.h"

namespace reprise::app {
namespace {

using testing::HasSubstr;

class TrainTask : public testing::Test {
 protected:
  TrainTask() {
    std::string text;
    for (int i = 0; i < 900; ++i) text += "line " + std::to_string(i * i % 97) + " of a text\n";
    write_file(folder_ / "text.txt", text);
    write_file(folder_ / "pictures.csv", table_of_pictures(40));
  }

  TaskOptions options_of(const std::string& model) const {
    TaskOptions options;
    options.patch = 1;
    options.run.model = model;
    options.run.gpt = {
        .layers = 2, .width = 16, .heads = 2, .context = 40, .fused_attention = false};
    options.run.batch = 3;
    options.run.seed = 4;
    options.run.data = {folder_ / (model == "vit" ? "pictures.csv" : "text.txt")};
    return options;
  }
  Task task_of(const std::string& model) const { return make_task(options_of(model), c10::kCPU); }

  std::string refusal_of_table(const std::string& text) const {
    write_file(folder_ / "t.csv", text);
    return refusal_of([&] { read_image_table(folder_ / "t.csv"); });
  }

  TemporaryFolder folder_;
};

TEST_F(TrainTask, ABatchDependsOnSeedAndNumberAloneAndDrawsFromNoGenerator) {
  for (const std::string model : {"gpt", "bert", "vit"}) {
    const Task one = task_of(model), two = task_of(model);
    const TaskBatch second = one.batch(1);
    two.batch(7);
    at::manual_seed(5);
    const at::Tensor expected = at::rand({4});
    at::manual_seed(5);
    const TaskBatch again = two.batch(1);
    EXPECT_TRUE(at::rand({4}).equal(expected)) << model;
    EXPECT_TRUE(again.input.equal(second.input)) << model;
    EXPECT_TRUE(again.target.equal(second.target)) << model;
    EXPECT_FALSE(one.batch(0).input.equal(second.input)) << model;
    EXPECT_EQ(second.units, model == "vit" ? 3 : 3 * 40);
    EXPECT_EQ(one.fingerprint, two.fingerprint);
  }
}

TEST_F(TrainTask, TheSameSeedDrawsTheSameWeights) {
  const Task one = task_of("bert"), two = task_of("bert");
  const auto a = one.module->parameters(), b = two.module->parameters();
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i) EXPECT_TRUE(a[i].equal(b[i]));
  EXPECT_EQ(one.blocks.size(), 2u);
  EXPECT_EQ(one.block_names.size(), 2u);
}

TEST_F(TrainTask, BertGuessesFifteenPercentOfTheBytesMostOfThemHidden) {
  const Task task = task_of("bert");
  std::int64_t hidden = 0, guessed = 0;
  for (int step = 0; step < 30; ++step) {
    const TaskBatch batch = task.batch(step);
    const at::Tensor is_guessed = batch.target.ne(models::BertImpl::kNotMasked);
    EXPECT_TRUE(is_guessed.sum(1).eq(6).all().item<bool>());
    const at::Tensor is_hidden = batch.input.eq(256);
    EXPECT_FALSE((is_hidden & is_guessed.logical_not()).any().item<bool>());
    hidden += is_hidden.sum().item<std::int64_t>();
    guessed += is_guessed.sum().item<std::int64_t>();
  }
  // Draws are a function of the seed, so this is the same in every run.
  EXPECT_NEAR(static_cast<double>(hidden) / static_cast<double>(guessed), 0.8, 0.08);
}

TEST_F(TrainTask, ValidationRepeatsAndLeavesModeAndGradientsAlone) {
  for (const std::string model : {"gpt", "bert", "vit"}) {
    const Task task = task_of(model);
    const Validation once = validate(task), twice = validate(task);
    EXPECT_EQ(once.loss, twice.loss) << model;
    EXPECT_TRUE(task.module->is_training());
    for (const auto& parameter : task.module->parameters()) {
      EXPECT_FALSE(parameter.grad().defined());
    }
  }
}

TEST_F(TrainTask, AccuracyIsTheShareOfHeldOutPicturesThatAreRight) {
  Task task = task_of("vit");
  ASSERT_FALSE(task.held_out.empty());
  const at::Tensor logits = at::rand({4});
  const std::int64_t guess = logits.argmax().item<std::int64_t>();
  task.classify = [&](const at::Tensor& last) { return logits.expand({last.size(0), 4}); };
  double right = 0, all = 0;
  for (const TaskBatch& batch : task.held_out) {
    right += batch.target.eq(guess).sum().item<double>();
    all += static_cast<double>(batch.target.numel());
  }
  EXPECT_DOUBLE_EQ(validate(task).accuracy.value(), right / all);
}

TEST_F(TrainTask, AShapeThatTheModelDoesNotAllowIsRefused) {
  TaskOptions options = options_of("vit");
  options.patch = 3;
  EXPECT_THAT(refusal_of([&] { make_task(options, c10::kCPU); }),
              HasSubstr("--patch 3 does not divide the 4 pixels"));
  options = options_of("bert");
  options.run.gpt.context = 1 << 20;
  EXPECT_THAT(refusal_of([&] { make_task(options, c10::kCPU); }), HasSubstr("1048576"));
}

TEST_F(TrainTask, TheTableOfPicturesIsReadWithItsClasses) {
  write_file(folder_ / "t.csv", table_of_pictures(11) + "\r\n" + line_of_picture(16, 2));
  const ImageTable table = read_image_table(folder_ / "t.csv");
  EXPECT_EQ(table.side, 4);
  EXPECT_EQ(table.kinds, 4);
  EXPECT_EQ(table.images.sizes(), (std::vector<std::int64_t>{12, 1, 4, 4}));
  EXPECT_EQ(table.classes[11].item<std::int64_t>(), 2);
  EXPECT_EQ(table.images.max().item<float>(), 1.0F);
  EXPECT_EQ(table.images[11].min().item<float>(), 1.0F);
}

TEST_F(TrainTask, ATableThatIsBrokenIsRefusedWithItsLine) {
  const std::string good = table_of_pictures(12);
  EXPECT_THAT(refusal_of_table(good + "1,2,x,4,0\n"), HasSubstr("t.csv:13: 'x' is no number"));
  EXPECT_THAT(refusal_of_table(good + "1,2,3,4,0\n"),
              HasSubstr("t.csv:13: 4 pixels, and the first"));
  EXPECT_THAT(refusal_of_table("1,2,3,0\n"), HasSubstr("t.csv:1: 3 pixels are no square"));
  EXPECT_THAT(refusal_of_table("7\n"), HasSubstr("t.csv:1: 0 pixels are no square"));
  EXPECT_THAT(refusal_of_table("1,1.5\n"), HasSubstr("t.csv:1: the class is 1.5"));
  EXPECT_THAT(refusal_of_table(table_of_pictures(5)), HasSubstr("holds 5 pictures"));
  std::string same;
  for (int i = 0; i < 12; ++i) same += line_of_picture(i, 1);
  EXPECT_THAT(refusal_of_table(same), HasSubstr("are of class 1"));
  EXPECT_THAT(refusal_of([&] { read_image_table(folder_ / "missing.csv"); }),
              HasSubstr("missing.csv"));
}

}  // namespace
}  // namespace reprise::app
