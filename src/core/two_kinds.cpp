// Sixteen elements at a time, and what is left over one at a time.
#include "core/two_kinds.h"

#include <algorithm>

#include "core/element_width.h"
#include "core/sixteen_elements.h"

namespace reprise {

namespace {

constexpr std::int64_t kInByte = 8;

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
  const std::int64_t whole = count / kSixteen * kSixteen;
  SixteenElements<Element> sixteen(zero, one);
  for (std::int64_t begin = 0; begin < whole; begin += kBetweenLooks) {
    const std::int64_t end = std::min(begin + kBetweenLooks, whole);
    for (std::int64_t i = begin; i < end; i += kSixteen) {
      const std::uint32_t some = sixteen.pack(elements + i);
      bits[i / kInByte] = static_cast<std::uint8_t>(some);
      bits[i / kInByte + 1] = static_cast<std::uint8_t>(some >> kInByte);
    }
    if (sixteen.is_strange()) return std::nullopt;
  }
  std::fill(bits + whole / kInByte, bits + bytes_of_bits(count), std::uint8_t{0});
  for (std::int64_t i = whole; i < count; ++i) {
    if (elements[i] != zero && elements[i] != one) return std::nullopt;
    const unsigned bit = static_cast<unsigned>(elements[i] == one) << (i % kInByte);
    bits[i / kInByte] = static_cast<std::uint8_t>(bits[i / kInByte] | bit);
  }
  return kinds;
}

template <class Element>
void unpack(const std::uint8_t* bits, TwoKinds kinds, std::int64_t count, Element* elements) {
  const auto zero = static_cast<Element>(kinds.zero), one = static_cast<Element>(kinds.one);
  const std::int64_t whole = count / kSixteen * kSixteen;
  const SixteenElements<Element> sixteen(zero, one);
  for (std::int64_t i = 0; i < whole; i += kSixteen) {
    const std::uint32_t low = bits[i / kInByte], high = bits[i / kInByte + 1];
    sixteen.unpack(low | high << kInByte, elements + i);
  }
  for (std::int64_t i = whole; i < count; ++i) {
    const bool is_one = (bits[i / kInByte] >> (i % kInByte)) & 1;
    elements[i] = is_one ? one : zero;
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
