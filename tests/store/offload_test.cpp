// What an offload scope parks and what it leaves, in which order things come back, and when they
// go.
#include <reprise/offload.h>
#include <reprise/saved_tensor_hooks.h>

#include "tests/store/recording_store.h"
#include "tests/store/testing.h"

namespace reprise {
namespace {

using namespace reprise::testing;
using Log = std::vector<std::string>;

class OffloadTest : public ::testing::Test {
 protected:
  const std::shared_ptr<RecordingStore> store_ = std::make_shared<RecordingStore>();
  const OffloadOptions everything_ = {.min_bytes = Bytes(0)};
};

TEST_F(OffloadTest, AStorageIsParkedOnceWhoeverSavesItAndHowever) {
  const at::Tensor x = leaf({8, 8});
  at::Tensor loss;
  {
    const OffloadScope scope(store_, everything_);
    const at::Tensor y = x * 2;  // a fresh storage
    store_->take_log();
    loss = (y * y).sum();
    loss = loss + y.t().sin().sum();
    // However small: it is there already.
    loss = loss + y.select(0, 1).exp2().sum().expand({3}).sum() + y.narrow(1, 2, 3).cos().sum();
    EXPECT_EQ(store_->count("park"), 2) << "y, and the result of exp2";
    EXPECT_EQ(store_->statistics().parked, Bytes((8 * 8 + 8) * 4));
  }
  loss.backward();
  EXPECT_EQ(store_->count("load"), 2);
}

TEST_F(OffloadTest, ParametersAndTheirViewsStay) {
  torch::nn::Linear linear(16, 16);
  const at::Tensor x = torch::randn({4, 16});
  const OffloadScope scope(store_, everything_);
  const at::Tensor y = linear->forward(x) * linear->bias * linear->weight.select(0, 0);
  // Saved: x, the weight transposed, and the two results that products need.
  EXPECT_EQ(store_->count("park"), 3);
  EXPECT_EQ(store_->statistics().parked, Bytes(3 * 4 * 16 * 4));
}

TEST_F(OffloadTest, SmallTensorsStay) {
  const at::Tensor x = leaf({10, 10});
  const OffloadScope scope(store_, Bytes(401));
  const at::Tensor y = (x * 2).sin();
  EXPECT_EQ(store_->count("park"), 0);
  const at::Tensor large = torch::ones({101}) * x.sum();
  const at::Tensor z = large.sin();
  EXPECT_EQ(store_->count("park"), 2) << "what is as large as the minimum is parked";
}

TEST_F(OffloadTest, ASmallPartOfLargeMemoryDoesNotKeepTheRest) {
  const at::Tensor x = leaf({1000, 10});
  at::Tensor loss;
  std::unique_ptr<StorageWatch> large;
  {
    const OffloadScope scope(store_, KiB(1));
    const at::Tensor y = x * 2;
    large = std::make_unique<StorageWatch>(y);
    store_->take_log();
    loss = y.select(0, 3).sin().sum() + y.select(1, 2).narrow(0, 0, 50).sin().sum();
  }
  EXPECT_EQ(store_->count("park"), 0);
  EXPECT_FALSE(large->alive());
  at::Tensor expected = torch::zeros({1000, 10});
  expected.select(0, 3).add_((x.detach().select(0, 3) * 2).cos());
  expected.select(1, 2).narrow(0, 0, 50).add_((x.detach().select(1, 2).narrow(0, 0, 50) * 2).cos());
  loss.backward();
  EXPECT_TRUE(torch::allclose(x.grad(), expected * 2));
}

TEST_F(OffloadTest, APartOfAMuchLargerStorageIsParkedAlone) {
  const at::Tensor data = torch::randn({100, 1000});
  const at::Tensor weight = leaf({1000});
  const OffloadScope scope(store_, KiB(1));
  const at::Tensor y = (data.narrow(0, 10, 5) * weight).sum();
  EXPECT_EQ(store_->statistics().parked, Bytes(5 * 1000 * 4));
}

TEST_F(OffloadTest, WhatSomebodyStillHoldsIsReadWhereItIs) {
  const at::Tensor x = leaf({8, 8});
  at::Tensor held, loss;
  {
    const OffloadScope scope(store_, everything_);
    held = x * 2;
    loss = held.sin().sum() + (x * 3).cos().sum();
  }
  store_->take_log();
  loss.backward();
  EXPECT_EQ(store_->count("load"), 1) << "x * 3 alone had gone";
}

TEST_F(OffloadTest, ComesBackInReverseOrderFetchedAheadAndIsDroppedWhenItWasRead) {
  const at::Tensor x = leaf({8, 8});
  store_->room = 2;
  at::Tensor loss;
  {
    const OffloadScope scope(store_, everything_);
    loss = x.exp().exp().exp().exp().sum();
  }
  EXPECT_EQ(store_->take_log(), (Log{"park 0", "park 1", "park 2", "park 3"}));
  loss.backward();
  EXPECT_EQ(store_->take_log(),
            (Log{"load 3", "prefetch 2", "prefetch 1", "drop 3", "load 2", "prefetch 0", "drop 2",
                 "load 1", "drop 1", "load 0", "drop 0"}));
  EXPECT_EQ(store_->statistics().count, 0);
}

TEST_F(OffloadTest, MemoryWithSeveralReadersIsFetchedOnceAndGoesWithTheLastOfThem) {
  const at::Tensor x = leaf({8, 8});
  at::Tensor loss;
  const auto forward = [&](const OffloadOptions& options) {
    const OffloadScope scope(store_, options);
    const at::Tensor y = x * 2;
    loss = (y.sin() * y.cos()).sum() + y.t().exp().sum();
  };
  forward(everything_);
  store_->take_log();
  loss.backward();
  EXPECT_EQ(store_->count("load"), 4) << "y, its sine, its cosine and its exponential";
  EXPECT_EQ(store_->statistics().count, 0);

  // With no room to hold it for the others it is fetched for each.
  forward({.min_bytes = Bytes(0), .hold = Bytes(0)});
  store_->take_log();
  loss.backward();
  EXPECT_EQ(store_->count("load"), 5);
  EXPECT_EQ(store_->statistics().count, 0);
}

TEST_F(OffloadTest, RetainedGraphsReadAgainAndHoldNothingInBetween) {
  const at::Tensor x = leaf({1000});
  at::Tensor loss;
  {
    const OffloadScope scope(store_, everything_);
    const at::Tensor y = x * 2;
    loss = (y.sin() * y.exp()).sum();
  }
  loss.backward({}, /*retain_graph=*/true);
  const at::Tensor first = x.grad().clone();
  x.mutable_grad().reset();
  const int loads = store_->count("load");
  const Bytes between = live_bytes();
  loss.backward({}, /*retain_graph=*/true);
  EXPECT_EQ(store_->count("load"), 2 * loads);
  EXPECT_TRUE(same_bits(x.grad(), first));
  x.mutable_grad().reset();
  EXPECT_EQ(live_bytes(), between);
}

TEST_F(OffloadTest, ChangingASavedTensorInPlaceIsAutogradsError) {
  const at::Tensor x = leaf({8});
  const auto text_of = [&](bool offload, bool keep) {
    at::Tensor loss, held;
    {
      std::optional<OffloadScope> scope;
      if (offload) scope.emplace(store_, everything_);
      at::Tensor y = x * 2;
      loss = y.sin().sum();
      y.add_(1);
      if (keep) held = y;
    }
    return error_of<c10::Error>([&] { loss.backward(); });
  };
  for (const std::string& text :
       {text_of(false, false), text_of(true, false), text_of(true, true)}) {
    EXPECT_TRUE(contains(text, "modified by an inplace operation: [CPUFloatType [8]], which is"));
    EXPECT_TRUE(contains(text, "is at version 1; expected version 0 instead"));
  }
  EXPECT_EQ(store_->statistics().count, 0);
}

TEST_F(OffloadTest, AStorageThatWasChangedBetweenTwoSavesIsParkedForEach) {
  const at::Tensor x = leaf({8});
  at::Tensor loss = torch::zeros({});
  {
    const OffloadScope scope(store_, everything_);
    const at::Tensor y = torch::zeros({8});
    for (int i = 0; i < 3; ++i) {
      // Each alias counts changes for itself, and so each is at version 1.
      at::Tensor alias = y.data();
      alias.add_(i);
      loss = loss + (alias * x).sum();
    }
    EXPECT_EQ(store_->count("park"), 3);
  }
  loss.backward();
  EXPECT_TRUE(same_bits(x.grad(), torch::full({8}, 0.0 + 1.0 + 3.0)));
}

TEST_F(OffloadTest, AScopeInsideWinsAndOneThatKeepsNothingBackTakesItsPart) {
  const at::Tensor x = leaf({8});
  const OffloadScope outer(store_, everything_);
  {
    const auto inner_store = std::make_shared<RecordingStore>();
    const OffloadScope inner(inner_store, everything_);
    const at::Tensor y = x.exp();
    EXPECT_EQ(inner_store->count("park"), 1);
  }
  {
    const NoSavedTensorHooksScope none;
    const at::Tensor y = x.exp();
  }
  EXPECT_EQ(store_->count("park"), 0);
  const at::Tensor y = x.exp();
  EXPECT_EQ(store_->count("park"), 1);
}

TEST_F(OffloadTest, KeepsWhatTheStoreCannotTake) {
  const at::Tensor weight = leaf({3, 3});
  const at::Tensor sparse = torch::eye(3).to_sparse();
  at::Tensor loss;
  {
    const OffloadScope scope(store_, everything_);
    loss = at::mm(sparse, weight).sum();
  }
  EXPECT_EQ(store_->count("park"), 0);
  loss.backward();
  EXPECT_TRUE(same_bits(weight.grad(), torch::ones({3, 3})));
}

TEST_F(OffloadTest, ARegionInsideParksItsArguments) {
  const at::Tensor x = leaf({8});
  const auto block = [](const at::Tensor& t) { return t.sin().exp().tanh(); };
  const auto forward = [&](bool offload, bool regions) {
    std::optional<OffloadScope> scope;
    if (offload) scope.emplace(store_, everything_);
    at::Tensor y = x * 2;
    for (int i = 0; i < 3; ++i) y = regions ? checkpoint(block, y) : block(y);
    return y;
  };
  const Tensors plain = gradients_of([&] { return forward(false, false); }, {x});
  EXPECT_TRUE(same_bits(gradients_of([&] { return forward(true, true); }, {x}), plain));
  EXPECT_EQ(store_->count("park"), 3);
  EXPECT_EQ(store_->count("load"), 3);
  EXPECT_EQ(store_->statistics().count, 0);
}

TEST_F(OffloadTest, AScopeInsideARegionKeepsTheRegionFromRunningAgain) {
  const at::Tensor x = leaf({8});
  int runs = 0;
  const auto block = counted(runs, [&](const at::Tensor& t) {
    const OffloadScope scope(store_, everything_);
    return t.sin().exp().tanh();
  });
  const Tensors plain = gradients_of([&] { return x.sin().exp().tanh(); }, {x});
  EXPECT_TRUE(same_bits(gradients_of([&] { return checkpoint(block, x); }, {x}), plain));
  EXPECT_EQ(runs, 1);
  EXPECT_EQ(store_->statistics().count, 0);
}

TEST_F(OffloadTest, NullAndNegativeAreRefused) {
  EXPECT_TRUE(contains(error_of<UsageError>([] { const OffloadScope scope(nullptr); }),
                       "the store is null; pass memory_store()"));
  EXPECT_TRUE(contains(error_of<UsageError>([&] { const OffloadScope scope(store_, Bytes(-1)); }),
                       "min_bytes is -1 B; it must be zero or more"));
  EXPECT_TRUE(
      contains(error_of<UsageError>([&] { const OffloadScope scope(store_, {.hold = Bytes(-1)}); }),
               "hold is"));
}

}  // namespace
}  // namespace reprise
