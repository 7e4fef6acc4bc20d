// Sixteen elements at a time to sixteen bits, and back, for elements of two kinds. With SSE2, which
// every x86-64 has, elements are compared and chosen in whole registers; elsewhere in a loop.
#pragma once

#include <cstdint>

#ifdef __SSE2__
#include <emmintrin.h>

#include <cstddef>
#include <utility>
#endif

namespace reprise {

constexpr std::int64_t kSixteen = 16;

template <class Element>
class SixteenByLoop {
 public:
  SixteenByLoop(Element zero, Element one) : zero_(zero), one_(one) {}

  // A bit for each of sixteen elements, the first as the lowest: 1 for `one`.
  std::uint32_t pack(const Element* elements) {
    std::uint32_t bits = 0;
    for (unsigned k = 0; k < kSixteen; ++k) {
      bits |= static_cast<std::uint32_t>(elements[k] == one_) << k;
      is_strange_ = is_strange_ || (elements[k] != one_ && elements[k] != zero_);
    }
    return bits;
  }
  // Whether one so far was neither.
  bool is_strange() const { return is_strange_; }

  void unpack(std::uint32_t bits, Element* elements) const {
    for (unsigned k = 0; k < kSixteen; ++k) elements[k] = ((bits >> k) & 1) != 0 ? one_ : zero_;
  }

 private:
  const Element zero_, one_;
  bool is_strange_ = false;
};

#ifdef __SSE2__

// The same with elements as lanes of registers; those of eight bytes as two lanes each.
template <class Element>
class SixteenBySse2 {
 public:
  SixteenBySse2(Element zero, Element one)
      : zero_(everywhere(zero)), one_(everywhere(one)), difference_(_mm_xor_si128(zero_, one_)) {}

  std::uint32_t pack(const Element* elements) {
    Masks are_one;
    for_each([&](auto at) {
      const __m128i some = _mm_loadu_si128(reinterpret_cast<const __m128i*>(elements) + at);
      are_one.of[at] = equal(some, one_);
      known_ = _mm_and_si128(known_, _mm_or_si128(are_one.of[at], equal(some, zero_)));
    });
    return static_cast<std::uint32_t>(_mm_movemask_epi8(as_bytes(are_one)));
  }
  bool is_strange() const { return _mm_movemask_epi8(known_) != 0xffff; }

  void unpack(std::uint32_t bits, Element* elements) const {
    const __m128i all = spread(bits);
    for_each([&](auto at) {
      const __m128i own = own_bits<at>();
      const __m128i is_one = lanes_equal(_mm_and_si128(all, own), own);
      _mm_storeu_si128(reinterpret_cast<__m128i*>(elements) + at,
                       _mm_xor_si128(_mm_and_si128(is_one, difference_), zero_));
    });
  }

 private:
  static constexpr std::size_t kWidth = sizeof(Element);
  static constexpr std::size_t kRegisters = kWidth;  // of sixteen bytes

  struct Masks {
    __m128i of[kRegisters];  // std::array warns of the alignment
  };

  // As many statements, not a loop: GCC keeps registers of a loop in memory.
  template <class F>
  static void for_each(const F& f) {
    [&]<std::size_t... At>(std::index_sequence<At...>) {
      (f(std::integral_constant<std::size_t, At>()), ...);
    }(std::make_index_sequence<kRegisters>());
  }

  static __m128i everywhere(Element element) {
    if constexpr (kWidth == 1) return _mm_set1_epi8(static_cast<char>(element));
    if constexpr (kWidth == 2) return _mm_set1_epi16(static_cast<short>(element));
    if constexpr (kWidth == 4) return _mm_set1_epi32(static_cast<int>(element));
    if constexpr (kWidth == 8) return _mm_set1_epi64x(static_cast<long long>(element));
  }
  static __m128i lanes_equal(__m128i a, __m128i b) {
    if constexpr (kWidth == 1) return _mm_cmpeq_epi8(a, b);
    if constexpr (kWidth == 2) return _mm_cmpeq_epi16(a, b);
    if constexpr (kWidth >= 4) return _mm_cmpeq_epi32(a, b);
  }
  // In all lanes of an element.
  static __m128i equal(__m128i a, __m128i b) {
    const __m128i lanes = lanes_equal(a, b);
    if constexpr (kWidth < 8) return lanes;
    constexpr int kOtherHalves = _MM_SHUFFLE(2, 3, 0, 1);
    return _mm_and_si128(lanes, _mm_shuffle_epi32(lanes, kOtherHalves));
  }
  // Of an element, which is 0 or -1, one byte.
  static __m128i as_bytes(const Masks& are) {
    if constexpr (kWidth == 1) {
      return are.of[0];
    } else if constexpr (kWidth == 2) {
      return _mm_packs_epi16(are.of[0], are.of[1]);
    } else {
      const auto four = [&](std::size_t at) {
        if constexpr (kWidth == 4) return are.of[at];
        constexpr int kLowHalves = _MM_SHUFFLE(2, 0, 2, 0);
        return _mm_castps_si128(_mm_shuffle_ps(_mm_castsi128_ps(are.of[2 * at]),
                                               _mm_castsi128_ps(are.of[2 * at + 1]), kLowHalves));
      };
      return _mm_packs_epi16(_mm_packs_epi32(four(0), four(1)), _mm_packs_epi32(four(2), four(3)));
    }
  }
  // Each lane has all bits; of lanes of a byte, the first eight the lower ones.
  static __m128i spread(std::uint32_t bits) {
    if constexpr (kWidth == 1) {
      constexpr std::uint64_t kInEachByte = 0x0101010101010101;
      return _mm_set_epi64x(static_cast<long long>((bits >> 8) * kInEachByte),
                            static_cast<long long>((bits & 0xff) * kInEachByte));
    }
    if constexpr (kWidth == 2) return _mm_set1_epi16(static_cast<short>(bits));
    if constexpr (kWidth >= 4) return _mm_set1_epi32(static_cast<int>(bits));
  }
  // In each lane of that register, its element's.
  template <std::size_t At>
  static __m128i own_bits() {
    if constexpr (kWidth == 1) return _mm_set1_epi64x(static_cast<long long>(0x8040201008040201));
    if constexpr (kWidth == 2) {
      const __m128i first = _mm_setr_epi16(1, 2, 4, 8, 16, 32, 64, 128);
      return _mm_slli_epi16(first, 8 * At);
    }
    if constexpr (kWidth == 4) return _mm_slli_epi32(_mm_setr_epi32(1, 2, 4, 8), 4 * At);
    if constexpr (kWidth == 8) return _mm_slli_epi32(_mm_setr_epi32(1, 1, 2, 2), 2 * At);
  }

  const __m128i zero_, one_, difference_;
  __m128i known_ = _mm_set1_epi8(-1);
};

template <class Element>
using SixteenElements = SixteenBySse2<Element>;

#else

template <class Element>
using SixteenElements = SixteenByLoop<Element>;

#endif

}  // namespace reprise
