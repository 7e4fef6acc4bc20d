// Byte budgets on a CUDA device: limits, a device that is full, random state, and reserved bytes.
#include "tests/device/testing.h"

namespace reprise {
namespace {

using namespace testing_support;

class CudaBudget : public OnCudaDevice {};

TEST_F(CudaBudget, AStepFitsInHalfOfItsPeakWithTheSameGradients) {
  Network network(device_);
  const Tensors plain = network.gradients();
  MemoryBudget budget(network.limit_at(0.5), on_cuda());
  for (int i = 0; i < 4; ++i) {
    EXPECT_TRUE(same_bits(network.gradients_under(budget), plain)) << "step " << i;
    EXPECT_GT(budget.report().dropped, 0);
    if (i > 0) {
      EXPECT_LE(budget.report().peak, budget.limit()) << "step " << i;
    }
  }
}

TEST_F(CudaBudget, ThePeakIsTheOneThatTheCachingAllocatorCounts) {
  Network network(device_);
  MemoryBudget budget(network.limit_at(0.6), on_cuda());
  network.gradients_under(budget);
  const PeakScope scope(device_);
  network.gradients_under(budget);
  EXPECT_EQ(budget.report().peak, scope.peak());
  const auto stats = at::accelerator::getDeviceStats(device_.index());
  EXPECT_GE(stats.reserved_bytes[0].peak, budget.report().peak.count);
}

TEST_F(CudaBudget, EveryReadMayBeAReplayAndMakesTheSameBits) {
  Network network(device_, 3, 256);
  const Tensors plain = network.gradients();
  BudgetOptions options = on_cuda();
  options.paranoid = true;
  options.verify = true;
  options.min_bytes = Bytes(1);
  MemoryBudget budget(GiB(8), options);
  EXPECT_TRUE(same_bits(network.gradients_under(budget), plain));
  EXPECT_GT(budget.report().replayed, 20);
}

TEST_F(CudaBudget, DrawsAfterAStepAreThoseAfterThePlainStep) {
  Network network(device_);
  network.gradients();
  const at::Tensor plain = at::rand({1000}, device_);
  MemoryBudget budget(network.limit_at(0.5), on_cuda());
  network.gradients_under(budget);
  EXPECT_GT(budget.report().replayed, 0);
  EXPECT_TRUE(same_bits(at::rand({1000}, device_), plain));
}

TEST_F(CudaBudget, AnOperatorThatFindsTheDeviceFullRunsAgainAfterDrops) {
  Network network(device_);
  const Tensors plain = network.gradients();
  const Bytes needed = network.activations();
  at::accelerator::emptyCache();
  const auto free =
      static_cast<std::int64_t>(at::accelerator::getMemoryInfo(device_.index()).first);
  const std::int64_t left = needed.count * 7 / 10;
  const at::Tensor filling = at::empty({free - left}, at::TensorOptions(device_).dtype(at::kByte));
  EXPECT_THROW(network.gradients(), c10::OutOfMemoryError) << "a plain step does not fit";
  network.forget_gradients();
  at::accelerator::emptyCache();
  MemoryBudget budget = MemoryBudget::fraction_of_device(1, on_cuda());
  for (int i = 0; i < 2; ++i) {
    EXPECT_TRUE(same_bits(network.gradients_under(budget), plain)) << "step " << i;
    EXPECT_GT(budget.report().dropped, 0);
  }
}

TEST_F(CudaBudget, ALimitNearTheSizeOfTheCardDropsAsLateAsTheLimitAllows) {
  Network network(device_);
  const Tensors plain = network.gradients();
  const Bytes needed = network.activations();
  at::accelerator::emptyCache();
  MemoryBudget budget = MemoryBudget::fraction_of_device(0.98, on_cuda());
  const std::int64_t room = budget.limit().count - live_bytes(device_).count;
  {
    EXPECT_TRUE(same_bits(network.gradients_under(budget), plain));
    EXPECT_EQ(budget.report().dropped, 0) << "a card with room";
  }
  at::accelerator::emptyCache();
  const at::Tensor filling =
      at::empty({room - needed.count * 7 / 10}, at::TensorOptions(device_).dtype(at::kByte));
  for (int i = 0; i < 2; ++i) {
    EXPECT_TRUE(same_bits(network.gradients_under(budget), plain)) << "step " << i;
  }
  EXPECT_GT(budget.report().dropped, 0) << "a card that is nearly full";
  EXPECT_LE(budget.report().peak, budget.limit());
}

TEST_F(CudaBudget, AStoreInPinnedHostMemoryGivesTheSameGradients) {
  Network network(device_);
  const Tensors plain = network.gradients();
  BudgetOptions options = on_cuda();
  options.store = host_store();
  MemoryBudget budget(network.limit_at(0.5), options);
  for (int i = 0; i < 3; ++i) {
    EXPECT_TRUE(same_bits(network.gradients_under(budget), plain)) << "step " << i;
  }
  EXPECT_EQ(options.store->statistics().count, 0) << "nothing stays parked after a step";
}

}  // namespace
}  // namespace reprise
