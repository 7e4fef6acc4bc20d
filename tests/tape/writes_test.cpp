// Writes to what the tape cannot make again, while others depend on it: whichever is less is kept,
// the old bytes or what depends on them, and nothing after an error.

#include <torch/library.h>
#include <torch/torch.h>

#include "tests/tape/testing.h"

namespace reprise {
namespace {

using at::Tensor;
using testing::paranoid;
using testing::same_bits;
using testing::Tensors;

void fail_before(Tensor&) { throw std::runtime_error("before the write"); }
void fail_within(Tensor& x) {
  x.narrow(0, 0, 1).fill_(9);
  throw std::runtime_error("within the write");
}

TORCH_LIBRARY(reprise_writes_test, library) {
  library.def("fail_before(Tensor(a!) x) -> ()");
  library.def("fail_within(Tensor(a!) x) -> ()");
}
TORCH_LIBRARY_IMPL(reprise_writes_test, CPU, library) {
  library.impl("fail_before", fail_before);
  library.impl("fail_within", fail_within);
}

void call(const char* name, const Tensor& x) {
  torch::jit::Stack stack{x};
  c10::Dispatcher::singleton().findSchemaOrThrow(name, "").callBoxed(stack);
}

// Products of a small root and something large, that take ten times 16 KiB.
struct Products {
  Tensor x = at::randn({64, 64}), scale = at::randn({64});
  Tensors operator()() const {
    Tensors made;
    for (int i = 0; i < 10; ++i) made.push_back(x * (scale.data() + i));
    return made;
  }
};

TEST(Writes, ToASmallRootLeaveWhatDependsOnItDroppable) {
  const Products products;
  const Tensors plain = products();
  MemoryBudget budget(live_bytes() + KiB(280), {.min_bytes = KiB(1)});
  auto step = budget.step();
  const Tensors mine = products();
  EXPECT_EQ(budget.report().dropped, 0);
  products.scale.data().add_(1);
  { const Tensor room = at::empty({200 * 256}); }
  EXPECT_GT(budget.report().dropped, 0);
  for (std::size_t i = 0; i < plain.size(); ++i) EXPECT_TRUE(mine[i].equal(plain[i]));
  products.scale.data().add_(1);
  step.finish();
  EXPECT_TRUE(same_bits(mine, plain));
}

TEST(Writes, ToALargeRootCopyNothing) {
  const Tensor large = at::randn({256, 256});
  MemoryBudget budget(GiB(64), {.min_bytes = KiB(1)});
  auto step = budget.step();
  const Tensor sums = large.sum(1);
  const Bytes before = live_bytes();
  large.data().add_(1);
  EXPECT_EQ(live_bytes(), before);
  step.finish();
}

TEST(Writes, ManyDependantsOfOneRoot) {
  MemoryBudget budget(GiB(64), {.min_bytes = Bytes(1)});
  auto step = budget.step();
  const Tensor root = at::zeros({1});
  Tensors held;
  for (int i = 0; i < 20000; ++i) held.push_back(root + i);
  root.data().add_(1);
  EXPECT_EQ(held[7].item<float>(), 7);
  step.finish();
}

TEST(Writes, ThatFailKeepNoCopyOfWhatTheyHaveNotChanged) {
  const Products products;
  MemoryBudget budget(GiB(64), paranoid());
  auto step = budget.step();
  const Tensors mine = products();
  const Bytes before = live_bytes();
  EXPECT_THROW(call("reprise_writes_test::fail_before", products.scale), std::runtime_error);
  EXPECT_EQ(live_bytes(), before);
  step.finish();
}

TEST(Writes, ThatFailHalfwayChangeNothingOfWhatWasComputedBefore) {
  const Products products;
  const Tensors plain = products();
  MemoryBudget budget(GiB(64), paranoid());
  {
    auto step = budget.step();
    const Tensors mine = products();
    // What has a producer, and what has none.
    const Tensor made = products.x.sin(), after = made.exp();
    EXPECT_THROW(call("reprise_writes_test::fail_within", products.scale), std::runtime_error);
    EXPECT_THROW(call("reprise_writes_test::fail_within", made), std::runtime_error);
    const Tensor row = made.select(0, 0) * 1;
    step.finish();
    EXPECT_TRUE(same_bits(mine, plain));
    EXPECT_TRUE(same_bits(after, products.x.sin().exp()));
    EXPECT_TRUE(row.equal(at::full({64}, 9.)));
    EXPECT_EQ(products.scale[0].item<float>(), 9);
  }
}

}  // namespace
}  // namespace reprise
