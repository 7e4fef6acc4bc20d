// Floating-point elements as whole numbers of 8 or 4 bits: blocks of elements that share a minimum
// and a step, each element the number of steps above the minimum, rounded up or down at random so
// that what comes back is the element on average.
//
// In memory: minimum and step of each block, one after another, as float (double for elements that
// are double); then the numbers of each block, in groups of 16 bytes. A group is four words of 32
// bits, and element 4 k + i of it lies in word i from bit `bits` k on: words are made and taken
// apart without moving bytes about. The last group of the last block may hold more numbers than
// there are elements.
//
// A step is the block's range divided by the largest number, but at least 2^16 times the smallest
// normal number of float (or double).
//
// An element comes back with an error below one step, or so little more that arithmetic in the
// element's type makes it; the smallest and the largest of a block, and what is a whole number of
// steps above the smallest, but for that arithmetic as they were. The smallest, and with it the
// elements of a block that are all equal, come back bit by bit; of +0 and -0 either.
#pragma once

#include <cstdint>

#include "core/lanes.h"

namespace reprise {

struct BlockCode {
  static constexpr std::int64_t kGroupBytes = 16;
  // Blocks are whole groups.
  static constexpr std::int64_t kLeastBlock = kGroupBytes * 8 / 4;
  static constexpr std::int64_t kLargestBlock = 65536;
  static constexpr bool may_have_blocks_of(std::int64_t elements) {
    return elements >= kLeastBlock && elements <= kLargestBlock && elements % kLeastBlock == 0;
  }

  FloatType type = FloatType::kFloat;
  int bits = 8;  // or 4
  std::int64_t block = 256;
  std::int64_t elements = 0;

  std::int64_t blocks() const { return (elements + block - 1) / block; }
  std::int64_t scale_bytes() const {  // of a block
    return type == FloatType::kDouble ? 2 * sizeof(double) : 2 * sizeof(float);
  }
  std::int64_t bytes() const {
    const std::int64_t group = kGroupBytes * 8 / bits;
    return blocks() * scale_bytes() + (elements + group - 1) / group * kGroupBytes;
  }
};

// Writes what belongs to the blocks from `first` on and before `last`; all of them in any order, on
// any threads, make `out` complete. The same stream makes the same bytes. False if a block has an
// element that is not finite, or larger than a quarter of the largest of its type for single and
// double precision and bfloat16: `out` holds anything then.
bool encode(const BlockCode& code, const void* data, std::int64_t first, std::int64_t last,
            std::uint64_t stream, std::uint8_t* out);

void decode(const BlockCode& code, const std::uint8_t* in, std::int64_t first, std::int64_t last,
            void* data);

}  // namespace reprise
