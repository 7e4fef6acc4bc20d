// Without branches on elements, which no processor could foretell.
#include "core/sparse.h"

#include <algorithm>
#include <cstring>

#include "core/element_width.h"

namespace reprise {
namespace {

// Sixteen bytes at a time: 0 or -1 for each element, summed as long as they cannot overflow.
template <class Element>
std::int64_t nonzero(const Element* data, std::int64_t count) {
  using Vector [[gnu::vector_size(16)]] = Element;
  constexpr std::int64_t kLanes = 16 / sizeof(Element);
  constexpr std::int64_t kBetweenSums = 255;
  std::int64_t zeros = 0, i = 0;
  while (i + kLanes <= count) {
    Vector found{};
    const std::int64_t end = std::min(count - kLanes + 1, i + kBetweenSums * kLanes);
    for (; i < end; i += kLanes) {
      Vector vector;
      std::memcpy(&vector, data + i, sizeof vector);
      const auto is_zero = vector == 0;
      Vector mask;
      std::memcpy(&mask, &is_zero, sizeof mask);
      found -= mask;
    }
    for (int lane = 0; lane < kLanes; ++lane) zeros += static_cast<std::int64_t>(found[lane]);
  }
  for (; i < count; ++i) zeros += data[i] == 0 ? 1 : 0;
  return count - zeros;
}

template <class Element>
void pack(const Element* data, std::int64_t count, std::uint8_t* bits, Element* kept) {
  constexpr std::int64_t kTile = 512;
  // What follows an element that is kept is written as well, and overwritten by the next one: here,
  // not in what may be somebody else's.
  Element tile[kTile + 1];
  for (std::int64_t begin = 0; begin < count; begin += kTile) {
    const std::int64_t end = std::min(begin + kTile, count);
    std::int64_t found = 0;
    for (std::int64_t i = begin; i < end; i += 8) {
      unsigned byte = 0;
      for (std::int64_t k = i; k < std::min(i + 8, end); ++k) {
        tile[found] = data[k];
        const unsigned one = data[k] != 0 ? 1 : 0;
        found += one;
        byte |= one << (k - i);
      }
      *bits++ = static_cast<std::uint8_t>(byte);
    }
    kept = std::copy_n(tile, found, kept);
  }
}

template <class Element>
void unpack(const std::uint8_t* bits, const Element* kept, std::int64_t count, Element* data) {
  for (std::int64_t i = 0; i < count; i += 8) {
    const unsigned byte = *bits++;
    for (std::int64_t k = i; k < std::min(i + 8, count); ++k) {
      const unsigned one = (byte >> (k - i)) & 1;
      data[k] = static_cast<Element>(*kept & (Element{0} - one));
      kept += one;
    }
  }
}

}  // namespace

std::int64_t count_nonzero(const void* data, std::int64_t elements, int width) {
  return with_element(width, [&](auto element) {
    return nonzero(static_cast<const decltype(element)*>(data), elements);
  });
}

double sampled_nonzero(const void* data, std::int64_t elements, int width, std::int64_t at_most) {
  if (elements == 0) return 0;
  return with_element(width, [&](auto element) {
    const auto* const all = static_cast<const decltype(element)*>(data);
    const std::int64_t count = std::min(elements, at_most);
    std::int64_t found = 0;
    for (std::int64_t i = 0; i < count; ++i) {
      // Neither overflows nor ends beyond the last.
      const std::int64_t place = elements / count * i + elements % count * i / count;
      found += all[place] != 0 ? 1 : 0;
    }
    return static_cast<double>(found) / static_cast<double>(count);
  });
}

void pack_nonzero(const void* data, std::int64_t elements, int width, std::uint8_t* bits,
                  void* kept) {
  with_element(width, [&](auto element) {
    using Element = decltype(element);
    pack(static_cast<const Element*>(data), elements, bits, static_cast<Element*>(kept));
  });
}

void unpack_nonzero(const std::uint8_t* bits, const void* kept, std::int64_t elements, int width,
                    void* data) {
  with_element(width, [&](auto element) {
    using Element = decltype(element);
    unpack(bits, static_cast<const Element*>(kept), elements, static_cast<Element*>(data));
  });
}

}  // namespace reprise
