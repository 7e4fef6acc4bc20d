// Elements that are not zero, and a bit for each: what comes back is bitwise what there was, and
// nothing is written beyond what was asked for.
#include "core/sparse.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <algorithm>
#include <vector>

namespace reprise {
namespace {

template <class Element>
class Sparse : public ::testing::Test {};

using Elements = ::testing::Types<std::uint8_t, std::uint16_t, std::uint32_t, std::uint64_t>;
TYPED_TEST_SUITE(Sparse, Elements);

TYPED_TEST(Sparse, ComesBackAsItWas) {
  EXPECT_TRUE(rc::check([] {
    const auto count = *rc::gen::element<std::size_t>(0, 1, 7, 8, 9, 63, 511, 512, 513, 9000);
    const auto share = *rc::gen::inRange(0, 11);
    std::vector<TypeParam> all(count);
    // The lowest and the highest bit alone are not zero either.
    const std::vector<TypeParam> kinds = {1, TypeParam(TypeParam{1} << (8 * sizeof(TypeParam) - 1)),
                                          static_cast<TypeParam>(~TypeParam{0})};
    std::uint32_t random = *rc::gen::arbitrary<std::uint32_t>();
    for (TypeParam& each : all) {
      random = random * 1664525 + 1013904223;
      if (static_cast<int>((random >> 16) % 10) < share) each = kinds[(random >> 8) % 3];
    }
    const auto length = static_cast<std::int64_t>(count);
    const std::int64_t kept_count = count_nonzero(all.data(), length, sizeof(TypeParam));
    RC_ASSERT(kept_count == length - std::count(all.begin(), all.end(), TypeParam{0}));

    std::vector<std::uint8_t> bits((count + 7) / 8 + 1, 0xa5);
    std::vector<TypeParam> kept(static_cast<std::size_t>(kept_count) + 1, 7);
    pack_nonzero(all.data(), length, sizeof(TypeParam), bits.data(), kept.data());
    RC_ASSERT(bits.back() == 0xa5);
    RC_ASSERT(kept.back() == 7);

    std::vector<TypeParam> back(count + 1, 9);
    unpack_nonzero(bits.data(), kept.data(), length, sizeof(TypeParam), back.data());
    RC_ASSERT(back.back() == 9);
    back.pop_back();
    RC_ASSERT(back == all);
  }));
}

TYPED_TEST(Sparse, ASampleIsTheWholeWhereItIsSmall) {
  std::vector<TypeParam> all(1000);
  EXPECT_EQ(sampled_nonzero(all.data(), 0, sizeof(TypeParam), 100), 0);
  for (std::size_t i = 0; i < 250; ++i) all[i] = 1;
  EXPECT_EQ(sampled_nonzero(all.data(), 1000, sizeof(TypeParam), 1000), 0.25);
  EXPECT_EQ(sampled_nonzero(all.data(), 1000, sizeof(TypeParam), 5000), 0.25);
  EXPECT_EQ(sampled_nonzero(all.data(), 1000, sizeof(TypeParam), 100), 0.25);
  EXPECT_NEAR(sampled_nonzero(all.data(), 1000, sizeof(TypeParam), 97), 0.25, 0.02);
}

}  // namespace
}  // namespace reprise
