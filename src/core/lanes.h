// Four numbers at a time, in vectors of the compiler's (GCC's and Clang's), loaded from and stored
// as any of the floating-point types that values come in. What works on them works four elements at
// a time for each of the types, whatever the compiler makes of loops.
#pragma once

#include <cstdint>
#include <cstring>
#include <limits>

namespace reprise {

enum class FloatType : std::uint8_t { kFloat, kDouble, kHalf, kBfloat16 };

using FourFloats [[gnu::vector_size(16)]] = float;
using FourDoubles [[gnu::vector_size(32)]] = double;
using FourInts [[gnu::vector_size(16)]] = std::int32_t;
using FourBits [[gnu::vector_size(16)]] = std::uint32_t;
using FourShorts [[gnu::vector_size(8)]] = std::uint16_t;

// How elements of a type are read and written: as Work, by fours. kLargest: beyond it a number is
// infinite, or becomes so when it is written. (Results by reference: how vectors are returned
// depends on the processor.)
template <FloatType type>
struct Lanes;

template <>
struct Lanes<FloatType::kFloat> {
  using Element = float;
  using Work = float;
  using Four = FourFloats;
  static constexpr Work kLargest = std::numeric_limits<float>::max();

  static void load(const Element* from, Four& four) { std::memcpy(&four, from, sizeof four); }
  static void store(const Four& four, Element* to) { std::memcpy(to, &four, sizeof four); }
};

template <>
struct Lanes<FloatType::kDouble> {
  using Element = double;
  using Work = double;
  using Four = FourDoubles;
  static constexpr Work kLargest = std::numeric_limits<double>::max();

  static void load(const Element* from, Four& four) { std::memcpy(&four, from, sizeof four); }
  static void store(const Four& four, Element* to) { std::memcpy(to, &four, sizeof four); }
};

template <>
struct Lanes<FloatType::kBfloat16> {
  using Element = std::uint16_t;
  using Work = float;
  using Four = FourFloats;
  static constexpr Work kLargest = 0x1.fep127f;

  static void load(const Element* from, Four& four) {
    FourShorts shorts;
    std::memcpy(&shorts, from, sizeof shorts);
    const FourBits bits = __builtin_convertvector(shorts, FourBits) << 16;
    four = reinterpret_cast<Four>(bits);
  }
  // To the nearest, and of two as near the even one; not for what is not a number.
  static void store(const Four& four, Element* to) {
    const auto bits = reinterpret_cast<FourBits>(four);
    const FourBits rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    const FourShorts shorts = __builtin_convertvector(rounded, FourShorts);
    std::memcpy(to, &shorts, sizeof shorts);
  }
};

template <>
struct Lanes<FloatType::kHalf> {
  using Element = std::uint16_t;
  using Work = float;
  using Four = FourFloats;
  static constexpr Work kLargest = 65504;

  // What is infinite or not a number is larger than kLargest.
  static void load(const Element* from, Four& four) {
    FourShorts shorts;
    std::memcpy(&shorts, from, sizeof shorts);
    const FourBits bits = __builtin_convertvector(shorts, FourBits);
    const FourBits sign = (bits & 0x8000) << 16, size = bits & 0x7fff;
    // Numbers below the smallest normal one are so many times 2^-24.
    const FourFloats small =
        __builtin_convertvector(reinterpret_cast<FourInts>(size), FourFloats) * 0x1p-24f;
    const FourBits normal = (size << 13) + (112u << 23);
    const FourBits chosen = size < 0x400 ? reinterpret_cast<FourBits>(small) : normal;
    four = reinterpret_cast<Four>(chosen | sign);
  }
  // To the nearest, and of two as near the even one; not for what is not a number or too large.
  static void store(const Four& four, Element* to) {
    const auto bits = reinterpret_cast<FourBits>(four);
    const FourBits sign = (bits >> 16) & 0x8000, size = bits & 0x7fffffff;
    const FourFloats shifted = reinterpret_cast<FourFloats>(size) + 0.5f;
    const FourBits small = reinterpret_cast<FourBits>(shifted) - 0x3f000000;
    const FourBits normal = (size - (112u << 23) + 0xfff + ((size >> 13) & 1)) >> 13;
    const FourBits chosen = (size < (113u << 23) ? small : normal) | sign;
    const FourShorts shorts = __builtin_convertvector(chosen, FourShorts);
    std::memcpy(to, &shorts, sizeof shorts);
  }
};

template <FloatType type>
struct FloatTag {
  static constexpr FloatType kType = type;
};

// Calls `f` with a tag whose kType is the type.
template <class F>
auto with_float(FloatType type, F&& f) {
  switch (type) {
    case FloatType::kFloat:
      return f(FloatTag<FloatType::kFloat>{});
    case FloatType::kDouble:
      return f(FloatTag<FloatType::kDouble>{});
    case FloatType::kHalf:
      return f(FloatTag<FloatType::kHalf>{});
    case FloatType::kBfloat16:
      break;
  }
  return f(FloatTag<FloatType::kBfloat16>{});
}

}  // namespace reprise
