// How far apart the elements of blocks are, beside how large they are: what the noise of rounding
// them to the steps between a block's least and largest goes by.
#pragma once

#include <cstdint>

#include "core/lanes.h"

namespace reprise {

// The mean over elements of (largest - least of its block)^2 by the mean of their squares, of
// blocks of `block` elements; of large arrays by up to 64 blocks that lie evenly in it. Zero where
// all elements are the same or there is none. Elements must be finite.
//
// Rounded at random to one of `levels` + 1 values from the least to the largest, without bias, a
// block's elements get an error of variance step^2 / 6 each if they lie anywhere between two of
// them: by the mean of their squares, block_spread / (6 levels^2).
double block_spread(FloatType type, const void* data, std::int64_t elements, std::int64_t block);

}  // namespace reprise
