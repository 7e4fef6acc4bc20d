// LooksTaken at gradients wait for values, and nothing waits for a look: what weights take of a
// budget.
#include <gtest/gtest.h>
#include <reprise/budget_extensions.h>
#include <reprise/experimental/pgac.h>
#include <torch/torch.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tests/tape/testing.h"

namespace reprise {
namespace {

using at::Tensor;
using testing::leaf;
using testing::same_bits;
using testing::Tensors;

// Of whose values the gradients were seen.
struct LooksTaken final : ValueWeights {
  struct OneStep final : Step {
    explicit OneStep(LooksTaken& all) : looks(all) {}
    double weight(const Call&) override { return 1; }
    void gradient(const Call& call, const Tensor&, const Tensor&) override {
      looks.seen.emplace_back(call.name);
    }
    LooksTaken& looks;
  };
  std::unique_ptr<Step> step() override { return std::make_unique<OneStep>(*this); }
  std::int64_t count(const std::string& name) const { return std::ranges::count(seen, name); }
  std::vector<std::string> seen;
};

TEST(TapeWeightsRoom, AResultThatItsOwnNodeReadsLastIsFreeWhenThatHasRun) {
  const auto looks = std::make_shared<LooksTaken>();
  const Tensor x = leaf({128, 128}), w = leaf({128, 128});
  const auto left_after_backward = [&](const std::shared_ptr<ValueWeights>& weights) {
    testing::take_gradients({x, w});
    MemoryBudget budget(GiB(64), {.weights = weights, .plan_repeated_steps = false});
    auto step = budget.step();
    const Bytes before = live_bytes();
    Tensor y = x;
    for (int i = 0; i < 6; ++i) y = y.mm(w).relu();  // the next product reads it, then relu itself
    y.sum().backward();
    y.reset();
    const Bytes left = live_bytes() - before;
    step.finish();
    return left;
  };
  const Bytes plain = left_after_backward(nullptr);
  EXPECT_LT((left_after_backward(looks) - plain).count, 1024);
  EXPECT_GE(looks->count("aten::relu"), 5);
}

TEST(TapeWeightsRoom, WhatIsHeldForALookAloneGoesBeforeAnythingIsDropped) {
  const auto looks = std::make_shared<LooksTaken>();
  const Tensor x = leaf({256, 256});
  const auto run = [&] {
    testing::take_gradients({x});
    Tensor y = x * 2;
    Tensor branch = x;
    for (int i = 0; i < 4; ++i) branch = branch.sin();
    Tensor loss = branch.sum() + y.exp2().mul(y).sum();
    branch.reset();
    y.reset();
    // y is read first, and its gradient looked at last: the branch comes between.
    loss.backward();
  };
  run();
  testing::take_gradients({x});
  const PeakScope scope;
  run();
  const Bytes most = scope.peak_above_start();
  testing::take_gradients({x});
  {
    MemoryBudget budget(GiB(64), {.weights = looks, .plan_repeated_steps = false});
    auto step = budget.step();
    run();
    step.finish();
    EXPECT_EQ(looks->count("aten::mul"), 1);  // of y: backward does not read the product
  }
  looks->seen.clear();
  testing::take_gradients({x});
  MemoryBudget budget(live_bytes() + most + KiB(8),
                      {.weights = looks, .plan_repeated_steps = false});
  auto step = budget.step();
  run();
  step.finish();
  EXPECT_EQ(budget.report().dropped, 0);
  EXPECT_EQ(looks->count("aten::mul"), 0);
  EXPECT_LE(budget.report().peak, budget.limit());
}

TEST(TapeWeightsRoom, WeightsAndAStoreWorkWhereEitherWorksAlone) {
  at::set_num_threads(1);
  at::manual_seed(1);
  torch::nn::Sequential model;
  for (int i = 0; i < 8; ++i) {
    model->push_back(torch::nn::Conv2d(torch::nn::Conv2dOptions(i ? 8 : 3, 8, 3).padding(1)));
    model->push_back(torch::nn::BatchNorm2d(8));
    model->push_back(torch::nn::ReLU());
  }
  const Tensor x = at::randn({8, 3, 32, 32});
  const auto run = [&] {
    model->zero_grad();
    model->forward(x).square().mean().backward();
  };
  for (const double share : {0.6, 0.5, 0.4}) {
    model->zero_grad();
    const Bytes limit = testing::limit_at(share, [&] {
      run();
      model->zero_grad();
    });
    for (const bool parks : {false, true}) {
      for (const bool weighs : {false, true}) {
        std::shared_ptr<Store> store;
        if (parks) {
          store = disk_store({.folder = std::filesystem::temp_directory_path().string(),
                              .workers = 1,
                              .block = KiB(64)});
        }
        MemoryBudget budget(limit, {.store = store,
                                    .weights = weighs ? influence_weights() : nullptr,
                                    .plan_repeated_steps = false});
        for (int i = 0; i < 3; ++i) {
          EXPECT_NO_THROW({
            auto step = budget.step();
            run();
            step.finish();
          }) << share
             << (parks ? " store" : "") << (weighs ? " weights" : "");
        }
        EXPECT_LE(budget.report().peak, limit + budget.report().other_threads);
        model->zero_grad();
      }
    }
  }
}

}  // namespace
}  // namespace reprise
