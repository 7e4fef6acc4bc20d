// Writes to what the tape cannot make again, while others depend on it: whichever is less is kept,
// the old bytes or what depends on them, and nothing after an error.

#include <torch/library.h>
#include <torch/torch.h>

#include "tape/value.h"
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
Tensor fail_with_result(const Tensor& x, Tensor& state) {
  fail_within(state);
  return x + state;
}

// Moves a state towards the mean of what it is given, and scales by it.
Tensor scale_by_moving_mean(const Tensor& x, Tensor& state) {
  state.mul_(0.5).add_(x.mean());
  return x * state;
}

TORCH_LIBRARY(reprise_writes_test, library) {
  library.def("scale_by_moving_mean(Tensor x, Tensor(a!) state) -> Tensor");
  library.def("fail_with_result(Tensor x, Tensor(a!) state) -> Tensor");
  library.def("fail_before(Tensor(a!) x) -> ()");
  library.def("fail_within(Tensor(a!) x) -> ()");
}
TORCH_LIBRARY_IMPL(reprise_writes_test, CPU, library) {
  library.impl("scale_by_moving_mean", scale_by_moving_mean);
  library.impl("fail_with_result", fail_with_result);
  library.impl("fail_before", fail_before);
  library.impl("fail_within", fail_within);
}

Tensor call(const char* name, torch::jit::Stack stack) {
  c10::Dispatcher::singleton().findSchemaOrThrow(name, "").callBoxed(stack);
  return stack.empty() ? Tensor() : stack[0].toTensor();
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

// What an operator makes while it changes a small state, as observers of quantization do, is
// recomputed with the state as it was.
TEST(Writes, ToASmallStateLeaveTheResultsDroppable) {
  const at::NoGradGuard no_grad;
  const Tensor x = at::randn({64, 128}), on = at::ones({1}, at::kLong);
  Tensor state, least, most, scale, zero_point;
  const auto reset = [&] {
    state = at::ones({1});
    least = at::zeros({1});
    most = at::ones({1});
    scale = at::ones({1});
    zero_point = at::zeros({1}, at::kInt);
  };
  const auto f = [&] {
    Tensors made{x};
    for (int i = 0; i < 8; ++i) {
      const Tensor scaled = call("reprise_writes_test::scale_by_moving_mean", {made.back(), state});
      made.push_back(std::get<0>(at::_fused_moving_avg_obs_fq_helper(
          scaled + i, on, on, least, most, scale, zero_point, 0.1, 0, 255, 0)));
    }
    for (const Tensor& small : {state, least, most, scale, zero_point}) made.push_back(small);
    return made;
  };
  reset();
  const Tensors plain = f();
  for (const BudgetOptions& options : {BudgetOptions(), paranoid()}) {
    reset();
    // Not all of the nine tensors of 32 KiB that are held fit.
    MemoryBudget budget(options.paranoid ? GiB(64) : live_bytes() + KiB(180), options);
    auto step = budget.step();
    const Tensors mine = f();
    for (std::size_t i = 0; i < plain.size(); ++i) {
      EXPECT_TRUE(mine[i].equal(plain[i])) << i;
    }
    EXPECT_GT(budget.report().replayed, 0);
  }
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
  EXPECT_THROW(call("reprise_writes_test::fail_before", {products.scale}), std::runtime_error);
  EXPECT_EQ(live_bytes(), before);
  step.finish();
}

TEST(Writes, ToASmallStateThatFailLeaveNoCopy) {
  const Tensor x = at::randn({64, 128}), state = at::ones({64, 1});
  MemoryBudget budget(GiB(64));
  auto step = budget.step();
  const Tensor made = x.sin();
  const Bytes before = live_bytes();
  const std::int64_t records = tape::living_records();
  for (int i = 0; i < 3; ++i) {
    EXPECT_THROW(call("reprise_writes_test::fail_with_result", {made, state}), std::runtime_error);
  }
  EXPECT_EQ(live_bytes(), before);
  // The tape has records of the state itself.
  EXPECT_LE(tape::living_records(), records + 2);
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
    EXPECT_THROW(call("reprise_writes_test::fail_within", {products.scale}), std::runtime_error);
    EXPECT_THROW(call("reprise_writes_test::fail_within", {made}), std::runtime_error);
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
