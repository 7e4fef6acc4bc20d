#include "apps/cli/training/draws.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace reprise::app {

std::uint64_t splitmix64(std::uint64_t state) {
  state += 0x9e3779b97f4a7c15;
  state = (state ^ (state >> 30)) * 0xbf58476d1ce4e5b9;
  state = (state ^ (state >> 27)) * 0x94d049bb133111eb;
  return state ^ (state >> 31);
}

Draws::Draws(std::uint64_t seed, std::uint64_t stream)
    : state_(splitmix64(splitmix64(seed) ^ stream)) {}

std::uint64_t Draws::next() {
  state_ = splitmix64(state_);
  return state_;
}

// Fisher and Yates, ended when enough are in place.
std::vector<std::size_t> sample(std::size_t count, std::size_t taken, Draws& draws) {
  taken = std::min(taken, count);
  std::vector<std::size_t> numbers(count);
  std::iota(numbers.begin(), numbers.end(), std::size_t{0});
  for (std::size_t i = 0; i < taken; ++i) {
    std::swap(numbers[i], numbers[i + draws.below(count - i)]);
  }
  numbers.resize(taken);
  return numbers;
}

std::vector<std::size_t> EpochOrder::batch(std::int64_t step, std::int64_t size) {
  std::vector<std::size_t> examples;
  const auto first = static_cast<std::uint64_t>(step) * static_cast<std::uint64_t>(size);
  for (std::uint64_t i = first; i < first + static_cast<std::uint64_t>(size); ++i) {
    const std::uint64_t epoch = i / count_;
    if (order_.empty() || epoch != epoch_) {
      Draws draws(seed_, epoch);
      order_ = sample(count_, count_, draws);
      epoch_ = epoch;
    }
    examples.push_back(order_[i % count_]);
  }
  return examples;
}

}  // namespace reprise::app
