#include "core/block_spread.h"

#include <algorithm>

namespace reprise {
namespace {

constexpr std::int64_t kMostBlocks = 64;

// The sums of a block, in double precision; fours, for elements are loaded so.
template <FloatType type>
struct BlockSums {
  using L = Lanes<type>;
  double squares = 0, least = 0, largest = 0;

  BlockSums(const typename L::Element* data, std::int64_t count) {
    for (std::int64_t i = 0; i < count; i += 4) {
      typename L::Element four_elements[4];
      const std::int64_t here = std::min<std::int64_t>(4, count - i);
      std::copy_n(data + i, here, four_elements);
      std::fill(four_elements + here, four_elements + 4, data[i]);
      typename L::Four four;
      L::load(four_elements, four);
      for (std::int64_t k = 0; k < here; ++k) add(static_cast<double>(four[k]), i + k == 0);
    }
  }

 private:
  void add(double value, bool is_first) {
    squares += value * value;
    least = is_first ? value : std::min(least, value);
    largest = is_first ? value : std::max(largest, value);
  }
};

}  // namespace

double block_spread(FloatType type, const void* data, std::int64_t elements, std::int64_t block) {
  return with_float(type, [&](auto tag) {
    constexpr FloatType kType = decltype(tag)::kType;
    const auto* const all = static_cast<const typename Lanes<kType>::Element*>(data);
    const std::int64_t blocks = (elements + block - 1) / block;
    const std::int64_t looked_at = std::min(blocks, kMostBlocks);
    double ranges = 0, squares = 0;
    for (std::int64_t i = 0; i < looked_at; ++i) {
      const std::int64_t first = blocks * i / looked_at * block;
      const std::int64_t count = std::min(block, elements - first);
      const BlockSums<kType> sums(all + first, count);
      const double range = sums.largest - sums.least;
      ranges += range * range * static_cast<double>(count);
      squares += sums.squares;
    }
    return squares > 0 ? ranges / squares : 0;
  });
}

}  // namespace reprise
