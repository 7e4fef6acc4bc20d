// Blocks of memory that are used again: in what order, how many, and across threads.
#include "core/recycling_allocator.h"

#include <gtest/gtest.h>

#include <array>
#include <memory>
#include <thread>
#include <vector>

namespace reprise {
namespace {

struct Large {
  std::array<int, 150> values{};
};

using Blocks = KeptBlocks<sizeof(Large)>;

TEST(RecyclingAllocator, GivesTheLastFreedBlockFirst) {
  if (!REPRISE_RECYCLES) GTEST_SKIP() << "sanitizers see every allocation";
  RecyclingAllocator<Large> allocator;
  Large* const first = allocator.allocate(1);
  Large* const second = allocator.allocate(1);
  EXPECT_NE(first, second);
  allocator.deallocate(first, 1);
  allocator.deallocate(second, 1);
  EXPECT_EQ(allocator.allocate(1), second);
  EXPECT_EQ(allocator.allocate(1), first);
  allocator.deallocate(first, 1);
  allocator.deallocate(second, 1);
}

TEST(RecyclingAllocator, KeepsNoMoreBlocksThanItSays) {
  RecyclingAllocator<Large> allocator;
  std::vector<Large*> blocks;
  for (std::size_t i = 0; i < Blocks::kMost + 10; ++i) blocks.push_back(allocator.allocate(1));
  for (Large* block : blocks) allocator.deallocate(block, 1);
  EXPECT_EQ(Blocks::count(), REPRISE_RECYCLES ? Blocks::kMost : 0);
}

TEST(RecyclingAllocator, ArraysAreNotKept) {
  RecyclingAllocator<Large> allocator;
  const std::size_t before = Blocks::count();
  allocator.deallocate(allocator.allocate(3), 3);
  EXPECT_EQ(Blocks::count(), before);
}

TEST(RecyclingAllocator, ObjectsMayBeFreedByAnotherThreadThanMadeThem) {
  std::vector<std::shared_ptr<Large>> objects;
  for (int i = 0; i < 50; ++i) {
    objects.push_back(std::allocate_shared<Large>(RecyclingAllocator<Large>()));
    objects.back()->values[149] = i;
  }
  int sum = 0;
  std::thread([&] {
    for (const auto& object : objects) sum += object->values[149];
    objects.clear();
  }).join();
  EXPECT_EQ(sum, 49 * 50 / 2);
}

// The blocks themselves, which the sanitizers see too: at a thread's end all are freed, and what
// comes later passes through.
TEST(KeptBlocks, AreFreedWithTheirThread) {
  using Odd = KeptBlocks<392>;
  std::size_t kept = 0;
  std::thread([&] {
    void* const first = Odd::take();
    void* const second = Odd::take();
    Odd::give(first);
    Odd::give(second);
    kept = Odd::count();
    Odd::give(Odd::take());
  }).join();
  EXPECT_EQ(kept, 2u);
  EXPECT_EQ(Odd::count(), 0u);
}

struct LateBlock {
  void* block = nullptr;
  ~LateBlock() {
    KeptBlocks<408>::give(block);
    count_after = KeptBlocks<408>::count();
  }
  static inline std::size_t count_after = 1;
};

TEST(KeptBlocks, KeepNothingAfterTheEndOfTheThread) {
  std::thread([] {
    static thread_local LateBlock late;  // made before the list, so destroyed after it
    late.block = KeptBlocks<408>::take();
  }).join();
  EXPECT_EQ(LateBlock::count_after, 0u);
}

struct AtThreadEnd {
  std::shared_ptr<Large> object;
};

struct Node final : Recycled<Node> {
  virtual ~Node() = default;
  std::array<int, 40> values{};
};

TEST(Recycled, GivesTheLastFreedBlockFirst) {
  if (!REPRISE_RECYCLES) GTEST_SKIP() << "sanitizers see every allocation";
  auto first = std::make_unique<Node>();
  const Node* const block = first.get();
  first.reset();
  EXPECT_EQ(std::make_unique<Node>().get(), block);
}

// A thread's variables are destroyed in reverse order of construction: this one after the list.
TEST(RecyclingAllocator, ObjectsMayOutliveTheList) {
  std::weak_ptr<Large> watch;
  std::thread([&] {
    static thread_local AtThreadEnd holder;
    holder.object = std::allocate_shared<Large>(RecyclingAllocator<Large>());
    watch = holder.object;
  }).join();
  EXPECT_TRUE(watch.expired());
}

}  // namespace
}  // namespace reprise
