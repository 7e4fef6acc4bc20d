// What one decision to drop a value costs among 100 to 100,000 live ones: by the index, and by
// looking at every value, which is what simrd does.
//
// A round is what an evictor sees in its steady state: four values are used, one is chosen and
// goes, another is made. Sizes and costs spread over four powers of ten each, and the costs of
// neighbourhoods drift, so that the index has to file again. Between two rounds an operator has run
// and taken the caches: a few megabytes are swept before each, untimed. With warm caches a hundred
// values would seem cheaper than they ever are.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <map>
#include <memory>
#include <numeric>
#include <random>
#include <utility>
#include <vector>

#include "benches.h"
#include "plan/simulate/eviction_index.h"

namespace reprise::bench {
namespace {

constexpr const char* kEvictScale = "evict_scale";
constexpr int kSizes[] = {100, 1'000, 10'000, 100'000};
constexpr int kUses = 4;

struct Value : plan::EvictionEntry {
  double neighbourhood = 0;
};

class Evictions {
 public:
  explicit Evictions(int count)
      : heuristic_(plan::make_heuristic(reprise::Heuristic::kHEq)),
        values_(static_cast<std::size_t>(count)),
        index_(*heuristic_, [](const plan::EvictionEntry& entry) {
          return static_cast<const Value&>(entry).neighbourhood;
        }) {
    for (Value& value : values_) make(value);
  }

  void by_index() {
    use_some();
    auto& gone = static_cast<Value&>(*index_.choose(now_));
    index_.remove(gone);
    make(gone);
  }

  void by_walk() {
    use_some();
    Value* best = &values_.front();
    double lowest = std::numeric_limits<double>::infinity();
    for (Value& value : values_) {
      const double score = index_.score(value, now_);
      if (score >= lowest) continue;
      lowest = score;
      best = &value;
    }
    index_.remove(*best);
    make(*best);
  }

 private:
  void use_some() {
    now_ += 1e-4;
    for (int i = 0; i < kUses; ++i) {
      Value& value = values_[random_() % values_.size()];
      index_.touch(value, now_);
      value.neighbourhood += 0.1 * value.own_cost;
    }
  }

  void make(Value& value) {
    value.own_cost = std::pow(10, -6 + 4 * share_(random_));
    value.bytes = static_cast<std::int64_t>(std::pow(10, 3 + 4 * share_(random_)));
    value.neighbourhood = 0;
    index_.insert(value, now_);
  }

  std::unique_ptr<plan::EvictionHeuristic> heuristic_;
  std::vector<Value> values_;
  plan::EvictionIndex index_;
  std::mt19937_64 random_{1};
  std::uniform_real_distribution<double> share_{0, 1};
  double now_ = 0;
};

// Seconds of each call, with the caches taken by something else before it.
template <class F>
std::vector<double> time_cold(int calls, F&& call) {
  using Clock = std::chrono::steady_clock;
  std::vector<char> operators_memory(std::size_t{4} << 20);
  std::vector<double> seconds;
  for (int i = 0; i < calls; ++i) {
    for (std::size_t at = 0; at < operators_memory.size(); at += 64) ++operators_memory[at];
    const auto start = Clock::now();
    call();
    seconds.push_back(std::chrono::duration<double>(Clock::now() - start).count());
  }
  return seconds;
}

double mean_of_middle(std::vector<double> sample) {
  std::ranges::sort(sample);
  const std::size_t cut = sample.size() / 10;  // interruptions, and the luckiest
  return std::accumulate(sample.begin() + static_cast<std::ptrdiff_t>(cut),
                         sample.end() - static_cast<std::ptrdiff_t>(cut), 0.0) /
         static_cast<double>(sample.size() - 2 * cut);
}

}  // namespace

void evict_scale(Session& session) {
  constexpr int kRounds = 15;
  const int calls = session.quick() ? 20 : 200;
  std::map<int, double> microseconds;
  for (const int count : kSizes) {
    Evictions indexed(count), walked(count);
    // Until what was made at the beginning has been mixed with what came later.
    for (int i = 0; i < 2 * count; ++i) indexed.by_index();
    std::vector<double> ours, peers;
    for (int round = 0; round < kRounds; ++round) {
      ours.push_back(1e6 * mean_of_middle(time_cold(calls, [&] { indexed.by_index(); })));
      peers.push_back(1e6 * mean_of_middle(time_cold(20, [&] { walked.by_walk(); })));
    }
    Figure figure =
        make_figure(kEvictScale, fmt::format("an eviction of {} values", count), "µs", ours, peers);
    microseconds[count] = figure.ours;
    session.report(std::move(figure));
  }
  // A time that grows like log n lies on a straight line over log n.
  const double by_line = microseconds[10'000] + (microseconds[10'000] - microseconds[100]) / 2;
  session.report({.bench = kEvictScale,
                  .name = "100000 values against the line in log n through 100 and 10000",
                  .ours = microseconds[100'000] / by_line,
                  .peer = {},
                  .unit = "×",
                  .runs = 1,
                  .spread = 0,
                  .bar = {.at_most = 1.25}});
}

}  // namespace reprise::bench
