// Balance by measured layers.
#include <reprise/skip.h>

#include <numeric>

#include "tests/pipeline/testing.h"

namespace reprise::pipeline {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(PipelineBalance, BytesPutTheLargeLayerIntoAStageOfItsOwn) {
  torch::nn::Sequential model;
  model->push_back(torch::nn::Linear(8, 8));
  model->push_back(torch::nn::Linear(8, 512));
  model->push_back(torch::nn::Linear(512, 512));
  model->push_back(torch::nn::Linear(512, 8));
  EXPECT_THAT(balance_by_bytes(model, torch::randn({4, 8}), 3), ElementsAre(2, 1, 1));
}

TEST(PipelineBalance, TimeGivesACutOfAllLayersThatAPipelineTakes) {
  auto model = blocks_of(3);
  const at::Tensor x = torch::randn({4, 8});
  const auto balance = balance_by_time(model, x, 3);
  EXPECT_EQ(balance.size(), 3);
  EXPECT_EQ(std::accumulate(balance.begin(), balance.end(), std::int64_t{0}), 15);
  Pipeline(model, {.balance = balance, .chunks = 2}).forward(x);
}

TEST(PipelineBalance, MayBeHeldToBytes) {
  const auto model = blocks_of(2);
  EXPECT_THAT(refusal_of<BudgetError>([&] {
                balance_by_time(model, torch::randn({4, 8}), 2, Bytes(10));
              }),
              HasSubstr("10 B"));
  EXPECT_THAT(refusal_of([&] {
                balance_by_time(model, torch::randn({4, 8}), 99);
              }),
              HasSubstr("99"));
}

struct StashImpl : torch::nn::Module, Skippable {
  std::vector<std::string> stashes() const override { return {"a"}; }
  at::Tensor forward(const at::Tensor& x) {
    stash("a", x * 2);
    return x.sin();
  }
};
TORCH_MODULE(Stash);
struct PopImpl : torch::nn::Module, Skippable {
  std::vector<std::string> pops() const override { return {"a"}; }
  at::Tensor forward(const at::Tensor& x) { return x + pop("a"); }
};
TORCH_MODULE(Pop);

// torchgpipe #27: balancing a model with skips raised KeyError.
TEST(PipelineBalance, ModelsWithSkipsAreMeasuredToo) {
  torch::nn::Sequential model{Stash(), torch::nn::Linear(4, 4), Pop()};
  const at::Tensor x = torch::randn({4, 4});
  EXPECT_THAT(balance_by_bytes(model, x, 3), ElementsAre(1, 1, 1));
  EXPECT_THAT(balance_by_time(model, x, 3), ElementsAre(1, 1, 1));
  // The measured model runs as before, also cut between a stash and its pop.
  Pipeline(model, {.balance = balance_by_time(model, x, 2), .chunks = 2})
      .forward(x)
      .sum()
      .backward();
}

}  // namespace
}  // namespace reprise::pipeline
