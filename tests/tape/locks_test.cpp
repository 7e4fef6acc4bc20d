// What the tape's lock must not stand in the way of: storages that die on other threads.

#include <torch/torch.h>

#include <thread>

#include "tests/tape/testing.h"

namespace reprise {
namespace {

using at::Tensor;
using testing::same_bits;
using testing::Tensors;

TEST(TapeLocks, AStepEndsWhileAnotherThreadLetsGoOfWhatItMade) {
  const Bytes before = live_bytes();
  MemoryBudget budget(GiB(64), testing::paranoid());
  for (int round = 0; round < 200; ++round) {
    auto step = budget.step();
    const Tensor x = at::full({4}, 0.5);
    Tensors mine, theirs;
    for (int i = 0; i < 20; ++i) {
      mine.push_back(x.sin());
      theirs.push_back(mine.back().exp());
    }
    std::atomic<bool> go{false};
    std::thread other([&] {
      while (!go) std::this_thread::yield();
      theirs.clear();
    });
    go = true;
    step.finish();
    other.join();
    for (const Tensor& tensor : mine) ASSERT_TRUE(same_bits(tensor, x.sin()));
  }
  EXPECT_EQ(live_bytes(), before);
}

}  // namespace
}  // namespace reprise
