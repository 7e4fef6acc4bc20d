// A failure of malloc inside of a step, which has bytes to give up: processes of their own run with
// an address space that does not suffice.

#include <gtest/gtest.h>
#include <malloc.h>
#include <sys/resource.h>
#include <torch/torch.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>
#include <thread>

#include "tests/tape/testing.h"

namespace reprise {
namespace {

using at::Tensor;
using testing::leaf;
using testing::same_bits;
using testing::Tensors;

void start_small() {
  at::set_num_threads(1);
  // What is freed is the system's again.
  mallopt(M_MMAP_THRESHOLD, 128 << 10);
  // And no thread has address space of its own.
  mallopt(M_ARENA_MAX, 1);
}

// From here on the process gets no more than that many bytes of address space.
void leave_room_for(Bytes bytes) {
  std::int64_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  const auto most = static_cast<rlim_t>(pages * 4096 + bytes.count);
  const rlimit limit{most, most};
  if (setrlimit(RLIMIT_AS, &limit) != 0) std::_Exit(2);
}

void require_in_child(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "not so: %s\n", what);
  std::_Exit(1);
}

std::string text_thrown_by(const std::function<void()>& f) {
  try {
    f();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

class TapeExhaustedMemory : public ::testing::Test {
 protected:
  void SetUp() override {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    GTEST_SKIP() << "sanitizers reserve address space of their own";
#endif
    // A process that has none of this one's threads.
    GTEST_FLAG_SET(death_test_style, "threadsafe");
  }
};

// 48 results of a megabyte each.
struct SineChain {
  Tensor x = leaf({512, 512});
  Tensor operator()() const {
    Tensor y = x;
    for (int i = 0; i < 48; ++i) y = y.sin();
    return y;
  }
};

TEST_F(TapeExhaustedMemory, ValuesAreDroppedBeforeItBecomesAnError) {
  const auto run = [] {
    start_small();
    const SineChain chain;
    const Tensors plain = testing::plain_gradients(chain, {chain.x});
    leave_room_for(MiB(20));
    require_in_child(!text_thrown_by([&] { chain(); }).empty(), "the plain step does not fit");
    MemoryBudget budget(GiB(64), {.plan_repeated_steps = false});
    for (int i = 0; i < 3; ++i) {
      const Tensors mine = testing::gradients_under(budget, chain, {chain.x});
      require_in_child(static_cast<bool>(same_bits(mine, plain)),
                       "the gradients are those of the plain step");
      require_in_child(budget.report().dropped > 0, "values were dropped");
    }
    std::_Exit(0);
  };
  EXPECT_EXIT(run(), ::testing::ExitedWithCode(0), "");
}

TEST_F(TapeExhaustedMemory, AThreadOutsideOfTheStepIsHelpedAsWell) {
  const auto run = [] {
    start_small();
    const SineChain chain;
    const Tensors plain = testing::plain_gradients(chain, {chain.x});
    MemoryBudget budget(GiB(64), {.plan_repeated_steps = false});
    testing::take_gradients({chain.x});
    auto step = budget.step();
    const Tensor loss = chain().sum();
    std::thread([&] {
      leave_room_for(MiB(1));
      require_in_child(text_thrown_by([] { at::empty({(30 << 20) / 4}); }).empty(),
                       "a thread gets its memory");
    }).join();
    require_in_child(budget.report().dropped > 0, "values were dropped");
    loss.backward();
    step.finish();
    require_in_child(static_cast<bool>(same_bits(testing::take_gradients({chain.x}), plain)),
                     "the gradients");
    std::_Exit(0);
  };
  EXPECT_EXIT(run(), ::testing::ExitedWithCode(0), "");
}

TEST_F(TapeExhaustedMemory, WhereNothingCanBeDroppedLibTorchsOwnErrorGoesOn) {
  const auto run = [] {
    start_small();
    const SineChain chain;
    const Tensors plain = testing::plain_gradients(chain, {chain.x});
    leave_room_for(MiB(100));
    MemoryBudget budget(GiB(64), {.plan_repeated_steps = false});
    testing::take_gradients({chain.x});
    auto step = budget.step();
    const Tensor loss = chain().sum();
    const std::string text = text_thrown_by([] { at::empty({(std::int64_t{1} << 33) / 4}); });
    require_in_child(text.find("you tried to allocate 8589934592 bytes") != std::string::npos,
                     text.c_str());
    require_in_child(budget.report().dropped > 40, "everything was tried");
    loss.backward();
    step.finish();
    require_in_child(static_cast<bool>(same_bits(testing::take_gradients({chain.x}), plain)),
                     "the gradients");
    std::_Exit(0);
  };
  EXPECT_EXIT(run(), ::testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace reprise
