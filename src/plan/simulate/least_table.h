// The lowest of up to kSize numbers while single ones change: an index's buckets in one choice.
// Each 16 have their lowest noted, so that a change costs a look at those and at the notes.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

namespace reprise::plan {

template <std::size_t kSize>
class LeastTable {
 public:
  static constexpr std::size_t kNone = kSize;

  // Which numbers are in.
  class Set {
   public:
    void set(std::size_t i, bool value) {
      const auto bit = static_cast<std::uint16_t>(1U << (i % kGroup));
      std::uint16_t& group = groups_[i / kGroup];
      group = static_cast<std::uint16_t>(value ? group | bit : group & ~bit);
    }

   private:
    friend class LeastTable;
    std::array<std::uint16_t, kSize / 16> groups_{};
  };

  // Forgets all, and takes the number f(i) for each i of the set. `f` is called for others too, so
  // that the processor can work on several at a time.
  template <class F>
  void fill(const Set& set, F&& f) {
    set_ = set;
    for (std::size_t group = 0; group < kGroups; ++group) {
      lowest_[group] = kNone;
      if (set_.groups_[group] == 0) continue;
      for (std::size_t i = 0; i < kGroup; ++i) {
        numbers_[kGroup * group + i] = f(kGroup * group + i);
      }
      find_lowest(group);
    }
  }

  void put(std::size_t i, double number) {
    numbers_[i] = number;
    set_.set(i, true);
    find_lowest(i / kGroup);
  }

  void take_out(std::size_t i) {
    set_.set(i, false);
    find_lowest(i / kGroup);
  }

  double operator[](std::size_t i) const { return numbers_[i]; }

  // Where the lowest number is; kNone if there is none.
  std::size_t lowest() const {
    std::size_t best = kNone;
    for (const std::size_t each : lowest_) {
      if (each != kNone && (best == kNone || numbers_[each] < numbers_[best])) best = each;
    }
    return best;
  }

 private:
  static constexpr std::size_t kGroup = 16;
  static constexpr std::size_t kGroups = kSize / kGroup;
  static_assert(kSize % kGroup == 0);

  void find_lowest(std::size_t group) {
    std::size_t best = kNone;
    for (unsigned bits = set_.groups_[group]; bits != 0; bits &= bits - 1) {
      const std::size_t i = kGroup * group + static_cast<std::size_t>(std::countr_zero(bits));
      if (best == kNone || numbers_[i] < numbers_[best]) best = i;
    }
    lowest_[group] = static_cast<std::uint32_t>(best);
  }

  Set set_;
  std::array<double, kSize> numbers_{};
  std::array<std::uint32_t, kGroups> lowest_{};
};

}  // namespace reprise::plan
