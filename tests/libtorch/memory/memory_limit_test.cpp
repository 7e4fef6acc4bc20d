// A limit holds while threads allocate at the same time, most of the time without a lock.

#include "libtorch/memory/memory_limit.h"

#include <c10/core/CPUAllocator.h>
#include <gtest/gtest.h>
#include <reprise/memory.h>

#include <atomic>
#include <random>
#include <stdexcept>
#include <thread>
#include <vector>

namespace reprise::libtorch {
namespace {

class Refusing final : public LimitKeeper {
 public:
  explicit Refusing(Bytes limit) : LimitKeeper(limit.count) {}
  Room make_room(std::int64_t wanted) override {
    if (live_bytes().count + wanted <= bound()) return Room::kMade;
    ++refused;
    throw std::runtime_error("full");
  }
  std::int64_t refused = 0;
};

TEST(MemoryLimit, HoldsWhileThreadsAllocate) {
  // Less than one thread alone is about to hold: the others may be late.
  Refusing keeper(live_bytes() + KiB(64));
  const PeakScope peak;
  std::atomic<int> made{0};
  {
    const LimitScope scope(keeper);
    std::vector<std::thread> threads;
    for (unsigned t = 0; t < 4; ++t) {
      threads.emplace_back([&, t] {
        std::mt19937 random(t);
        std::vector<c10::DataPtr> held(16);
        for (int i = 0; i < 20'000; ++i) {
          c10::DataPtr& place = held[random() % held.size()];
          place.clear();
          try {
            place = c10::GetAllocator(c10::kCPU)->allocate(1 + random() % 16'384);
            ++made;
          } catch (const std::runtime_error&) {
          }
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
  EXPECT_LE(peak.peak().count, keeper.bound());
  EXPECT_GT(keeper.refused, 0);
  EXPECT_GT(made, 0);
}

TEST(MemoryLimit, HoldsUntilTheLastOfItsScopesEnds) {
  Refusing keeper(live_bytes() + KiB(64));
  const LimitScope one(keeper);
  { const LimitScope other(keeper); }
  EXPECT_THROW((void)c10::GetAllocator(c10::kCPU)->allocate(128 << 10), std::runtime_error);
}

// The keepers are asked in turn; one that lets bytes pass speaks for itself alone.
class Lenient final : public LimitKeeper {
 public:
  explicit Lenient(Bytes limit) : LimitKeeper(limit.count) {}
  Room make_room(std::int64_t wanted) override {
    ++asked;
    return live_bytes().count + wanted <= bound() ? Room::kMade : Room::kExceeded;
  }
  int asked = 0;
};

TEST(MemoryLimit, EachKeeperSpeaksForItself) {
  Lenient small(live_bytes() + KiB(4));
  Refusing large(live_bytes() + KiB(64));
  const LimitScope one(small);
  const LimitScope other(large);
  auto* const allocator = c10::GetAllocator(c10::kCPU);
  const c10::DataPtr fits = allocator->allocate(1024);
  EXPECT_EQ(small.asked, 0);
  const c10::DataPtr passes = allocator->allocate(16 << 10);
  EXPECT_GT(small.asked, 0);
  EXPECT_THROW((void)allocator->allocate(128 << 10), std::runtime_error);
}

}  // namespace
}  // namespace reprise::libtorch
