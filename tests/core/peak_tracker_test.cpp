// The folding of one mark into many periods: by hand, against a naive model, and under threads.
#include "core/peak_tracker.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

namespace reprise {
namespace {

// A counter as an allocator keeps it, and the number of times that it was restarted.
class FakeSource final : public LevelSource {
 public:
  void add(std::int64_t bytes) {
    live_ += bytes;
    mark_ = std::max(mark_, live_);
  }
  std::int64_t live() override { return live_; }
  std::int64_t mark() override { return mark_; }
  std::int64_t restart_mark() override {
    if (broken) throw std::runtime_error("no statistics");
    return std::exchange(mark_, live_);
  }
  bool broken = false;

 private:
  std::int64_t live_ = 0;
  std::int64_t mark_ = 0;
};

TEST(PeakTracker, APeriodSeesItsOwnPeakOnly) {
  FakeSource source;
  PeakTracker tracker(source);
  source.add(100);
  source.add(-60);
  PeakTracker::Period period(tracker);
  EXPECT_EQ(period.live_at_start(), 40);
  EXPECT_EQ(period.peak(), 40);
  source.add(30);
  source.add(-70);
  EXPECT_EQ(period.peak(), 70);
  EXPECT_EQ(tracker.peak(), 100);
}

TEST(PeakTracker, AnInnerPeriodTakesNothingFromTheOuterOne) {
  FakeSource source;
  PeakTracker tracker(source);
  PeakTracker::Period outer(tracker);
  source.add(50);
  source.add(-50);
  {
    PeakTracker::Period inner(tracker);
    source.add(20);
    EXPECT_EQ(inner.peak(), 20);
  }
  EXPECT_EQ(outer.peak(), 50);
  EXPECT_EQ(tracker.peak(), 50);
}

TEST(PeakTracker, APeakInTheInnerPeriodCountsForTheOuterOneAfterItClosed) {
  FakeSource source;
  PeakTracker tracker(source);
  PeakTracker::Period outer(tracker);
  {
    PeakTracker::Period inner(tracker);
    source.add(80);
    source.add(-80);
  }
  PeakTracker::Period later(tracker);
  EXPECT_EQ(outer.peak(), 80);
  EXPECT_EQ(later.peak(), 0);
}

TEST(PeakTracker, AFailingSourceLeavesNoPeriodBehind) {
  FakeSource source;
  PeakTracker tracker(source);
  source.broken = true;
  EXPECT_THROW(PeakTracker::Period period(tracker), std::runtime_error);
  source.broken = false;
  PeakTracker::Period period(tracker);
  source.add(7);
  EXPECT_EQ(period.peak(), 7);
}

TEST(PeakTracker, OverlappingPeriodsAgreeWithRememberingEveryLevel) {
  struct Model {
    std::unique_ptr<PeakTracker::Period> period;
    std::int64_t start;
    std::int64_t peak;
  };
  EXPECT_TRUE(rc::check([](const std::vector<std::pair<std::uint8_t, std::int16_t>>& steps) {
    FakeSource source;
    PeakTracker tracker(source);
    std::vector<Model> open;
    std::int64_t level = 0;
    std::int64_t whole = 0;
    for (auto [kind, value] : steps) {
      if (kind % 4 == 0) {
        open.push_back({std::make_unique<PeakTracker::Period>(tracker), level, level});
      } else if (kind % 4 == 1 && !open.empty()) {
        open.erase(open.begin() + kind / 4 % open.size());
      } else {
        source.add(value);
        level += value;
        whole = std::max(whole, level);
        for (Model& model : open) model.peak = std::max(model.peak, level);
      }
      for (const Model& model : open) {
        RC_ASSERT(model.period->live_at_start() == model.start);
        RC_ASSERT(model.period->peak() == model.peak);
      }
      RC_ASSERT(tracker.peak() == whole);
    }
  }));
}

// A source that is safe to use from threads, with the same protocol as the CPU's counters.
class AtomicSource final : public LevelSource {
 public:
  void add(std::int64_t bytes) { raise(live_.fetch_add(bytes) + bytes); }
  std::int64_t live() override { return live_; }
  std::int64_t mark() override { return std::max(mark_.load(), live_.load()); }
  std::int64_t restart_mark() override {
    std::int64_t before = mark_.exchange(0);
    raise(live_);
    return before;
  }

 private:
  void raise(std::int64_t level) {
    std::int64_t mark = mark_;
    while (level > mark && !mark_.compare_exchange_weak(mark, level)) {
    }
  }
  std::atomic<std::int64_t> live_{0};
  std::atomic<std::int64_t> mark_{0};
};

TEST(PeakTracker, ThreadsThatOpenPeriodsNeverLoseAPeakOfAnotherThread) {
  AtomicSource source;
  PeakTracker tracker(source);
  std::atomic<bool> stop = false;
  std::thread opener([&] {
    while (!stop) PeakTracker::Period restarts_the_mark(tracker);
  });
  for (std::int64_t step = 1; step <= 20'000; ++step) {
    PeakTracker::Period period(tracker);
    source.add(step);
    source.add(-step);
    ASSERT_EQ(period.peak(), step);
    ASSERT_EQ(tracker.peak(), step);
  }
  stop = true;
  opener.join();
}

}  // namespace
}  // namespace reprise
