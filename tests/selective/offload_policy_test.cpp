// The CPU_OFFLOAD policies: results parked in forward, fetched for the recomputation, faults in
// between.

#include <gmock/gmock.h>
#include <reprise/error.h>
#include <reprise/store.h>

#include "tests/selective/testing.h"

namespace reprise {
namespace {

using testing::Block;
using testing::contains;
using testing::disk;
using testing::error_of;
using testing::gradients_of;
using testing::leaf;
using testing::OperatorCounts;
using testing::same_bits;
using testing::with_policy;

// A store that counts, and fails when it is told to.
class Faulty final : public Store {
 public:
  bool exact() const override { return true; }
  bool takes(c10::Device) const override { return true; }
  std::string name() const override { return "a faulty store"; }

  int parks = 0;
  int loads = 0;
  int prefetches = 0;
  int fail_at_park = -1;
  int fail_at_load = -1;
  int fail_at_prefetch = -1;

 protected:
  std::unique_ptr<ParkedTensor> park_flat(const at::Tensor& flat) override {
    if (parks++ == fail_at_park) throw StoreError("a faulty store: full");
    return std::make_unique<Parked>(*this, flat);
  }

 private:
  struct Parked final : ParkedTensor {
    Parked(Faulty& of, at::Tensor flat) : store(of), value(std::move(flat)) {}
    at::Tensor load() override {
      if (store.loads++ == store.fail_at_load) throw StoreError("a faulty store: gone");
      return value;
    }
    bool prefetch() override {
      if (store.prefetches++ == store.fail_at_prefetch) throw StoreError("a faulty store: slow");
      return true;
    }
    Bytes bytes() const override { return Bytes{static_cast<std::int64_t>(value.nbytes())}; }
    Faulty& store;
    at::Tensor value;
  };
};

TEST(OffloadPolicy, OffloadedResultsAreNotRecomputedAndGradientsAreThePlainOnes) {
  const Block block;
  const at::Tensor x = leaf({4, 8});
  const auto plain = gradients_of([&] { return block(x); }, block.leaves(x));
  for (const auto& store : {disk(), memory_store()}) {
    const auto options = with_policy(offloading(save_matmuls()), {.store = store});
    OperatorCounts counts;
    EXPECT_TRUE(same_bits(
        gradients_of([&] { return checkpoint(options, block, x); }, block.leaves(x)), plain));
    EXPECT_EQ(counts["mm"], 2 + 4);
    EXPECT_EQ(store->statistics().count, 0);
  }
}

TEST(OffloadPolicy, WhatIsOffloadedIsNotInMemory) {
  const at::Tensor x = leaf({512, 512}), w = leaf({512, 512});
  const auto f = [&](const at::Tensor& t) { return t.mm(w).sin().mm(w).cos(); };
  const auto store = disk();
  const Bytes before = live_bytes();
  const at::Tensor y =
      checkpoint(with_policy(offloading(save_matmuls()), {.store = store}), f, x).sum();
  store->flush();
  EXPECT_LT((live_bytes() - before).count, 8192);
  EXPECT_EQ(store->statistics().count, 2);
  EXPECT_EQ(store->statistics().parked.count, 2 * 512 * 512 * 4);
  y.backward();
  EXPECT_EQ(store->statistics().count, 0);
}

TEST(OffloadPolicy, WithoutAStoreACpuTensorIsRefused) {
  const Block block;
  const at::Tensor x = leaf({4, 8});
  EXPECT_TRUE(contains(
      error_of<UsageError>([&] { checkpoint(with_policy(offloading(save_matmuls())), block, x); }),
      "no store is configured; set SelectiveOptions::store to disk_store("));
}

TEST(OffloadPolicy, FetchesAheadFromTheBeginningOfTheRecomputation) {
  const auto store = std::make_shared<Faulty>();
  const Block block;
  const at::Tensor x = leaf({4, 8});
  const at::Tensor y =
      checkpoint(with_policy(offloading(save_matmuls()), {.store = store}), block, x).sum();
  EXPECT_EQ(store->parks, 2);
  EXPECT_EQ(store->prefetches, 0);
  y.backward();
  EXPECT_EQ(store->prefetches, 2);
  EXPECT_EQ(store->loads, 2);
}

TEST(OffloadPolicy, AFaultAtAnyParkLoadOrPrefetchLeavesNothingBehindAndTheNextStepWorks) {
  const auto store = std::make_shared<Faulty>();
  const Block block;
  const at::Tensor x = leaf({4, 8});
  const auto options = with_policy(offloading(save_matmuls()), {.store = store});
  const auto step = [&] {
    return gradients_of([&] { return checkpoint(options, block, x); }, block.leaves(x));
  };
  const auto plain = gradients_of([&] { return block(x); }, block.leaves(x));
  const Bytes before = live_bytes();
  for (int at = 0; at < 2; ++at) {
    for (int* const fault :
         {&store->fail_at_park, &store->fail_at_load, &store->fail_at_prefetch}) {
      store->parks = store->loads = store->prefetches = 0;
      *fault = at;
      EXPECT_THROW(step(), StoreError);
      testing::take_gradients(block.leaves(x));
      EXPECT_EQ(live_bytes(), before);
      EXPECT_EQ(store->statistics().count, 0);
      *fault = -1;
      EXPECT_TRUE(same_bits(step(), plain));
    }
  }
}

TEST(OffloadPolicy, ALoadThatFailedMayBeTriedAgain) {
  const auto store = std::make_shared<Faulty>();
  const Block block;
  const at::Tensor x = leaf({4, 8});
  const auto options = with_policy(offloading(save_matmuls()), {.store = store});
  const auto plain = gradients_of([&] { return block(x); }, block.leaves(x));
  const at::Tensor y = checkpoint(options, block, x).sum();
  store->fail_at_load = 1;
  EXPECT_THROW(y.backward({}, /*retain_graph=*/true), StoreError);
  store->fail_at_load = -1;
  testing::take_gradients(block.leaves(x));
  y.backward();
  EXPECT_TRUE(same_bits(testing::take_gradients(block.leaves(x)), plain));
}

TEST(OffloadPolicy, SeveralResultsEmptyOnesAndIntegersSurvive) {
  const at::Tensor x = leaf({4, 5});
  const auto f = [](const at::Tensor& t) {
    const auto [values, indices] = t.sin().topk(2, 1);
    const at::Tensor nothing = t.narrow(0, 0, 0).exp();
    return values * t.gather(1, indices) + nothing.sum();
  };
  const auto plain = gradients_of([&] { return f(x); }, {x});
  const auto all = [](const SelectiveCheckpointContext& call) {
    return call.is("topk") || call.is("exp") || call.is("gather")
               ? CheckpointPolicy::kMustCpuOffload
               : CheckpointPolicy::kPreferRecompute;
  };
  EXPECT_TRUE(same_bits(
      gradients_of([&] { return checkpoint(with_policy(all, {.store = disk()}), f, x); }, {x}),
      plain));
}

}  // namespace
}  // namespace reprise
