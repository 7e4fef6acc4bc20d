// A store in a process that was forked from the one that made it.
#include <reprise/budget.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>

#include "tests/store/testing.h"

namespace reprise {
namespace {

using namespace reprise::testing;

void require_in_child(bool holds, const std::string& what) {
  if (holds) return;
  std::fprintf(stderr, "not so: %s\n", what.c_str());
  std::_Exit(1);
}

// In a process of its own, which has no threads but those of the store.
class ForkedStore : public ::testing::Test {
 protected:
  void SetUp() override { GTEST_FLAG_SET(death_test_style, "threadsafe"); }

  static void fork_and_wait(const std::function<void()>& in_child) {
    const pid_t child = fork();
    if (child == 0) {
      alarm(120);  // a child that waits for ever is ended
      in_child();
      std::_Exit(0);
    }
    int status = 0;
    require_in_child(waitpid(child, &status, 0) == child && status == 0, "the child ends well");
  }
};

TEST_F(ForkedStore, ADiskStoreSaysThatItIsTheParentsAndTheParentsGoesOn) {
  const auto run = [] {
    at::set_num_threads(1);
    auto store = disk_store(small_disk());
    const at::Tensor value = torch::arange(200'000);
    auto parked = store->park(value);
    store->flush();
    const std::string parent = std::to_string(getpid());
    fork_and_wait([&] {
      const std::string expected = "was forked from process " + parent +
                                   ", which has the threads of the store and a file in ";
      const std::string remedy = "make a disk_store() in each process, after the fork";
      for (const auto& f : {std::function<void()>([&] { parked->load(); }),
                            std::function<void()>([&] { store->park(value); }),
                            std::function<void()>([&] { store->flush(); })}) {
        const std::string text = error_of<StoreError>(f);
        require_in_child(contains(text, expected) && contains(text, remedy), text);
      }
      require_in_child(!parked->prefetch(), "nothing is fetched ahead");
      parked.reset();
      store.reset();
      const auto own = disk_store(small_disk());
      const auto mine = own->park(value);
      own->flush();
      require_in_child(static_cast<bool>(same_bits(mine->load(), value)),
                       "a store of its own works");
    });
    require_in_child(static_cast<bool>(same_bits(parked->load(), value)),
                     "the parent has the value");
    std::_Exit(0);
  };
  EXPECT_EXIT(run(), ::testing::ExitedWithCode(0), "");
}

TEST_F(ForkedStore, ABudgetThatParksThereComputesAgain) {
  if (at::hasCUDA())
    GTEST_SKIP() << "seeds are also a CUDA device's, which a child of fork cannot use";
  const auto run = [] {
    at::set_num_threads(1);
    MemoryBudget budget(live_bytes() + MB(4),
                        {.store = disk_store(small_disk()), .plan_repeated_steps = false});
    const at::Tensor x = leaf({256, 256});
    const auto forward = [&] {
      at::Tensor y = x;
      for (int i = 0; i < 40; ++i) y = y.sin();
      return y;
    };
    const Tensors plain = gradients_of(forward, {x});
    const auto in_a_step = [&] {
      auto step = budget.step();
      const Tensors gradients = gradients_of(forward, {x});
      step.finish();
      return gradients;
    };
    fork_and_wait([&] {
      const WarningLog warnings;
      require_in_child(static_cast<bool>(same_bits(in_a_step(), plain)),
                       "the gradients in the child");
      require_in_child(budget.report().dropped > 0, "values were dropped");
    });
    require_in_child(static_cast<bool>(same_bits(in_a_step(), plain)),
                     "the gradients in the parent");
    std::_Exit(0);
  };
  EXPECT_EXIT(run(), ::testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace reprise
