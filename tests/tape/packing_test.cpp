// Values whose elements are of two kinds, as dropout masks are: they go as bits, and come back
// bitwise without being drawn again.
#include <reprise/budget_extensions.h>
#include <reprise/store.h>
#include <torch/torch.h>

#include <filesystem>
#include <map>
#include <memory>
#include <string>

#include "tape/replay_costs.h"
#include "tape/value.h"
#include "tests/tape/testing.h"

namespace reprise {
namespace {

using at::Tensor;
using testing::gradients_under;
using testing::leaf;
using testing::limit_at;
using testing::plain_gradients;
using testing::same_bits;
using testing::Tensors;

// Counts what is run again, by name.
struct ReplayCounts final : BudgetObserver {
  void replayed(const Replay& done) noexcept override { ++counts[std::string(done.name)]; }
  std::map<std::string, int> counts;
};

// Six layers whose masks are a third of what is kept.
Tensor dropping(Tensor x) {
  for (int i = 0; i < 6; ++i) x = torch::dropout(x.sin(), 0.3, /*train=*/true).tanh();
  return x;
}

struct UnderPressure {
  explicit UnderPressure(double share, BudgetOptions options = {}) {
    options.observer = counts;
    budget = std::make_unique<MemoryBudget>(
        limit_at(share, [&] { plain_gradients([&] { return dropping(x); }, {x}); }), options);
  }
  Tensors step() {
    counts->counts.clear();
    return gradients_under(*budget, [&] { return dropping(x); }, {x});
  }
  Tensors plain() {
    return plain_gradients([&] { return dropping(x); }, {x});
  }

  const Tensor x = leaf({256, 256});
  const std::shared_ptr<ReplayCounts> counts = std::make_shared<ReplayCounts>();
  std::unique_ptr<MemoryBudget> budget;
};

// To draw a mask again takes a second, and to pack it much less.
class Packing : public ::testing::Test {
  const tape::ReplayCosts::GivenScope costs_{{.seconds_a_replay = 1, .packed_bytes_a_second = 1e9}};
};

TEST_F(Packing, DropoutMasksGoAsBitsAndAreNotDrawnAgain) {
  UnderPressure under(0.6);
  const Tensors plain = under.plain();
  for (int i = 0; i < 3; ++i) {
    EXPECT_TRUE(same_bits(under.step(), plain));
    const StepReport report = under.budget->report();
    EXPECT_GT(report.packed, 0);
    EXPECT_GT(report.unpacked, 0);
    EXPECT_GT(report.pack_time.count(), 0);
    EXPECT_EQ(report.packed_bytes, Bytes(256 * 256 * 4 * report.packed));
    EXPECT_LE(report.peak, under.budget->limit());
    EXPECT_EQ(under.counts->counts["aten::bernoulli_.float"], 0);
  }
}

TEST(DearPacking, IsLeftOutAndMasksAreDrawnAgain) {
  const tape::ReplayCosts::GivenScope costs({.seconds_a_replay = 1e-9, .packed_bytes_a_second = 1});
  UnderPressure under(0.6);
  const Tensors plain = under.plain();
  for (int i = 0; i < 3; ++i) {
    EXPECT_TRUE(same_bits(under.step(), plain));
    EXPECT_EQ(under.budget->report().packed, 0);
    EXPECT_GT(under.counts->counts["aten::bernoulli_.float"], 0);
  }
}

TEST_F(Packing, IsCheckedByVerify) {
  UnderPressure under(0.6, {.verify = true});
  EXPECT_TRUE(same_bits(under.step(), under.plain()));
  EXPECT_GT(under.budget->report().unpacked, 0);
}

TEST_F(Packing, IsLeftOutOfParanoidStepsWhereAllIsComputedAgain) {
  UnderPressure under(0.6, {.paranoid = true});
  EXPECT_TRUE(same_bits(under.step(), under.plain()));
  EXPECT_EQ(under.budget->report().packed, 0);
  EXPECT_GT(under.counts->counts["aten::bernoulli_.float"], 0);
}

TEST_F(Packing, MasksOfOtherElements) {
  for (const auto dtype : {at::kFloat, at::kDouble, at::kBFloat16}) {
    const Tensor x = torch::randn({256, 512}, dtype).requires_grad_();
    const auto forward = [&] {
      Tensor y = x;
      for (int i = 0; i < 5; ++i) y = torch::dropout(y.sin(), 0.2, true);
      return y;
    };
    const Tensors plain = plain_gradients(forward, {x});
    const auto counts = std::make_shared<ReplayCounts>();
    MemoryBudget budget(limit_at(0.6, [&] { plain_gradients(forward, {x}); }),
                        {.observer = counts});
    for (int i = 0; i < 2; ++i) {
      EXPECT_TRUE(same_bits(gradients_under(budget, forward, {x}), plain)) << dtype;
    }
    EXPECT_GT(budget.report().unpacked, 0) << dtype;
    EXPECT_EQ(counts->counts["aten::bernoulli_.float"], 0) << dtype;
  }
}

// What seemed to be of two kinds when calls like it were first looked at, and is no more.
TEST_F(Packing, WhatIsOfTwoKindsNoMoreIsComputedAgain) {
  Tensor x = torch::ones({256, 256}).requires_grad_();
  const auto forward = [&] {
    Tensor y = x;
    for (int i = 0; i < 8; ++i) y = (y * 1.0).exp().log();
    return y;
  };
  MemoryBudget budget(limit_at(0.4, [&] { plain_gradients(forward, {x}); }));
  gradients_under(budget, forward, {x});
  EXPECT_GT(budget.report().packed, 0);
  x.detach().uniform_();
  const Tensors plain = plain_gradients(forward, {x});
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(same_bits(gradients_under(budget, forward, {x}), plain));
  EXPECT_EQ(budget.report().packed, 0);
  EXPECT_GT(budget.report().replayed, 0);
}

// An element of a third kind that no sample shows.
TEST_F(Packing, StrayElementsAreNotLost) {
  const Tensor x = leaf({256, 256});
  const auto forward = [&] {
    Tensor y = x;
    for (int i = 0; i < 6; ++i) {
      const Tensor mask = torch::empty({256, 256}).bernoulli_(0.5);
      mask.narrow(0, 200, 1).narrow(1, 100, 1).fill_(0.25);
      y = (y * mask).tanh();
    }
    return y;
  };
  const Tensors plain = plain_gradients(forward, {x});
  const auto counts = std::make_shared<ReplayCounts>();
  MemoryBudget budget(limit_at(0.3, [&] { plain_gradients(forward, {x}); }), {.observer = counts});
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(same_bits(gradients_under(budget, forward, {x}), plain));
  EXPECT_EQ(budget.report().unpacked, 0);
  EXPECT_GT(counts->counts["aten::bernoulli_.float"], 0);
}

// The bits themselves go where nothing else is left, and masks are drawn again.
TEST_F(Packing, BitsAreTheLastToGo) {
  const Tensor x = leaf({256, 256});
  const auto forward = [&] {
    Tensor y = dropping(x);
    const Tensor large = torch::empty({16, 256, 256});
    return y;
  };
  const Tensors plain = plain_gradients(forward, {x});
  const auto counts = std::make_shared<ReplayCounts>();
  // Beside `large` there is room for a page, and for no bits.
  MemoryBudget budget(live_bytes() + Bytes(16 * 256 * 256 * 4 + 8192), {.observer = counts});
  EXPECT_TRUE(same_bits(gradients_under(budget, forward, {x}), plain));
  EXPECT_GT(budget.report().packed, 0);
  EXPECT_GT(counts->counts["aten::bernoulli_.float"], 0);
  EXPECT_LE(budget.report().peak, budget.limit());
}

TEST_F(Packing, LeavesNothingBehind) {
  UnderPressure under(0.6);
  under.step();
  const Bytes live = live_bytes();
  const std::int64_t records = tape::living_records();
  for (int i = 0; i < 20; ++i) under.step();
  EXPECT_EQ(live_bytes(), live);
  EXPECT_EQ(tape::living_records(), records);
}

TEST_F(Packing, MasksThatTheProgramHoldsComeBackAtTheEnd) {
  const auto draw = [] {
    at::manual_seed(3);
    return torch::empty({256, 256}).bernoulli_(0.5);
  };
  const Tensor x = torch::rand({256, 256}), plain = draw();
  MemoryBudget budget(live_bytes() + Bytes(256 * 256 * 4 * 7 / 2));
  Tensor mask;
  {
    auto step = budget.step();
    mask = draw();
    Tensor y = x.clone();
    for (int i = 0; i < 8; ++i) y = (y * 1.5).sin();
    EXPECT_GT(budget.report().packed, 0);
    EXPECT_EQ(budget.report().unpacked, 0);
    step.finish();
  }
  EXPECT_EQ(budget.report().unpacked, 1);
  EXPECT_TRUE(same_bits({mask}, {plain}));
}

// Beside its own bits there is no room for it, and without them there is.
TEST_F(Packing, WhereValueAndBitsDoNotFitItIsDrawnAgain) {
  const std::int64_t size = 1 << 20;
  const auto draw = [&] {
    at::manual_seed(3);
    return torch::empty({size / 4}).bernoulli_(0.5);
  };
  const Tensor plain = draw();
  MemoryBudget budget(live_bytes() + Bytes(2 * size + size / 64));
  auto step = budget.step();
  const Tensor mask = draw();
  {
    const Tensor large = torch::empty({2 * size / 4 - 4096});
    EXPECT_EQ(budget.report().packed, 1);
  }
  const Tensor rest = torch::empty({size / 4});
  const Tensor ones = torch::ones({1});
  EXPECT_TRUE(same_bits({mask.neg_().neg_()}, {plain}));
  EXPECT_GT(budget.report().replayed, 0);
  step.finish();
}

// Nothing fits any more, so no bits do; and the store is given what there is, or nothing.
TEST_F(Packing, BeyondTheBudgetThereAreNoBitsAndStoresAreGivenNoEmptyMemory) {
  testing::WarningLog warnings;
  const Tensor x = leaf({256, 256});
  const auto forward = [&] { return dropping(x); };
  const Tensors plain = plain_gradients(forward, {x});
  const auto folder = std::filesystem::temp_directory_path().string();
  MemoryBudget budget(live_bytes() + KiB(64),
                      {.on_exceeded = OnExceeded::kWarn, .store = disk_store({.folder = folder})});
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(same_bits(gradients_under(budget, forward, {x}), plain));
  EXPECT_EQ(budget.report().packed, 0);
  EXPECT_GT(budget.report().dropped + budget.report().parked, 0);
}

// The bits of one step's values do not go before other values of another step do.
TEST_F(Packing, BitsGoAfterTheValuesOfAllSteps) {
  const std::int64_t size = 1 << 20;
  MemoryBudget first(live_bytes() + Bytes(4 * size)), second(live_bytes() + Bytes(4 * size));
  auto outer = first.step();
  at::manual_seed(3);
  const Tensor mask = torch::empty({size / 4}).bernoulli_(0.5);
  { const Tensor large = torch::empty({4 * size / 4 - size / 4 / 4}); }
  EXPECT_EQ(first.report().packed, 1);
  auto inner = second.step();
  const Tensor x = torch::rand({size / 4});
  const Tensor y = x.sin();
  { const Tensor large = torch::empty({2 * size / 4 + size / 8}); }
  EXPECT_EQ(first.report().dropped + second.report().dropped, 1);
  const std::int64_t replayed = first.report().replayed;
  EXPECT_EQ(mask.sum().item<float>(), mask.sum().item<float>());
  EXPECT_EQ(first.report().replayed, replayed);
  EXPECT_GT(first.report().unpacked, 0);
  inner.finish();
  outer.finish();
}

}  // namespace
}  // namespace reprise
