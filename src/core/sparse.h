// Memory most of whose elements are zero: a bit for each element that says whether it is, and those
// that are not, in their order.
//
// Elements are bit patterns of 1, 2, 4 or 8 bytes (has_kinds() of core/two_kinds.h), and zero is
// the pattern without a bit: -0 is an element like any other, and what comes back is bitwise what
// there was.
#pragma once

#include <cstdint>

namespace reprise {

// `data` is aligned for its elements throughout.
//
// How many elements are not zero.
std::int64_t count_nonzero(const void* data, std::int64_t elements, int width);
// The share that is not, of at most so many elements in about equal distances.
double sampled_nonzero(const void* data, std::int64_t elements, int width, std::int64_t at_most);

// Writes (elements + 7) / 8 bytes to `bits`, and to `kept` as many elements as count_nonzero()
// says.
void pack_nonzero(const void* data, std::int64_t elements, int width, std::uint8_t* bits,
                  void* kept);

// Reads one element beyond those in `kept`, whatever it is.
void unpack_nonzero(const std::uint8_t* bits, const void* kept, std::int64_t elements, int width,
                    void* data);

}  // namespace reprise
