// How far off the lossy forms of a compressed store are: never more than they say, and not at all
// on average.
#include <rapidcheck.h>

#include <cmath>

#include "tests/store/compressed_testing.h"

namespace reprise {
namespace {

using namespace reprise::testing;

constexpr double kSteps[] = {0, 0, 255, 15};
double steps_of(Compression compression) { return kSteps[static_cast<int>(compression)]; }

TEST(CompressedError, BfloatsAreTheNearestOnes) {
  const at::Tensor bits = at::randint(INT32_MIN, INT32_MAX, {200'003},
                                      at::make_generator<at::CPUGeneratorImpl>(3), at::kInt);
  const at::Tensor all = bits.view(at::kFloat);
  const at::Tensor tensor = at::where(all.abs() < 3e38, all, 0.0f);
  EXPECT_TRUE(same_tensor(through(Compression::kBfloat16, tensor),
                          tensor.to(at::kBFloat16).to(at::kFloat)));
  // Not by way of single precision, which would round this up to a tie, and that up again.
  const double above = 1 + std::ldexp(1, -8), little = std::ldexp(1, -40);
  at::Tensor doubles = at::linspace(2, 3, 1000, at::kDouble);
  doubles[0] = above - little;
  doubles[1] = above + little;
  doubles[2] = above;
  const at::Tensor back = through(Compression::kBfloat16, doubles);
  EXPECT_EQ(back[0].item<double>(), 1);
  EXPECT_EQ(back[1].item<double>(), 1 + std::ldexp(1, -7));
  EXPECT_EQ(back[2].item<double>(), 1) << "a tie, to even";
  EXPECT_TRUE((back - doubles).abs().le(doubles.abs() / 256).all().item<bool>());
  EXPECT_EQ(taken_by(Compression::kBfloat16, tensor.to(at::kHalf)).form,
            CompressedForm::kUncompressed);
}

// Minimum and step of each block of a flat tensor.
std::pair<at::Tensor, at::Tensor> blocks_of(const at::Tensor& flat, std::int64_t block,
                                            double steps) {
  at::Tensor least = at::empty_like(flat), step = at::empty_like(flat);
  for (std::int64_t i = 0; i < flat.numel(); i += block) {
    const auto part = at::indexing::Slice(i, std::min(i + block, flat.numel()));
    const at::Tensor values = flat.index({part});
    least.index_put_({part}, values.min());
    step.index_put_({part}, (values.max() - values.min()) / steps);
  }
  return {least, step};
}

TEST(CompressedError, AnElementIsNeverOffByMoreThanAStep) {
  EXPECT_TRUE(rc::check("errors are below a step of the block", [] {
    const auto dtype = *rc::gen::element(at::kFloat, at::kDouble, at::kHalf, at::kBFloat16);
    const auto compression = *rc::gen::element(Compression::kInt8, Compression::kInt4);
    const auto block = *rc::gen::element<std::int64_t>(32, 64, 256, 1024);
    const auto around = *rc::gen::inRange<std::int64_t>(-33, 34);
    const auto count = std::max<std::int64_t>(500, 2 * block) + around;
    const double size = *rc::gen::element(1e-3, 1.0, 1e3), middle = *rc::gen::element(0.0, -5.0);
    torch::manual_seed(*rc::gen::arbitrary<std::uint32_t>());
    const at::Tensor tensor = (at::randn({count}, at::kDouble) * size + middle).to(dtype);
    const auto store = compressed_store({.compression = compression, .block = block});
    const at::Tensor back = through(*store, tensor);
    RC_ASSERT(store->totals(CompressedForm::kUncompressed).count == 0);
    RC_ASSERT(back.dtype() == tensor.dtype());
    const at::Tensor exact = tensor.to(at::kDouble);
    const auto [least, step] = blocks_of(exact, block, steps_of(compression));
    const at::Tensor error = (back.to(at::kDouble) - exact).abs();
    const double rounding = dtype == at::kHalf       ? std::ldexp(1, -10)
                            : dtype == at::kBFloat16 ? std::ldexp(1, -7)
                            : dtype == at::kFloat    ? std::ldexp(1, -22)
                                                     : std::ldexp(1, -51);
    const at::Tensor largest = at::maximum(exact.abs(), least.abs() + step * 255).clamp_min(1e-7);
    RC_ASSERT(error.le(step * 1.001 + largest * rounding).all().item<bool>());
    RC_ASSERT(at::where(exact == least, error, 0.0).max().item<double>() == 0);
  }));
}

TEST(CompressedError, ErrorsAreZeroOnAverageAndTheirVarianceIsBounded) {
  constexpr int kTimes = 4000;
  const at::Tensor tensor = normal({512}, 5);
  for (const Compression compression : {Compression::kInt8, Compression::kInt4}) {
    const auto store = compressed_store({.compression = compression, .seed = 7});
    const auto parked_as_often = at::zeros({512}, at::kDouble);
    at::Tensor sum = at::zeros({512}, at::kDouble), squares = at::zeros({512}, at::kDouble);
    for (int i = 0; i < kTimes; ++i) {
      const at::Tensor error = (through(*store, tensor) - tensor).to(at::kDouble);
      sum += error;
      squares += error.square();
    }
    const auto [least, step] = blocks_of(tensor.to(at::kDouble), 256, steps_of(compression));
    // At most half a step is the deviation of one error.
    const at::Tensor mean = sum / kTimes / (step / 2 / std::sqrt(kTimes));
    EXPECT_LT(mean.abs().max().item<double>(), 4.5) << "standard errors, of 512";
    EXPECT_LT(std::abs(mean.mean().item<double>()), 4 / std::sqrt(512.0));
    const at::Tensor variance = squares / kTimes / step.square();
    EXPECT_LT(variance.max().item<double>(), 0.25 * 1.01);
    EXPECT_GT(variance.mean().item<double>(), 0.13) << "a sixth, were fractions even";
    EXPECT_LT(variance.mean().item<double>(), 0.2);
  }
}

TEST(CompressedError, ErrorsOfNeighboursHaveNothingToDoWithEachOther) {
  const at::Tensor tensor = normal({1 << 18}, 9);
  const at::Tensor error = through(Compression::kInt4, tensor) - tensor;
  for (const std::int64_t apart : {1, 2, 3, 4, 8, 16, 32, 64, 256, 512, 65'536}) {
    const std::int64_t count = error.numel() - apart;
    const at::Tensor a = error.narrow(0, 0, count), b = error.narrow(0, apart, count);
    const double correlation =
        ((a * b).mean() / (a.square().mean() * b.square().mean()).sqrt()).item<double>();
    EXPECT_LT(std::abs(correlation), 5 / std::sqrt(static_cast<double>(count))) << apart;
  }
}

TEST(CompressedError, ConstantBlocksAndTheSmallestComeBackAsTheyWere) {
  at::Tensor tensor = normal({10, 256});
  tensor[2].fill_(0.1f);
  tensor[3].fill_(-0.0f);
  tensor[4].fill_(1e-42f);
  tensor[5].relu_();
  for (const Compression compression : {Compression::kInt8, Compression::kInt4}) {
    const at::Tensor back = through(compression, tensor);
    for (const int row : {2, 3, 4}) EXPECT_TRUE(same_bits(back[row], tensor[row])) << row;
    EXPECT_TRUE(at::equal(back[5] == 0, tensor[5] == 0) ||
                (back[5] == 0).sum().item<int>() >= (tensor[5] == 0).sum().item<int>());
    EXPECT_EQ(at::where(tensor[5] == 0, back[5], 0.0f).abs().max().item<float>(), 0);
    EXPECT_FALSE(at::equal(back, tensor));
  }
}

TEST(CompressedError, TheSmallestNumbersAreNotLost) {
  // Steps are no smaller than that.
  const float least = std::ldexp(std::numeric_limits<float>::min(), 16);
  const at::Tensor tensor = normal({512}) * 1e-33f;
  const at::Tensor back = through(Compression::kInt8, tensor);
  EXPECT_LE((back - tensor).abs().max().item<float>(), least);
  EXPECT_GT(back.abs().max().item<float>(), least);
  EXPECT_TRUE(at::isfinite(back).all().item<bool>());
}

TEST(CompressedError, WhatIsNotFiniteOrTooLargeStaysAsItIs) {
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16}) {
    const double large = dtype == at::kDouble ? 1e308 : 3.39e38;
    for (const double odd : {double{INFINITY}, -double{INFINITY}, double{NAN}, large, -large}) {
      for (const std::int64_t place : {0, 700, 999}) {
        at::Tensor tensor = normal({1000}).to(dtype);
        tensor[place] = odd;
        for (const Compression compression : {Compression::kInt8, Compression::kInt4}) {
          EXPECT_TRUE(same_tensor(through(compression, tensor), tensor)) << dtype << " " << odd;
        }
        if (dtype != at::kFloat && dtype != at::kDouble) continue;
        const at::Tensor back = through(Compression::kBfloat16, tensor);
        const bool fits = std::isfinite(odd) && dtype == at::kFloat;
        EXPECT_EQ(same_tensor(back, tensor), !fits) << dtype << " " << odd;
        EXPECT_TRUE(at::equal(at::isfinite(back), at::isfinite(tensor)));
      }
    }
  }
  // Rounded it would be infinite.
  at::Tensor tensor = normal({1000});
  tensor[5] = std::numeric_limits<float>::max();
  EXPECT_TRUE(same_tensor(through(Compression::kBfloat16, tensor), tensor));
  // The largest half is nothing special.
  at::Tensor halves = normal({1000}).to(at::kHalf);
  halves[5] = 65504;
  EXPECT_EQ(taken_by(Compression::kInt4, halves).form, CompressedForm::kInt4);
  EXPECT_TRUE(at::isfinite(through(Compression::kInt4, halves)).all().item<bool>());
}

TEST(CompressedError, AllHalvesAreReadAndWrittenRightly) {
  const at::Tensor all = at::arange(-32768, 32768, at::kInt).to(at::kShort).view(at::kHalf);
  const at::Tensor halves = at::where(at::isfinite(all.to(at::kFloat)), all, at::zeros_like(all));
  // Blocks of two halves: all of a block are the smallest or the largest of it.
  const at::Tensor pairs = halves.view({-1, 2}).repeat({1, 16});
  const at::Tensor back = through(*compressed_store({Compression::kInt8, 32, 0}), pairs);
  const at::Tensor exact = pairs.to(at::kDouble), error = (back.to(at::kDouble) - exact).abs();
  const auto [least, most] = at::aminmax(exact, 1, true);
  EXPECT_EQ(at::where(exact == least, error, 0.0).max().item<double>(), 0);
  EXPECT_TRUE(error.le((most - least) / 255 + exact.abs() / 1024 + 1e-7).all().item<bool>());
}

}  // namespace
}  // namespace reprise
