// Everything dropped after every operator: each read is a replay, and gradients are bitwise those
// of the plain step.

#include <torch/torch.h>

#include "tests/tape/testing.h"

namespace reprise {
namespace {

using at::Tensor;
using testing::is_right_when_all_is_dropped;
using testing::leaf;
using testing::Tensors;

TEST(Replay, ChainsAndProducts) {
  const Tensor x = leaf({4, 6}), w = leaf({6, 6});
  EXPECT_TRUE(is_right_when_all_is_dropped(
      [&] { return x.mm(w).sin().mm(w).exp().mul(x.mm(w)).tanh(); }, {x, w}));
}

TEST(Replay, Dropout) {
  const Tensor x = leaf({16, 16});
  EXPECT_TRUE(is_right_when_all_is_dropped(
      [&] { return at::dropout(at::dropout(x.sin(), 0.5, true).exp(), 0.3, true).cos(); }, {x}));
}

TEST(Replay, Views) {
  const Tensor x = leaf({4, 6});
  EXPECT_TRUE(is_right_when_all_is_dropped(
      [&] {
        const Tensor h = x.sin();
        const Tensor v = h.t().narrow(0, 1, 3).unsqueeze(0).expand({2, 3, 4});
        return v.exp() * h.select(0, 1).narrow(0, 0, 4).cos();
      },
      {x}));
}

TEST(Replay, ChangesInPlace) {
  const Tensor x = leaf({4, 6});
  EXPECT_TRUE(is_right_when_all_is_dropped(
      [&] {
        Tensor h = x.exp().mul(2);
        const Tensor before = h.detach().sin();
        h.add_(1).mul_(x);
        h.narrow(0, 1, 2).copy_(x.narrow(0, 0, 2).cos());
        return (h * before).relu_().exp();
      },
      {x}));
}

TEST(Replay, BuffersOfTheProgram) {
  const Tensor x = leaf({4, 6});
  EXPECT_TRUE(is_right_when_all_is_dropped(
      [&] {
        Tensor buffer = at::zeros({4, 6});
        auto* const raw = buffer.data_ptr<float>();
        raw[3] = 5;
        Tensor rows = at::empty({4, 6});
        for (int i = 0; i < 4; ++i) rows.select(0, i).copy_(x.select(0, i).sin());
        return (x * buffer).sin() + rows.exp();
      },
      {x}));
}

TEST(Replay, SeveralResults) {
  const Tensor x = leaf({4, 6}), w = leaf({6}), b = leaf({6});
  EXPECT_TRUE(is_right_when_all_is_dropped(
      [&] {
        const Tensor y = at::layer_norm(x.sin(), {6}, w, b);
        const auto [values, indices] = y.exp().topk(3, 1);
        const auto parts = (y * 2).split(2, 1);
        return values.sum() + y.gather(1, indices).sum() + (parts[0] * parts[2]).sum();
      },
      {x, w, b}));
}

TEST(Replay, BatchNormAndItsRunningStatistics) {
  const Tensor x = leaf({8, 6});
  const auto run = [&](bool managed) {
    torch::nn::BatchNorm1d norm(6);
    const auto f = [&] { return norm(x.sin()).exp(); };
    Tensors result;
    if (managed) {
      MemoryBudget budget(GiB(64), testing::paranoid());
      result = testing::gradients_under(budget, f, {x});
    } else {
      result = testing::plain_gradients(f, {x});
    }
    result.push_back(norm->running_mean.clone());
    result.push_back(norm->running_var.clone());
    result.push_back(norm->num_batches_tracked.clone());
    return result;
  };
  EXPECT_TRUE(testing::same_bits(run(true), run(false)));
}

TEST(Replay, NetworksOfLibTorch) {
  const Tensor x = leaf({5, 2, 6});
  torch::nn::LSTM lstm(torch::nn::LSTMOptions(6, 8).num_layers(2));
  EXPECT_TRUE(
      is_right_when_all_is_dropped([&] { return std::get<0>(lstm->forward(x.sin())).exp(); }, {x}));
  const Tensor image = leaf({2, 3, 8, 8});
  torch::nn::Sequential convolutions(torch::nn::Conv2d(3, 4, 3), torch::nn::BatchNorm2d(4),
                                     torch::nn::ReLU(torch::nn::ReLUOptions(true)),
                                     torch::nn::MaxPool2d(2));
  EXPECT_TRUE(is_right_when_all_is_dropped([&] { return convolutions->forward(image * 2).exp(); },
                                           {image}));
}

TEST(Replay, ReadsByTheHostAndDataDependentOperators) {
  const Tensor x = leaf({6, 6});
  EXPECT_TRUE(is_right_when_all_is_dropped(
      [&] {
        const Tensor h = x.exp();
        const double scale = h.sum().item<double>();
        const Tensor chosen = h.index_select(0, (h.sum(1) > 5).nonzero().squeeze(1));
        return h / scale + chosen.sum();
      },
      {x}));
}

TEST(Replay, SecondDerivatives) {
  const Tensor x = leaf({4, 4});
  const auto second = [&] {
    const Tensor y = (x.exp() * x.sin()).tanh();
    const Tensor slope = torch::autograd::grad({y.sum()}, {x}, {}, true, /*create_graph=*/true)[0];
    return (slope * slope).exp();
  };
  EXPECT_TRUE(is_right_when_all_is_dropped(second, {x}));
}

TEST(Replay, ARootThatIsWrittenWhileOthersDependOnIt) {
  const Tensor x = leaf({8, 8});
  const auto run = [&](auto&& scope) {
    const Tensor w = at::ones({8, 8}).mul_(0.5).requires_grad_();
    [[maybe_unused]] const auto step = scope();
    const Tensor h = x.mm(w).sin();
    const Tensor y = h.exp().mul(h);
    y.sum().backward({}, /*retain_graph=*/true);
    {
      at::NoGradGuard no_grad;
      w.data().sub_(w.grad(), 0.1);
    }
    const Tensor kept = h * 3;
    return Tensors{w.detach().clone(), kept.detach().clone(), y.detach().clone()};
  };
  MemoryBudget budget(GiB(64), testing::paranoid());
  const Tensors plain = run([] { return 0; });
  EXPECT_TRUE(testing::same_bits(run([&] { return budget.step(); }), plain));
}

TEST(Replay, RawAccessToDroppedBytesSaysWhatToDo) {
  const Tensor x = leaf({4, 4});
  MemoryBudget budget(GiB(64), testing::paranoid());
  auto step = budget.step();
  const Tensor y = x.exp();
  try {
    (void)y.data_ptr<float>();
    ADD_FAILURE() << "no error";
  } catch (const c10::Error& error) {
    EXPECT_NE(std::string(error.what()).find("hold a reprise::Pin on it"), std::string::npos);
  }
  {
    const Pin pin(y);
    const Tensor z = y.sin();
    EXPECT_EQ(y.data_ptr<float>()[0], std::exp(x.data_ptr<float>()[0]));
  }
  step.finish();
  EXPECT_NO_THROW(y.data_ptr<float>());
}

TEST(Replay, VerifyFindsWhatWasChangedPastTheOperators) {
  const Tensor x = leaf({64, 64});
  BudgetOptions options = testing::paranoid();
  options.verify = true;
  MemoryBudget budget(GiB(64), options);
  const auto f = [&] { return at::dropout(x.mm(x).exp(), 0.1, true).sin(); };
  EXPECT_TRUE(testing::same_bits(testing::gradients_under(budget, f, {x}),
                                 testing::plain_gradients(f, {x})));
  auto step = budget.step();
  const Tensor y = x.exp();
  x.data_ptr<float>()[0] += 1;
  EXPECT_NE(testing::error_of<DeterminismError>([&] { y.sum(); }).find("aten::exp"),
            std::string::npos);
  x.data_ptr<float>()[0] -= 1;
}

TEST(Replay, AFailedOperatorLeavesTheStepAsItWas) {
  const Tensor x = leaf({4, 4});
  MemoryBudget budget(GiB(64), testing::paranoid());
  auto step = budget.step();
  const Tensor y = x.exp();
  EXPECT_THROW(y.mm(at::ones({3, 3})), c10::Error);
  EXPECT_TRUE(y.sin().equal(x.detach().exp().sin()));
  step.finish();
}

TEST(Replay, NothingIsLeftBehind) {
  const Tensor x = leaf({32, 32});
  MemoryBudget budget(GiB(64), testing::paranoid());
  const auto f = [&] { return at::dropout(x.mm(x).exp(), 0.1, true).sin(); };
  testing::gradients_under(budget, f, {x});
  const Bytes before = live_bytes();
  for (int i = 0; i < 20; ++i) testing::gradients_under(budget, f, {x});
  EXPECT_EQ(live_bytes(), before);
}

TEST(Replay, WarnsOfNothingAgain) {
  const testing::WarningLog log;
  const Tensor x = leaf({4});
  std::vector<std::size_t> after;
  EXPECT_TRUE(testing::does_the_same_when_all_is_dropped([&] {
    const std::size_t before = log.texts.size();
    // An index of bytes is deprecated.
    const Tensor chosen = x.detach().index({x.gt(0).to(at::kByte)});
    const Tensors results = {chosen.exp(), chosen.sin()};
    after.push_back(log.texts.size() - before);
    return results;
  }));
  EXPECT_GT(after[0], 0U);
  EXPECT_EQ(after[1], after[0]);
}

// Of a sum of 24 parts of a MiB each one part is there at a time, whichever of sum and part has the
// longer way from a root.
TEST(Replay, ASumOfManyParts) {
  constexpr int kParts = 24;
  for (const bool in_place : {false, true}) {
    const Tensor root = at::rand({1024});
    const auto sum_of_parts = [&] {
      Tensor small = root.sin(), sum = small.repeat({256, 1});
      for (int i = 0; i < kParts; ++i) {
        small = small.cos().sin();
        const Tensor part = small.repeat({256, 1});
        sum = in_place ? sum.add_(part) : sum + part;
      }
      return sum;
    };
    const Tensor expected = sum_of_parts();
    MemoryBudget budget(live_bytes() + MiB(8), {.min_bytes = Bytes(1)});
    auto step = budget.step();
    const Tensor sum = sum_of_parts();
    Tensors room;
    for (int i = 0; i < 8; ++i) room.push_back(at::empty({250, 1024}));
    room.clear();
    EXPECT_TRUE(sum.equal(expected)) << "in place " << in_place;
    step.finish();
    EXPECT_GE(budget.report().replayed, 2 * kParts) << "in place " << in_place;
  }
}

}  // namespace
}  // namespace reprise
