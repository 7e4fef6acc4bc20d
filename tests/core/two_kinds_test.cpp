// Bits for elements of two kinds: what comes back is bitwise what there was, and a third kind is
// never missed.
#include "core/two_kinds.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <cstring>
#include <limits>
#include <vector>

#include "core/sixteen_elements.h"

namespace reprise {
namespace {

template <class Element>
class Kinds : public ::testing::Test {};

using Elements = ::testing::Types<std::uint8_t, std::uint16_t, std::uint32_t, std::uint64_t>;
TYPED_TEST_SUITE(Kinds, Elements);

template <class Element>
std::optional<TwoKinds> packed(const std::vector<Element>& all, std::vector<std::uint8_t>& bits) {
  const auto count = static_cast<std::int64_t>(all.size());
  // One more, which must not be written to.
  bits.assign(static_cast<std::size_t>(bytes_of_bits(count)) + 1, 0xa5);
  const auto kinds = pack_bits(all.data(), count, sizeof(Element), bits.data());
  RC_ASSERT(bits.back() == 0xa5);
  return kinds;
}

TYPED_TEST(Kinds, ComeBackAsTheyWere) {
  rc::check([] {
    const auto a = *rc::gen::arbitrary<TypeParam>(), b = *rc::gen::arbitrary<TypeParam>();
    const auto choices = *rc::gen::resize(300, rc::gen::arbitrary<std::vector<bool>>());
    std::vector<TypeParam> all;
    for (const bool choice : choices) all.push_back(choice ? a : b);
    std::vector<std::uint8_t> bits;
    const auto count = static_cast<std::int64_t>(all.size());
    RC_ASSERT(may_be_of_two_kinds(all.data(), count, sizeof(TypeParam)));
    const auto kinds = packed(all, bits);
    RC_ASSERT(kinds.has_value());
    std::vector<TypeParam> back(all.size() + 1, 7);
    unpack_bits(bits.data(), *kinds, count, sizeof(TypeParam), back.data());
    RC_ASSERT(back.back() == 7);
    back.pop_back();
    RC_ASSERT(back == all);
  });
}

TYPED_TEST(Kinds, AThirdOneIsFoundWhereverItIs) {
  for (const std::size_t count : {5u, 16u, 61u, 64u, 4103u}) {
    std::vector<TypeParam> all;
    // Kinds without a bit in common; a third without one in common with either, of some of each's,
    // and of a half of each.
    constexpr auto both_halves = [](unsigned low, unsigned high) {
      return static_cast<TypeParam>(low | static_cast<TypeParam>(high) << (4 * sizeof(TypeParam)));
    };
    constexpr TypeParam kKinds[] = {both_halves(1, 1), both_halves(2, 2)};
    for (std::size_t i = 0; i < count; ++i) all.push_back(kKinds[i % 2]);
    for (std::size_t place = 0; place < count; ++place) {
      for (const TypeParam third : {both_halves(0, 0), both_halves(3, 3), both_halves(4, 4),
                                    both_halves(1, 2), both_halves(2, 1), both_halves(1, 0)}) {
        std::vector<TypeParam> other = all;
        other[place] = third;
        std::vector<std::uint8_t> bits(count);
        EXPECT_FALSE(pack_bits(other.data(), static_cast<std::int64_t>(count), sizeof(TypeParam),
                               bits.data()))
            << place << " of " << count;
      }
    }
  }
}

// What machines without SSE2 do.
TYPED_TEST(Kinds, AreTheSameBitsInALoop) {
  rc::check([] {
    const auto zero = *rc::gen::arbitrary<TypeParam>(), one = *rc::gen::arbitrary<TypeParam>();
    const auto third = *rc::gen::arbitrary<TypeParam>();
    std::vector<TypeParam> all, ours(kSixteen), theirs(kSixteen);
    for (int i = 0; i < kSixteen; ++i) {
      const int kind = *rc::gen::inRange(0, 20);
      all.push_back(kind == 0 ? third : kind % 2 == 0 ? zero : one);
    }
    SixteenElements<TypeParam> fast(zero, one);
    SixteenByLoop<TypeParam> plain(zero, one);
    const std::uint32_t bits = fast.pack(all.data());
    RC_ASSERT(bits == plain.pack(all.data()));
    RC_ASSERT(fast.is_strange() == plain.is_strange());
    fast.unpack(bits, ours.data());
    plain.unpack(bits, theirs.data());
    RC_ASSERT(ours == theirs);
    RC_ASSERT(ours == all || plain.is_strange());
  });
}

TYPED_TEST(Kinds, AFewOfThemShowMostOthers) {
  std::vector<TypeParam> all(10000, 5);
  const auto may_be = [&] {
    return may_be_of_two_kinds(all.data(), static_cast<std::int64_t>(all.size()),
                               sizeof(TypeParam));
  };
  EXPECT_TRUE(may_be());
  all[9000] = 6;
  EXPECT_TRUE(may_be());
  all[0] = 7;
  EXPECT_TRUE(may_be());
  all[1] = 8;
  EXPECT_FALSE(may_be());
}

TEST(Kinds, AreBitPatternsAndNoNumbers) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> all = {0.0f, -0.0f, -0.0f, 0.0f}, strange = {0.0f, -0.0f, nan};
  std::vector<std::uint8_t> bits(1);
  const auto kinds = pack_bits(all.data(), 4, sizeof(float), bits.data());
  ASSERT_TRUE(kinds);
  std::vector<float> back(4);
  unpack_bits(bits.data(), *kinds, 4, sizeof(float), back.data());
  EXPECT_EQ(std::memcmp(all.data(), back.data(), sizeof(float) * 4), 0);
  EXPECT_FALSE(pack_bits(strange.data(), 3, sizeof(float), bits.data()));
}

}  // namespace
}  // namespace reprise
