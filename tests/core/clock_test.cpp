// The stopwatch, without assumptions about how fast this machine is.
#include "core/clock.h"

#include <gtest/gtest.h>

#include <chrono>
#include <thread>

namespace reprise {
namespace {

TEST(Stopwatch, CountsAtLeastTheTimeThatWasWaited) {
  Stopwatch watch;
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  EXPECT_GE(watch.elapsed().count(), 0.005);
}

TEST(Stopwatch, NeverRunsBackwards) {
  Stopwatch watch;
  Seconds last = watch.elapsed();
  for (int i = 0; i < 1000; ++i) {
    Seconds now = watch.elapsed();
    ASSERT_GE(now, last);
    last = now;
  }
}

TEST(Stopwatch, RestartHandsOverTheTimeAndStartsFromZero) {
  Stopwatch whole;
  Stopwatch lap;
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  Seconds first = lap.restart();
  Seconds second = lap.elapsed();
  EXPECT_GE(first.count(), 0.005);
  EXPECT_LE(first + second, whole.elapsed());
}

}  // namespace
}  // namespace reprise
