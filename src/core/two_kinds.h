// Memory whose elements are of two kinds only, as dropout masks are, in one bit an element.
//
// Elements are bit patterns of 1, 2, 4 or 8 bytes: what comes back is bitwise what there was.
#pragma once

#include <cstdint>
#include <optional>

namespace reprise {

struct TwoKinds {
  std::uint64_t zero = 0;  // what a bit of 0 stands for
  std::uint64_t one = 0;
};

constexpr bool has_kinds(int width) { return width == 1 || width == 2 || width == 4 || width == 8; }

constexpr std::int64_t bytes_of_bits(std::int64_t elements) { return (elements + 7) / 8; }

// `data` is aligned for its elements throughout.
//
// False if a few elements from all parts are of more than two kinds already.
bool may_be_of_two_kinds(const void* data, std::int64_t elements, int width);

// Writes bytes_of_bits(elements) to `bits`. Null if there is a third kind; `bits` holds anything
// then.
std::optional<TwoKinds> pack_bits(const void* data, std::int64_t elements, int width,
                                  std::uint8_t* bits);

void unpack_bits(const std::uint8_t* bits, TwoKinds kinds, std::int64_t elements, int width,
                 void* data);

}  // namespace reprise
