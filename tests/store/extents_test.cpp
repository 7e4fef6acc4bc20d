// Which parts of a file are in use: no two overlap, and what is given back is used again.
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <vector>

#include "store/extents.h"

namespace reprise::store {
namespace {

TEST(Extents, TheLowestPartThatFitsIsUsedAgain) {
  Extents extents;
  EXPECT_EQ(extents.take(10), 0);
  EXPECT_EQ(extents.take(20), 10);
  EXPECT_EQ(extents.take(5), 30);
  extents.give(0, 10);
  extents.give(10, 20);
  EXPECT_EQ(extents.take(25), 0) << "neighbours are joined";
  EXPECT_EQ(extents.take(5), 25);
  EXPECT_EQ(extents.take(1), 35);
  EXPECT_EQ(extents.used(), 36);
}

TEST(Extents, TheSameSizesTakeTheSamePlacesEveryTime) {
  Extents extents;
  std::int64_t end = 0;
  for (int step = 0; step < 3; ++step) {
    std::vector<std::int64_t> offsets;
    for (int i = 1; i <= 9; ++i) offsets.push_back(extents.take(i));
    for (int i = 9; i >= 1; --i) extents.give(offsets[static_cast<std::size_t>(i - 1)], i);
    EXPECT_EQ(extents.used(), 0);
    EXPECT_EQ(extents.end(), 0);
    end = std::max(end, offsets.back() + 9);
  }
  EXPECT_EQ(end, 45);
}

TEST(Extents, PartsInUseNeverOverlapAndNothingIsLost) {
  EXPECT_TRUE(rc::check("any sequence of takes and gives", [] {
    Extents extents;
    std::vector<bool> used(10'000, false);
    std::vector<std::pair<std::int64_t, std::int64_t>> taken;
    std::int64_t total = 0;
    const auto steps = *rc::gen::container<std::vector<int>>(rc::gen::inRange(-20, 40));
    for (const int step : steps) {
      if (step > 0) {
        const std::int64_t offset = extents.take(step);
        for (std::int64_t i = offset; i < offset + step; ++i) {
          RC_ASSERT(!used.at(static_cast<std::size_t>(i)));
          used[static_cast<std::size_t>(i)] = true;
        }
        taken.emplace_back(offset, step);
        total += step;
      } else if (!taken.empty()) {
        const auto place = taken.begin() + (-step % static_cast<int>(taken.size()));
        for (std::int64_t i = 0; i < place->second; ++i) {
          used[static_cast<std::size_t>(place->first + i)] = false;
        }
        extents.give(place->first, place->second);
        total -= place->second;
        taken.erase(place);
      }
      RC_ASSERT(extents.used() == total);
      RC_ASSERT(extents.end() >= total);
    }
    for (const auto& [offset, length] : taken) extents.give(offset, length);
    RC_ASSERT(extents.used() == 0);
    RC_ASSERT(extents.end() == 0);
  }));
}

}  // namespace
}  // namespace reprise::store
