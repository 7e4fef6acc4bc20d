// Random numbers for stochastic rounding, four lanes at a time, and of nobody else's generator.
//
// Each lane is the xorshift generator of 128 bits of state that Marsaglia gives in "Xorshift RNGs"
// (Journal of Statistical Software 8, 2003); the states come from a stream's number by the mixing
// function of splitmix64 (Steele, Lea and Flood, OOPSLA 2014). Numbers of one stream depend on its
// number alone.
#pragma once

#include <cstdint>
#include <cstring>

#include "core/lanes.h"

namespace reprise {

constexpr std::uint64_t mixed(std::uint64_t bits) {
  bits += 0x9e3779b97f4a7c15;
  bits = (bits ^ (bits >> 30)) * 0xbf58476d1ce4e5b9;
  bits = (bits ^ (bits >> 27)) * 0x94d049bb133111eb;
  return bits ^ (bits >> 31);
}

// The number of one of a stream's streams.
constexpr std::uint64_t substream(std::uint64_t stream, std::uint64_t index) {
  return mixed(stream ^ mixed(index));
}

class LaneNoise {
 public:
  explicit LaneNoise(std::uint64_t stream) {
    std::uint64_t words[8];
    for (std::uint64_t i = 0; i < 8; ++i) words[i] = mixed(stream + i * 0x9e3779b97f4a7c15);
    std::memcpy(state_, words, sizeof words);
  }

  // 32 bits each.
  FourBits next() {
    const FourBits first = state_[0] ^ (state_[0] << 11), last = state_[3];
    state_[0] = state_[1];
    state_[1] = state_[2];
    state_[2] = last;
    return state_[3] = last ^ (last >> 19) ^ first ^ (first >> 8);
  }

 private:
  FourBits state_[4];
};

}  // namespace reprise
