// Skips go from the stage that stashes to the stage that pops, and are checked before anything runs.
#include <reprise/skip.h>

#include "tests/pipeline/testing.h"

namespace reprise::pipeline {
namespace {

using ::testing::HasSubstr;

struct BlockImpl : torch::nn::Module, Skippable {
  BlockImpl(std::vector<std::string> stashed, std::vector<std::string> popped)
      : stashed_(std::move(stashed)), popped_(std::move(popped)) {
    linear = register_module("linear", torch::nn::Linear(6, 6));
  }
  std::vector<std::string> stashes() const override { return stashed_; }
  std::vector<std::string> pops() const override { return popped_; }
  at::Tensor forward(at::Tensor x) {
    for (const std::string& name : popped_) {
      const at::Tensor skip = pop(name);
      if (skip.defined()) x = x * skip;
    }
    x = torch::dropout(linear->forward(x).tanh(), 0.2, true);
    for (const std::string& name : stashed_) stash(name, gives_nothing ? at::Tensor() : x.cos());
    return x;
  }
  torch::nn::Linear linear{nullptr};
  bool gives_nothing = false;

 private:
  std::vector<std::string> stashed_, popped_;
};
TORCH_MODULE(Block);

// Two skips that cross each other, and one within a stage or not, by the balance.
torch::nn::Sequential model_with_skips() {
  torch::nn::Sequential model;
  model->push_back(Block(std::vector<std::string>{"a"}, std::vector<std::string>{}));
  model->push_back(Block(std::vector<std::string>{"b"}, std::vector<std::string>{}));
  model->push_back(Block(std::vector<std::string>{"c"}, std::vector<std::string>{}));
  model->push_back(Block(std::vector<std::string>{}, std::vector<std::string>{"a", "c"}));
  model->push_back(Block(std::vector<std::string>{}, std::vector<std::string>{"b"}));
  return model;
}

// pytorch #127964 asks for skips in 1F1B.
TEST(Skip, GradientsAreThoseWithoutAPipelineInEveryModeAndSchedule) {
  torch::manual_seed(1);
  const auto model = model_with_skips();
  const at::Tensor x = torch::randn({8, 6});
  const at::Tensor target = torch::randn({8, 6});
  const std::vector<c10::Device> two{c10::kCPU, c10::kCPU};
  struct Case {
    const char* schedule;
    std::vector<std::int64_t> balance;
    std::vector<c10::Device> devices;
  };
  for (const Case& each : std::vector<Case>{{"gpipe", {5}, {}},
                                            {"gpipe", {2, 3}, {}},
                                            {"gpipe", {1, 1, 1, 1, 1}, {}},
                                            {"1f1b", {1, 2, 2}, {}},
                                            {"interleaved-1f1b", {1, 1, 1, 2}, two},
                                            {"zero-bubble", {1, 1, 2, 1}, two},
                                            {"zbv", {1, 1, 1, 2}, two},
                                            {"dualpipev", {1, 1, 1, 2}, two}}) {
    for (const std::int64_t stop : {0, 2, 4}) {
      Pipeline pipe(model, {.balance = each.balance,
                            .devices = each.devices,
                            .chunks = 4,
                            .checkpoint_stop = stop,
                            .schedule = each.schedule});
      torch::manual_seed(2);
      const Outcome plain = [&] {
        const SkipScope skips;
        return plain_step(model, x, target, 4, backward_order(pipe.schedule(4)));
      }();
      torch::manual_seed(2);
      expect_same(plain, outcome_of(model, pipe.step(x, target, square_loss).loss),
                  std::string(each.schedule) + ", checkpoint_stop " + std::to_string(stop));
    }
  }
}

TEST(Skip, ForwardAndBackwardCarryThemToo) {
  torch::manual_seed(1);
  const auto model = model_with_skips();
  const at::Tensor x = torch::randn({8, 6});
  std::vector<at::Tensor> gradients;
  for (const auto& balance : {std::vector<std::int64_t>{5}, std::vector<std::int64_t>{1, 1, 3}}) {
    Pipeline pipe(model, {.balance = balance, .chunks = 4});
    torch::manual_seed(2);
    pipe.forward(x).sum().backward();
    const Outcome outcome = outcome_of(model, at::Tensor());
    if (gradients.empty()) gradients = outcome.gradients;
    expect_same({{}, gradients, {}}, outcome, "another balance");
  }
}

TEST(Skip, AStashMayBeUndefined) {
  torch::nn::Sequential model;
  Block first(std::vector<std::string>{"a"}, std::vector<std::string>{});
  first->gives_nothing = true;
  model->push_back(first);
  model->push_back(Block(std::vector<std::string>{}, std::vector<std::string>{"a"}));
  for (const char* schedule : {"gpipe", "1f1b"}) {
    Pipeline pipe(model, {.balance = {1, 1},
                          .chunks = 2,
                          .checkpoint = CheckpointMode::kAlways,
                          .schedule = schedule});
    pipe.step(torch::randn({4, 6}), torch::randn({4, 6}), square_loss);
    EXPECT_TRUE(first->linear->weight.grad().defined());
  }
}

std::string refusal(const std::vector<Block>& layers) {
  return refusal_of(
      [&] { Pipeline(layers, {.balance = {static_cast<std::int64_t>(layers.size())}}); });
}

Block block(std::vector<std::string> stashed, std::vector<std::string> popped) {
  return Block(std::move(stashed), std::move(popped));
}

TEST(Skip, NamesAreCheckedWhenThePipelineIsMade) {
  EXPECT_THAT(refusal({block({"a"}, {}), block({}, {})}),
              HasSubstr("stashes 'a', and no layer after it pops that"));
  EXPECT_THAT(refusal({block({}, {"a"}), block({"a"}, {})}),
              HasSubstr("pops 'a', and no layer before it stashes that"));
  EXPECT_THAT(refusal({block({"a"}, {}), block({"a"}, {}), block({}, {"a"})}),
              HasSubstr("stashes 'a', and so does layer 0"));
  EXPECT_THAT(refusal({block({"a"}, {}), block({}, {"a"}), block({}, {"a"})}),
              HasSubstr("pops 'a', and so does layer 1"));
  EXPECT_THAT(refusal({block({"a"}, {"a"})}), HasSubstr("no layer before it stashes that"));
  EXPECT_EQ(refusal({block({"a"}, {}), block({}, {"a"})}), "");
}

TEST(Skip, LayersMustKeepToWhatTheyDeclare) {
  const auto layers_with = [](auto first, auto second) {
    PipelineLayer one{.name = "one", .forward = first};
    PipelineLayer two{.name = "two", .forward = second};
    one.stashes = {"a"};
    two.pops = {"a"};
    return std::vector<PipelineLayer>{one, two};
  };
  const auto keep = [](std::vector<at::Tensor> x) { return x; };
  const auto refused = [&](auto first, auto second) {
    return refusal_of([&] {
      Pipeline(layers_with(first, second), {.balance = {1, 1}}).forward(torch::randn({2, 2}));
    });
  };
  EXPECT_THAT(refused(keep, keep), HasSubstr("layer one declares that it stashes 'a' and did not"));
  const auto stashes = [](std::vector<at::Tensor> x) { return stash("a", x.front()), x; };
  EXPECT_THAT(refused(stashes, keep), HasSubstr("layer two declares that it pops 'a' and did not"));
  const auto other = [](std::vector<at::Tensor> x) { return stash("b", x.front()), x; };
  EXPECT_THAT(refused(other, keep), HasSubstr("layer one does not declare 'b'"));
  const auto pops = [](std::vector<at::Tensor> x) { return pop("b"), x; };
  EXPECT_THAT(refused(stashes, pops), HasSubstr("layer two does not declare 'b'"));
}

TEST(Skip, OutsideOfAPipelineAScopeIsNeeded) {
  EXPECT_THAT(refusal_of([] { stash("a", torch::ones(1)); }), HasSubstr("SkipScope"));
  EXPECT_THAT(refusal_of([] { pop("a"); }), HasSubstr("SkipScope"));
  const SkipScope outer;
  stash("a", torch::ones(1));
  EXPECT_THAT(refusal_of([] { stash("a", torch::ones(1)); }), HasSubstr("is stashed already"));
  {
    const SkipScope inner;
    EXPECT_THAT(refusal_of([] { pop("a"); }), HasSubstr("nothing is stashed by the name 'a'"));
  }
  EXPECT_TRUE(at::equal(pop("a"), torch::ones(1)));
}

TEST(Skip, NamespacesMakeNamesOfTheirOwn) {
  const SkipNamespace one, two, copy = one;
  EXPECT_NE(one("a"), two("a"));
  EXPECT_EQ(one("a"), copy("a"));
  EXPECT_NE(one("a"), one("b"));
}

}  // namespace
}  // namespace reprise::pipeline
