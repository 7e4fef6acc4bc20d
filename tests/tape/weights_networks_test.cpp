// Networks that people train, under weights of no meaning: losses, weights and buffers are bitwise
// those of plain training, down to the least budget that suffices.
#include <gtest/gtest.h>
#include <reprise/budget_extensions.h>
#include <torch/torch.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "tests/tape/networks/networks.h"
#include "tests/tape/random_weights.h"
#include "tests/tape/testing.h"

namespace reprise {
namespace {

using at::Tensor;
using testing::RandomWeights;
using testing::same_bits;
using testing::Tensors;

// A few steps of training; `room` above what is live now: the budget.
struct WeighedTraining {
  Tensors losses, state;
  Bytes peak;
  std::int64_t given_up = 0;
};

WeighedTraining train_weighed(const testing::NetworkKind& kind, std::optional<Bytes> room,
                              std::shared_ptr<ValueWeights> weights = nullptr) {
  torch::manual_seed(5);
  const Bytes start = live_bytes();
  WeighedTraining run;
  const auto network = kind.make();
  torch::optim::SGD optimizer(network->parameters(), torch::optim::SGDOptions(1e-2));
  std::optional<MemoryBudget> budget;
  if (room) {
    budget.emplace(start + *room, BudgetOptions{.min_bytes = Bytes(256),
                                                .weights = std::move(weights),
                                                .plan_repeated_steps = false});
  }
  for (int i = 0; i < 8; ++i) {
    const PeakScope scope;
    {
      std::optional<MemoryBudget::Step> step;
      if (budget) step.emplace(budget->step());
      const Tensor loss = network->loss(i);
      loss.backward();
      optimizer.step();
      optimizer.zero_grad();
      run.losses.push_back(loss.detach());
      if (step) step->finish();
    }
    run.peak = std::max(run.peak, scope.peak() - start);
    if (!budget) continue;
    run.given_up += budget->report().dropped + budget->report().packed;
    EXPECT_LE(budget->report().peak, budget->limit());
  }
  for (const Tensor& parameter : network->parameters()) run.state.push_back(parameter.detach());
  for (const Tensor& buffer : network->buffers()) run.state.push_back(buffer);
  return run;
}

class TapeWeightsOfNetworks : public ::testing::TestWithParam<testing::NetworkKind> {};

// From the least budget that suffices, in steps of four per cent.
TEST_P(TapeWeightsOfNetworks, TrainAsThePlainStepsDo) {
  const WeighedTraining plain = train_weighed(GetParam(), std::nullopt);
  int fitted = 0;
  for (int percent = 56; percent <= 96 && fitted < 3; percent += 4) {
    const auto weights = std::make_shared<RandomWeights>(percent);
    try {
      const WeighedTraining mine =
          train_weighed(GetParam(), Bytes(plain.peak.count * percent / 100), weights);
      EXPECT_TRUE(same_bits(mine.losses, plain.losses)) << percent;
      EXPECT_TRUE(same_bits(mine.state, plain.state)) << percent;
      EXPECT_GT(mine.given_up, 0) << percent;
      EXPECT_GT(weights->looks, 0) << percent;
      ++fitted;
    } catch (const BudgetError&) {
    }
  }
  EXPECT_GT(fitted, 0);
}

std::string name_of_network(const ::testing::TestParamInfo<testing::NetworkKind>& info) {
  return info.param.name;
}

INSTANTIATE_TEST_SUITE_P(Static, TapeWeightsOfNetworks,
                         ::testing::ValuesIn(testing::static_networks()), name_of_network);
INSTANTIATE_TEST_SUITE_P(Dynamic, TapeWeightsOfNetworks,
                         ::testing::ValuesIn(testing::dynamic_networks()), name_of_network);

}  // namespace
}  // namespace reprise
