// The order in which the inputs of a replay are made.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <tuple>
#include <vector>

namespace reprise::plan {

// The most bytes at once while a producer's inputs are made from roots, and then its results, if
// nothing is made for two readers: those beside which most bytes lie are made first (Sethi and
// Ullman 1970).
class RoomToMake {
 public:
  void begin() { inputs_.clear(), results_ = 0; }
  void add_input(const void* value, std::int64_t beside, std::int64_t size) {
    inputs_.emplace_back(beside, size, value);
  }
  void add_result(std::int64_t size) { results_ += size; }
  std::int64_t bytes() {
    if (inputs_.size() > 1) {
      std::sort(inputs_.begin(), inputs_.end(), std::greater<>());
      inputs_.erase(std::unique(inputs_.begin(), inputs_.end()), inputs_.end());
    }
    std::int64_t most = 0, held = 0;
    for (const auto& [beside, size, value] : inputs_) {
      most = std::max(most, held + beside + size);
      held += size;
    }
    return std::max(most, held + results_);
  }

 private:
  std::vector<std::tuple<std::int64_t, std::int64_t, const void*>> inputs_;
  std::int64_t results_ = 0;
};

// The order of two inputs that are missing. Of those alike it begins with the longer way from a root.
template <typename Value>
bool is_made_before(const Value& value, const Value& other) {
  return value.beside != other.beside ? value.beside > other.beside : value.depth > other.depth;
}

}  // namespace reprise::plan
