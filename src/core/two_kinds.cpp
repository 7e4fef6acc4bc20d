// Eight elements at a time, in vectors of the compiler's (GCC's and Clang's), so that packing and
// unpacking takes much less than drawing the elements again.
#include "core/two_kinds.h"

#ifdef __SSE2__
#include <emmintrin.h>
#endif

#include <algorithm>
#include <cstring>

#include "core/element_width.h"

namespace reprise {

namespace {

constexpr std::int64_t kInByte = 8;

using EightBytes [[gnu::vector_size(8)]] = signed char;

template <class Vector>
Vector loaded(const void* data) {
  Vector vector;
  std::memcpy(&vector, data, sizeof vector);
  return vector;
}

// The lowest bits of eight bytes as the bits of one: a multiplication moves each to the highest
// byte.
std::uint8_t gathered(EightBytes bytes) {
  const auto all = loaded<std::uint64_t>(&bytes);
  return static_cast<std::uint8_t>(((all & 0x0101010101010101) * 0x0102040810204080) >> 56);
}

// 0 or -1 for each bit.
EightBytes spread(std::uint8_t byte) {
  const std::uint64_t all = (byte * std::uint64_t{0x0101010101010101}) & 0x8040201008040201;
  return loaded<EightBytes>(&all) != 0;
}

// Which of eight elements are others than that one, the first as the lowest bit.
template <class Element>
std::uint8_t others(const Element* eight, Element than) {
  if constexpr (sizeof(Element) <= 2) {
    using Vector [[gnu::vector_size(kInByte * sizeof(Element))]] = Element;
    return gathered(__builtin_convertvector(loaded<Vector>(eight) != than, EightBytes));
  }
#ifdef __SSE2__
  if constexpr (sizeof(Element) == 4) {
    const auto same = [&](int at) {
      const __m128i four = _mm_loadu_si128(reinterpret_cast<const __m128i*>(eight + at));
      const __m128i equal = _mm_cmpeq_epi32(four, _mm_set1_epi32(static_cast<int>(than)));
      return _mm_movemask_ps(_mm_castsi128_ps(equal));
    };
    return static_cast<std::uint8_t>(~(same(0) | same(4) << 4));
  }
#endif
  unsigned byte = 0;
  for (unsigned k = 0; k < kInByte; ++k) byte |= static_cast<unsigned>(eight[k] != than) << k;
  return static_cast<std::uint8_t>(byte);
}

// Eight elements: `zero` where a bit is 0, and what differs from it by `difference` where it is 1.
template <class Element>
void fill(std::uint8_t byte, Element zero, Element difference, Element* eight) {
  constexpr std::size_t kWidth = sizeof(Element);
  if constexpr (kWidth <= 2) {
    using Vector [[gnu::vector_size(kInByte * kWidth)]] = Element;
    // Signs are extended: 0 or all bits.
    const Vector chosen = __builtin_convertvector(spread(byte), Vector) & difference;
    const Vector all = chosen ^ zero;
    std::memcpy(eight, &all, sizeof all);
  } else if constexpr (kWidth == 4) {
    using Vector [[gnu::vector_size(16)]] = std::uint32_t;
    for (int at : {0, 4}) {
      const Vector bits = Vector{1, 2, 4, 8} << at;
      const auto is_one = ((Vector{} + byte) & bits) == bits;  // of signed numbers
      const Vector chosen = loaded<Vector>(&is_one) & difference;
      const Vector all = chosen ^ zero;
      std::memcpy(eight + at, &all, sizeof all);
    }
  } else {
    for (unsigned k = 0; k < kInByte; ++k) {
      eight[k] = zero ^ (difference & -static_cast<Element>((byte >> k) & 1));
    }
  }
}

// The first element, and the first one that differs from it; itself if none does.
template <class Element>
TwoKinds first_two(const Element* elements, std::int64_t count) {
  const Element* const other =
      std::find_if(elements, elements + count, [&](Element e) { return e != elements[0]; });
  return {elements[0], other == elements + count ? elements[0] : *other};
}

template <class Element>
std::optional<TwoKinds> pack(const Element* elements, std::int64_t count, std::uint8_t* bits) {
  if (count == 0) return TwoKinds{};
  const TwoKinds kinds = first_two(elements, count);
  const auto zero = static_cast<Element>(kinds.zero), one = static_cast<Element>(kinds.one);
  // Third kinds are asked for now and then: mostly there are none, or the first look has shown one.
  constexpr std::int64_t kBetweenLooks = 4096;
  const std::int64_t whole = count / kInByte * kInByte;
  for (std::int64_t begin = 0; begin < whole; begin += kBetweenLooks) {
    std::uint8_t strange = 0;
    const std::int64_t end = std::min(begin + kBetweenLooks, whole);
    for (std::int64_t i = begin; i < end; i += kInByte) {
      const std::uint8_t byte = others(elements + i, zero);
      strange |= byte & others(elements + i, one);
      bits[i / kInByte] = byte;
    }
    if (strange != 0) return std::nullopt;
  }
  if (whole == count) return kinds;
  unsigned byte = 0;
  for (std::int64_t i = whole; i < count; ++i) {
    if (elements[i] != zero && elements[i] != one) return std::nullopt;
    byte |= static_cast<unsigned>(elements[i] != zero) << (i - whole);
  }
  bits[whole / kInByte] = static_cast<std::uint8_t>(byte);
  return kinds;
}

template <class Element>
void unpack(const std::uint8_t* bits, TwoKinds kinds, std::int64_t count, Element* elements) {
  const auto zero = static_cast<Element>(kinds.zero);
  const auto difference = static_cast<Element>(kinds.zero ^ kinds.one);
  const std::int64_t whole = count / kInByte * kInByte;
  for (std::int64_t i = 0; i < whole; i += kInByte) {
    fill(bits[i / kInByte], zero, difference, elements + i);
  }
  for (std::int64_t i = whole; i < count; ++i) {
    const bool bit = (bits[whole / kInByte] >> (i - whole)) & 1;
    elements[i] = static_cast<Element>(bit ? kinds.one : kinds.zero);
  }
}

}  // namespace

bool may_be_of_two_kinds(const void* data, std::int64_t elements, int width) {
  constexpr std::int64_t kPlaces = 4, kInPlace = 16;
  return with_element(width, [&](auto element) {
    const auto* const all = static_cast<const decltype(element)*>(data);
    const auto* second = all;
    for (std::int64_t place = 0; place < kPlaces; ++place) {
      const std::int64_t begin = elements / kPlaces * place;
      for (std::int64_t i = begin; i < std::min(begin + kInPlace, elements); ++i) {
        if (all[i] == *all || all[i] == *second) continue;
        if (*second != *all) return false;
        second = all + i;
      }
    }
    return true;
  });
}

std::optional<TwoKinds> pack_bits(const void* data, std::int64_t elements, int width,
                                  std::uint8_t* bits) {
  return with_element(width, [&](auto element) {
    return pack(static_cast<const decltype(element)*>(data), elements, bits);
  });
}

void unpack_bits(const std::uint8_t* bits, TwoKinds kinds, std::int64_t elements, int width,
                 void* data) {
  with_element(width, [&](auto element) {
    unpack(bits, kinds, elements, static_cast<decltype(element)*>(data));
  });
}

}  // namespace reprise
