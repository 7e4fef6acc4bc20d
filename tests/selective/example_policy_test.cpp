// The policy that docs/extending.md shows does what it says.
#include "examples/extending/save_expensive.h"

#include <gtest/gtest.h>

#include "tests/selective/testing.h"

namespace reprise {
namespace {

using testing::gradients_of;
using testing::leaf;
using testing::OperatorCounts;
using testing::same_bits;

TEST(ExamplePolicy, KeepsDearOperatorsAndTheRoutersChoice) {
  const at::Tensor x = leaf({8, 16}), router = leaf({16, 2}), expert = leaf({16, 16});
  const auto mixture = [&](const at::Tensor& t) {
    const at::Tensor chosen = named("router", [&] { return t.mm(router).argmax(1); });
    return t.mm(expert).tanh() * chosen.unsqueeze(1);
  };
  const auto plain = gradients_of([&] { return mixture(x); }, {x, expert});
  OperatorCounts counts;
  // The expert takes 2 * 8 * 16 * 16 operations, the router an eighth of that.
  const auto options = testing::with_policy(example::save_expensive(4096));
  EXPECT_TRUE(
      same_bits(gradients_of([&] { return checkpoint(options, mixture, x); }, {x, expert}), plain));
  EXPECT_EQ(counts["argmax"], 1);
  EXPECT_EQ(counts["mm"], 2 + 2);
  EXPECT_EQ(counts["tanh"], 2);
}

}  // namespace
}  // namespace reprise
