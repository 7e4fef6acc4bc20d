// Streams of random numbers of layers.
#include <ATen/CPUGeneratorImpl.h>

#include "tests/pipeline/testing.h"

namespace reprise::pipeline {
namespace {

// These draw by a generator argument, inside a kernel, in a factory and in a composite.
std::vector<at::Tensor> draw() {
  const at::Tensor x = torch::ones({4, 4});
  return {torch::empty({4}).uniform_(), std::get<0>(at::native_dropout(x, 0.3, true)),
          torch::randn({4}), torch::dropout(x, 0.5, true), torch::randperm(8)};
}

TEST(DrawsOfLayer, DependOnSeedMicroBatchAndLayerAlone) {
  const auto drawn = [](std::uint64_t seed, std::int64_t micro_batch, std::int64_t layer) {
    const DrawsOfLayer draws(seed, micro_batch, layer);
    return draw();
  };
  torch::manual_seed(1);
  const at::Tensor before = at::detail::getDefaultCPUGenerator().get_state();
  const auto first = drawn(5, 2, 3);
  EXPECT_TRUE(at::equal(before, at::detail::getDefaultCPUGenerator().get_state()));
  torch::manual_seed(2);
  const auto again = drawn(5, 2, 3);
  for (std::size_t i = 0; i < first.size(); ++i) EXPECT_TRUE(at::equal(first[i], again[i])) << i;
  EXPECT_FALSE(at::equal(first[0], drawn(6, 2, 3)[0]));
  EXPECT_FALSE(at::equal(first[0], drawn(5, 3, 3)[0]));
  EXPECT_FALSE(at::equal(first[0], drawn(5, 2, 4)[0]));
}

TEST(DrawsOfLayer, LeaveAGeneratorThatACallIsGiven) {
  at::Generator own = at::detail::createCPUGenerator(7);
  const at::Tensor plain = torch::empty({4}).uniform_(0, 1, own.clone());
  const DrawsOfLayer draws(1, 0, 0);
  EXPECT_TRUE(at::equal(plain, torch::empty({4}).uniform_(0, 1, own)));
}

TEST(DrawsOfLayer, ARegionReplaysThemAfterTheScope) {
  at::Tensor x = torch::ones({64}).requires_grad_();
  at::Tensor y;
  {
    const DrawsOfLayer draws(1, 0, 0);
    y = checkpoint([](const at::Tensor& t) { return torch::dropout(t, 0.5, true) * t; }, x);
  }
  y.sum().backward();
  // d/dt of mask * t * t is twice the result.
  EXPECT_TRUE(at::equal(x.grad(), 2 * y.detach()));
}

}  // namespace
}  // namespace reprise::pipeline
