#include "core/bfloat16.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace reprise {
namespace {

using Bf16Lanes = Lanes<FloatType::kBfloat16>;
constexpr std::uint32_t kInfinite = 0x7f80;

bool narrow(const float* data, std::int64_t elements, std::uint16_t* out) {
  FourBits infinite{};
  const auto round = [&](const float* from, std::uint16_t* to) {
    FourFloats four;
    Lanes<FloatType::kFloat>::load(from, four);
    // The carry of a number that is not one may make it finite, so the number is looked at, too.
    const auto bits = reinterpret_cast<FourBits>(four) & 0x7fffffff;
    const auto is_infinite = bits >= (kInfinite << 16) - 0x8000;
    infinite |= reinterpret_cast<FourBits>(is_infinite);
    Bf16Lanes::store(four, to);
  };
  const std::int64_t whole = elements / 4 * 4;
  for (std::int64_t i = 0; i < whole; i += 4) round(data + i, out + i);
  if (whole < elements) {
    float rest[4] = {};
    std::uint16_t rounded[4];
    std::copy(data + whole, data + elements, rest);
    round(rest, rounded);
    std::copy_n(rounded, elements - whole, out + whole);
  }
  return (infinite[0] | infinite[1] | infinite[2] | infinite[3]) == 0;
}

// To the nearest of 53 - 45 bits first, which single precision then has exactly (down to its
// smallest normal number).
bool narrow(const double* data, std::int64_t elements, std::uint16_t* out) {
  for (std::int64_t i = 0; i < elements; ++i) {
    if (!std::isfinite(data[i])) return false;
    auto bits = std::bit_cast<std::uint64_t>(data[i]);
    bits += 0x0fff'ffff'ffff + ((bits >> 45) & 1);
    bits &= ~std::uint64_t{0x1fff'ffff'ffff};
    const auto single = static_cast<float>(std::bit_cast<double>(bits));
    if (!std::isfinite(single)) return false;
    const auto rounded = std::bit_cast<std::uint32_t>(single);
    out[i] = static_cast<std::uint16_t>((rounded + 0x7fff + ((rounded >> 16) & 1)) >> 16);
  }
  return true;
}

}  // namespace

bool round_to_bfloat16(FloatType type, const void* data, std::int64_t elements,
                       std::uint16_t* out) {
  return type == FloatType::kFloat ? narrow(static_cast<const float*>(data), elements, out)
                                   : narrow(static_cast<const double*>(data), elements, out);
}

void widen_bfloat16(const std::uint16_t* in, std::int64_t elements, FloatType type, void* data) {
  const auto single = [&](std::int64_t i) {
    return std::bit_cast<float>(static_cast<std::uint32_t>(in[i]) << 16);
  };
  if (type == FloatType::kFloat) {
    auto* const all = static_cast<float*>(data);
    const std::int64_t whole = elements / 4 * 4;
    for (std::int64_t i = 0; i < whole; i += 4) {
      FourFloats four;
      Bf16Lanes::load(in + i, four);
      std::memcpy(all + i, &four, sizeof four);
    }
    for (std::int64_t i = whole; i < elements; ++i) all[i] = single(i);
  } else {
    auto* const all = static_cast<double*>(data);
    for (std::int64_t i = 0; i < elements; ++i) all[i] = static_cast<double>(single(i));
  }
}

}  // namespace reprise
