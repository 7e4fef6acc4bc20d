// What operators cost: the least time that a call of the same operator on the same shapes took in
// any step of a budget. A single measurement holds whatever else the machine did meanwhile, and a
// value that seems dear for that would be kept in place of cheap ones. Under
// libtorch::limit_mutex().
#pragma once

#include <cstdint>
#include <unordered_map>

namespace reprise::tape {

class CostTable {
 public:
  // Where shapes change with every step the table would grow for ever: it begins anew.
  static constexpr std::size_t kMost = 1 << 16;

  // Takes a measurement of the calls with this signature into account. Their cost, in seconds.
  double note(std::uint64_t signature, double seconds) {
    if (least_.size() >= kMost) least_.clear();
    const auto [place, is_new] = least_.try_emplace(signature, seconds);
    if (seconds < place->second) place->second = seconds;
    return place->second;
  }

 private:
  std::unordered_map<std::uint64_t, double> least_;
};

}  // namespace reprise::tape
