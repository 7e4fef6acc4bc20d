// How layers are cut into the stages of a pipeline.
#include <gmock/gmock.h>
#include <rapidcheck.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <numeric>

#include "reprise/pipeline_schedule.h"
#include "tests/refusal.h"

namespace reprise::plan {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

using PartSizes = std::vector<std::int64_t>;

// Calls `use` with every cut of `layers` into `parts`.
void for_every_cut(std::int64_t layers, std::int64_t parts,
                   const std::function<void(const PartSizes&)>& use) {
  PartSizes sizes;
  const std::function<void(std::int64_t)> extend = [&](std::int64_t left) {
    if (std::ssize(sizes) + 1 == parts) {
      sizes.push_back(left);
      use(sizes);
      sizes.pop_back();
      return;
    }
    for (std::int64_t size = 1; size < left; ++size) {
      sizes.push_back(size);
      extend(left - size);
      sizes.pop_back();
    }
  };
  extend(layers);
}

double largest_sum(const std::vector<double>& costs, const PartSizes& sizes) {
  double largest = 0;
  auto at = costs.begin();
  for (const std::int64_t size : sizes) {
    largest = std::max(largest, std::accumulate(at, at + size, 0.0));
    at += size;
  }
  EXPECT_EQ(at, costs.end());
  return largest;
}

std::vector<double> random_costs(std::size_t count) {
  return *rc::gen::container<std::vector<double>>(
      count, rc::gen::map(rc::gen::inRange(0, 20), [](int each) { return double{1} * each; }));
}

TEST(Balance, HasTheLeastLargestSumOfAllCuts) {
  EXPECT_TRUE(rc::check([] {
    const auto layers = *rc::gen::inRange<std::int64_t>(1, 11);
    const auto parts = *rc::gen::inRange<std::int64_t>(1, layers + 1);
    const std::vector<double> costs = random_costs(static_cast<std::size_t>(layers));
    double least = std::numeric_limits<double>::infinity();
    for_every_cut(layers, parts, [&](const PartSizes& sizes) {
      least = std::min(least, largest_sum(costs, sizes));
    });
    const PartSizes chosen = balance_by_cost(costs, parts);
    RC_ASSERT(std::ssize(chosen) == parts);
    RC_ASSERT(*std::ranges::min_element(chosen) >= 1);
    RC_ASSERT(largest_sum(costs, chosen) == least);
  }));
}

TEST(Balance, HasTheLeastSlowestPartOfAllCutsThatFit) {
  EXPECT_TRUE(rc::check([] {
    const auto layers = *rc::gen::inRange<std::int64_t>(1, 11);
    const auto parts = *rc::gen::inRange<std::int64_t>(1, layers + 1);
    const std::vector<double> costs = random_costs(static_cast<std::size_t>(layers));
    const std::vector<double> counts = random_costs(static_cast<std::size_t>(layers));
    const auto most = static_cast<double>(*rc::gen::inRange(0, 60));
    double least = std::numeric_limits<double>::infinity(), least_bytes = least;
    for_every_cut(layers, parts, [&](const PartSizes& sizes) {
      const double largest = largest_sum(counts, sizes);
      least_bytes = std::min(least_bytes, largest);
      if (largest <= most) least = std::min(least, largest_sum(costs, sizes));
    });
    std::vector<Seconds> seconds;
    std::vector<Bytes> bytes;
    for (const double each : costs) seconds.emplace_back(each);
    for (const double each : counts) bytes.emplace_back(static_cast<std::int64_t>(each));
    const Bytes limit(static_cast<std::int64_t>(most));
    if (least_bytes > most) {
      const auto text = refusal_of<BudgetError>([&] { balance(seconds, bytes, parts, limit); });
      RC_ASSERT(text.find("at least " + std::to_string(static_cast<int>(least_bytes)) + " bytes") !=
                std::string::npos);
      return;
    }
    const PartSizes chosen = balance(seconds, bytes, parts, limit);
    RC_ASSERT(largest_sum(costs, chosen) == least);
    RC_ASSERT(largest_sum(counts, chosen) <= most);
  }));
}

TEST(Balance, EqualLayersAreSharedEqually) {
  EXPECT_THAT(balance_by_cost(std::vector<double>(12, 1.5), 4), ElementsAre(3, 3, 3, 3));
  EXPECT_THAT(balance_by_cost(std::vector<double>(1000, 1), 3), ElementsAre(334, 333, 333));
  EXPECT_THAT(balance_by_cost({5, 1, 1, 1, 1}, 2), ElementsAre(1, 4));
  // The first parts share the layers that the slow last one leaves.
  EXPECT_THAT(balance_by_cost({1, 1, 1, 1, 1, 1, 9}, 3), ElementsAre(3, 3, 1));
  EXPECT_THAT(balance_by_cost({0, 0, 0}, 3), ElementsAre(1, 1, 1));
}

TEST(Balance, BytesMoveACut) {
  const std::vector<Seconds> seconds(4, Seconds(1));
  const std::vector<Bytes> bytes = {Bytes(6), Bytes(6), Bytes(1), Bytes(1)};
  EXPECT_THAT(balance(seconds, bytes, 2, Bytes(12)), ElementsAre(2, 2));
  EXPECT_THAT(balance(seconds, bytes, 2, Bytes(11)), ElementsAre(1, 3));
  EXPECT_EQ(refusal_of<BudgetError>([&] { balance(seconds, bytes, 2, Bytes(7)); }),
            "balance: 2 parts of 4 layers do not fit in 7 B each; they need at least 8 bytes (8 B) "
            "each");
}

TEST(Balance, WrongArgumentsAreRefused) {
  EXPECT_EQ(refusal_of([] {
              balance_by_cost({1, 2}, 3);
            }),
            "balance_by_cost: parts is 3; it must be between 1 and the number of layers, 2");
  EXPECT_THAT(refusal_of([] { balance_by_cost({}, 1); }), HasSubstr("the number of layers, 0"));
  EXPECT_THAT(refusal_of([] { balance_by_cost({1}, 0); }), HasSubstr("parts is 0"));
  EXPECT_EQ(
      refusal_of([] {
        balance_by_cost({1, -2}, 1);
      }),
      "balance_by_cost: costs[1] is -2.000000; costs must be at least 0, and their sum finite");
  EXPECT_THAT(refusal_of([] { balance_by_cost({std::nan("")}, 1); }), HasSubstr("costs[0] is"));
  EXPECT_THAT(refusal_of([] { balance_by_cost({1.5e308, 1.5e308}, 1); }), HasSubstr("costs[1] is"));
  const std::vector<Seconds> seconds(2, Seconds(1));
  EXPECT_EQ(refusal_of([&] { balance(seconds, {Bytes(1)}, 1, Bytes(9)); }),
            "balance: there are seconds of 2 layers and bytes of 1; give both for each layer");
  EXPECT_THAT(refusal_of([&] {
                balance(seconds, {Bytes(1), Bytes(-1)}, 1, Bytes(9));
              }),
              HasSubstr("balance: bytes[1] is -1; bytes must be at least 0"));
  const Bytes half(std::int64_t{1} << 52);
  EXPECT_THAT(refusal_of([&] {
                balance(seconds, {half, half}, 1, Bytes(9));
              }),
              HasSubstr("add up to at most 2^52"));
}

}  // namespace
}  // namespace reprise::plan
