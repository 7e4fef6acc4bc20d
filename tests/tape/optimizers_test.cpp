// LibTorch's optimizers inside managed steps of which everything is dropped after each operator:
// what they keep from step to step is made by operators of one step and read in the next.
#include <functional>

#include "tests/tape/networks/networks.h"
#include "tests/tape/testing.h"

namespace reprise {
namespace {

using testing::Tensors;

using MakeOptimizer =
    std::function<std::shared_ptr<torch::optim::Optimizer>(const std::vector<at::Tensor>&)>;

struct OptimizerKind {
  std::string name;
  MakeOptimizer make;
};

template <class Optimizer, class Options>
OptimizerKind kind(std::string name, Options options) {
  return {std::move(name), [options](const std::vector<at::Tensor>& parameters) {
            return std::make_shared<Optimizer>(parameters, options);
          }};
}

std::vector<OptimizerKind> optimizers() {
  using namespace torch::optim;  // NOLINT(google-build-using-namespace)
  return {kind<SGD>("Sgd", SGDOptions(0.1).momentum(0.9).nesterov(true).weight_decay(1e-2)),
          kind<Adam>("Adam", AdamOptions(1e-3).amsgrad(true)),
          kind<AdamW>("AdamW", AdamWOptions(1e-3)),
          kind<Adagrad>("Adagrad", AdagradOptions(1e-2)),
          kind<RMSprop>("RmsProp", RMSpropOptions(1e-3).momentum(0.9).centered(true)),
          kind<LBFGS>("Lbfgs", LBFGSOptions(0.5).max_iter(4).line_search_fn("strong_wolfe"))};
}

Tensors trained(const OptimizerKind& kind, MemoryBudget* budget) {
  torch::manual_seed(5);
  const auto network = testing::static_networks().front().make();
  const auto optimizer = kind.make(network->parameters());
  Tensors results;
  for (int i = 0; i < 8; ++i) {
    std::optional<MemoryBudget::Step> step;
    if (budget != nullptr) step.emplace(budget->step());
    results.push_back(optimizer->step([&] {
      optimizer->zero_grad();
      const at::Tensor loss = network->loss(i);
      loss.backward();
      return loss.detach();
    }));
    if (step) step->finish();
  }
  for (const at::Tensor& parameter : network->parameters()) results.push_back(parameter.detach());
  return results;
}

class Optimizers : public ::testing::TestWithParam<OptimizerKind> {};

TEST_P(Optimizers, InStepsOfWhichEverythingIsDroppedTrainAsInPlainOnes) {
  BudgetOptions options = testing::paranoid();
  options.verify = true;
  MemoryBudget budget(GiB(64), options);
  const Tensors mine = trained(GetParam(), &budget);
  EXPECT_GT(budget.report().replayed, 0);
  EXPECT_TRUE(testing::same_bits(mine, trained(GetParam(), nullptr)));
}

INSTANTIATE_TEST_SUITE_P(LibTorch, Optimizers, ::testing::ValuesIn(optimizers()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace reprise
