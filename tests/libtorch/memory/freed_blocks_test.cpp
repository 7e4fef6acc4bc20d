// Blocks that a thread freed last serve its next allocations, under a limit and no longer.
#include "libtorch/memory/freed_blocks.h"

#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/alloc_cpu.h>
#include <gtest/gtest.h>
#include <reprise/memory.h>

#include <memory>
#include <thread>
#include <vector>

#include "core/recycling_allocator.h"
#include "libtorch/memory/memory_limit.h"

namespace reprise::libtorch {
namespace {

class Roomy final : public LimitKeeper {
 public:
  Roomy() : LimitKeeper(std::int64_t{1} << 60) {}
  Room make_room(std::int64_t) override { return Room::kMade; }
};

c10::DataPtr allocate(std::size_t bytes) { return c10::GetAllocator(c10::kCPU)->allocate(bytes); }

class FreedBlocksTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!REPRISE_RECYCLES) GTEST_SKIP() << "sanitizers see every allocation";
  }
  static constexpr std::size_t kBytes = 96 << 10;  // malloc does not map it
  Roomy keeper_;
};

TEST_F(FreedBlocksTest, TheBlockFreedLastServesTheNextAllocationOfItsSize) {
  const LimitScope scope(keeper_);
  const Bytes before = live_bytes();
  c10::DataPtr first = allocate(kBytes), second = allocate(kBytes);
  const void* const last = second.get();
  first.clear();
  second.clear();
  EXPECT_EQ(live_bytes(), before) << "what is kept is not live";
  EXPECT_GE(FreedBlocks::bytes(), 2 * kBytes);
  const c10::DataPtr other = allocate(2 * kBytes), again = allocate(kBytes);
  EXPECT_EQ(again.get(), last);
  EXPECT_GE((live_bytes() - before).count, 3 * static_cast<std::int64_t>(kBytes));
}

TEST_F(FreedBlocksTest, ABlockServesWhateverMallocMightHaveGivenItFor) {
  void* const block = c10::alloc_cpu(kBytes);
  FreedBlocks::give(block, kBytes);
  EXPECT_EQ(FreedBlocks::take(kBytes + 1), nullptr);
  EXPECT_EQ(FreedBlocks::take(kBytes - 48), nullptr);
  EXPECT_EQ(FreedBlocks::take(kBytes - 47), block);
  c10::free_cpu(block);
}

TEST_F(FreedBlocksTest, NothingIsKeptOnceTheLimitHasEnded) {
  {
    const LimitScope scope(keeper_);
    allocate(kBytes).clear();
    EXPECT_GT(FreedBlocks::bytes(), 0U);
  }
  EXPECT_EQ(FreedBlocks::bytes(), 0U);
  allocate(kBytes).clear();
  EXPECT_EQ(FreedBlocks::bytes(), 0U);
}

TEST_F(FreedBlocksTest, AUseNeedsNoLimit) {
  {
    const detail::FreedBlocksUse use, another;
    c10::DataPtr first = allocate(kBytes);
    const void* const last = first.get();
    first.clear();
    EXPECT_EQ(allocate(kBytes).get(), last);
    { const LimitScope scope(keeper_); }
    EXPECT_GT(FreedBlocks::bytes(), 0U);
  }
  EXPECT_EQ(FreedBlocks::bytes(), 0U);
}

TEST_F(FreedBlocksTest, AnotherThreadFreesItsBlocksWhenItNextAllocates) {
  auto scope = std::make_unique<LimitScope>(keeper_);
  std::thread([&] {
    allocate(kBytes).clear();
    std::thread([&] { scope.reset(); }).join();
    EXPECT_GT(FreedBlocks::bytes(), 0U);
    allocate(1);
    EXPECT_EQ(FreedBlocks::bytes(), 0U);
  }).join();
}

TEST_F(FreedBlocksTest, FewBlocksAreKeptAndTheOldestGo) {
  constexpr std::size_t kHalf = FreedBlocks::kMostBytes / 2;
  for (std::size_t i = 0; i < 3 * FreedBlocks::kMost; ++i) {
    FreedBlocks::give(c10::alloc_cpu(kBytes), kBytes);
  }
  EXPECT_EQ(FreedBlocks::bytes(), FreedBlocks::kMost * kBytes);
  FreedBlocks::give(c10::alloc_cpu(kHalf), kHalf);
  EXPECT_EQ(FreedBlocks::bytes(), (FreedBlocks::kMost - 1) * kBytes + kHalf);
  FreedBlocks::give(c10::alloc_cpu(kHalf + 1), kHalf + 1);
  EXPECT_EQ(FreedBlocks::bytes(), kHalf + 1);
  EXPECT_TRUE(FreedBlocks::free_all());
  EXPECT_FALSE(FreedBlocks::free_all());
}

TEST_F(FreedBlocksTest, SmallAndHugeOnesAreLeftToMalloc) {
  const LimitScope scope(keeper_);
  allocate(FreedBlocks::kSmallest / 2).clear();
  allocate(FreedBlocks::kMostBytes + 1).clear();
  EXPECT_EQ(FreedBlocks::bytes(), 0U);
}

}  // namespace
}  // namespace reprise::libtorch
