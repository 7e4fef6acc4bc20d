// Every store inside steps of a MemoryBudget, where what it reads may be gone, or go while it
// allocates: the same bytes as outside of a step. Freed memory is overwritten meanwhile.
#include <malloc.h>
#include <reprise/budget.h>
#include <reprise/memory.h>
#include <reprise/offload.h>

#include <string>
#include <utility>

#include "libtorch/memory/managed_memory.h"
#include "tests/store/testing.h"

namespace reprise {
namespace {

using namespace reprise::testing;

class StoreInAStep : public ::testing::TestWithParam<StoreCase> {
 protected:
  void SetUp() override { mallopt(M_PERTURB, 165); }
  void TearDown() override { mallopt(M_PERTURB, 0); }

  // Noise of a store comes in the order of parking: each run has a store of its own.
  std::shared_ptr<Store> make() { return GetParam().make(faults_); }

  Faults faults_;
};
INSTANTIATE_TEST_SUITE_P(Stores, StoreInAStep, ::testing::ValuesIn(store_cases()),
                         [](const auto& info) { return info.param.name; });

at::Tensor drawn(at::IntArrayRef sizes, std::uint64_t seed) {
  return at::randn(sizes, at::make_generator<at::CPUGeneratorImpl>(seed));
}

// Saves values of which half are zero, or two kinds, right after the results that they are made
// from; some lie with gaps, or are a small part of their storage.
struct SkipNetwork {
  at::Tensor x = drawn({64, 64}, 1).requires_grad_(), w = drawn({64, 64}, 2).requires_grad_();

  Tensors run(const std::shared_ptr<Store>& store) const {
    at::manual_seed(11);
    take_gradients({x, w});
    Tensors skips;
    at::Tensor h = x;
    for (int i = 0; i < 5; ++i) {
      h = (h.mm(w) * 0.05).tanh();
      skips.push_back(at::relu(h.repeat({6, 1})));  // cheap and large
    }
    for (int i = 4; i >= 0; --i) {
      const OffloadScope scope(store, Bytes(1024));
      const at::Tensor skip = skips[static_cast<std::size_t>(i)].square();
      h = skip.view({6, 64, 64}).mean(0) + at::dropout((h.mm(w) * 0.05).tanh(), 0.3, true);
      h = h + skip.narrow(1, 8, 40).sin().sum() * 1e-3 + skip.narrow(0, 3, 10).exp().sum() * 1e-3;
      h = h * h.t();
    }
    h.sum().backward();
    Tensors results = take_gradients({x, w});
    results.push_back(h.detach().clone());
    return results;
  }
};

TEST_P(StoreInAStep, OffloadedValuesAreThoseOfOutsideWhereEverythingIsDropped) {
  const SkipNetwork network;
  const Tensors expected = network.run(make());
  for (const bool verify : {false, true}) {
    MemoryBudget budget(GiB(64), {.min_bytes = Bytes(1), .verify = verify, .paranoid = true});
    auto step = budget.step();
    const Tensors mine = network.run(make());
    step.finish();
    EXPECT_TRUE(same_bits(mine, expected));
    EXPECT_GT(budget.report().replayed, 0);
  }
}

TEST_P(StoreInAStep, OffloadedValuesAreThoseOfOutsideUnderTightBudgets) {
  const SkipNetwork network;
  const Tensors expected = network.run(make());
  const PeakScope scope;
  network.run(make());
  const auto most = static_cast<double>(scope.peak_above_start().count);
  for (const Heuristic heuristic : {Heuristic::kHUp, Heuristic::kHDtr, Heuristic::kLru,
                                    Heuristic::kLargest, Heuristic::kRandom}) {
    // What the store gives back are roots, which replays keep: not all of these suffice.
    int done = 0, dropping = 0;
    std::string refused;
    for (const double share : {0.95, 0.9, 0.85, 0.75, 0.65, 0.5}) {
      const Bytes limit = live_bytes() + Bytes(static_cast<std::int64_t>(share * most));
      MemoryBudget budget(
          limit, {.heuristic = heuristic, .min_bytes = KiB(1), .plan_repeated_steps = false});
      try {
        auto step = budget.step();
        const Tensors mine = network.run(make());
        step.finish();
        EXPECT_TRUE(same_bits(mine, expected)) << to_string(heuristic) << " " << share;
        ++done;
        dropping += budget.report().dropped > 0;
        EXPECT_LE(budget.report().peak, limit + budget.report().other_threads);
      } catch (const BudgetError& error) {
        refused += std::to_string(share) + ": " + error.what() + "\n";  // too tight
      }
    }
    EXPECT_GE(done, 1) << to_string(heuristic) << ", refused: " << refused;
    EXPECT_GE(dropping, 1) << to_string(heuristic) << ", refused: " << refused;
  }
}

// Parked by hand: views with and without gaps, of values that are gone.
TEST_P(StoreInAStep, ParksAndLoadsWhatWasDropped) {
  const at::Tensor base = at::relu(drawn({40, 600}, 3));
  const auto run = [&] {
    const auto store = make();
    const at::Tensor y = base.mul(2), mask = base.gt(0).to(at::kFloat);
    Tensors parked_and_back;
    for (const at::Tensor& view : {y, mask, y.t(), y.narrow(1, 7, 300), y.select(1, 3),
                                   y.slice(0, 1, 40, 3), y.unsqueeze(0).expand({2, 40, 600})}) {
      const auto parked = store->park(view);
      store->flush();
      parked->prefetch();
      parked_and_back.push_back(parked->load().clone());
      parked_and_back.push_back(parked->load().sum());
    }
    return parked_and_back;
  };
  const Tensors expected = run();
  MemoryBudget budget(GiB(64), {.min_bytes = Bytes(1), .paranoid = true});
  auto step = budget.step();
  const Tensors mine = run();
  step.finish();
  EXPECT_TRUE(same_bits(mine, expected));
  EXPECT_GT(budget.report().replayed, 0);
}

TEST_P(StoreInAStep, WhatIsParkedIsThereWhenTheStepHasEnded) {
  const at::Tensor base = at::relu(drawn({40, 600}, 3));
  const auto store = make(), other = make();
  const at::Tensor expected = other->park(base.mul(2))->load().clone();
  std::unique_ptr<ParkedTensor> parked;
  MemoryBudget budget(GiB(64), {.min_bytes = Bytes(1), .paranoid = true});
  {
    auto step = budget.step();
    parked = store->park(base.mul(2));
    step.finish();
  }
  EXPECT_TRUE(same_bits(parked->load(), expected));
}

TEST(DiskStoreInAStep, AHintTakesNoRoomThatTheBudgetLacks) {
  const auto store = disk_store(small_disk());
  const at::Tensor value = drawn({100'000}, 5);
  const auto parked = store->park(value);
  store->flush();
  const Bytes limit = live_bytes() + MB(1);
  MemoryBudget budget(limit, {.plan_repeated_steps = false});
  auto step = budget.step();
  at::Tensor filler = at::ones({200'000});
  EXPECT_TRUE(parked->prefetch());
  store->flush();
  EXPECT_EQ(store->statistics().read, Bytes(0));
  EXPECT_LE(live_bytes(), limit);
  // Who loads it is the step, and is refused.
  EXPECT_THROW(parked->load(), BudgetError);
  filler.reset();
  EXPECT_TRUE(parked->prefetch());
  EXPECT_TRUE(same_bits(parked->load(), value));
  step.finish();
  EXPECT_LE(budget.report().peak, limit);
}

}  // namespace
}  // namespace reprise
