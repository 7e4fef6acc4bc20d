// What the tape's lock must not stand in the way of: storages that die on other threads, and
// kernels with threads of their own.

#include <torch/library.h>
#include <torch/torch.h>

#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <thread>

#include "tests/tape/testing.h"

namespace reprise {
namespace {

using at::Tensor;
using testing::does_the_same_when_all_is_dropped;
using testing::same_bits;
using testing::Tensors;

// A test that waits for ever is ended, and has failed.
class Watchdog {
 public:
  Watchdog()
      : thread_([this] {
          std::unique_lock<std::mutex> lock(mutex_);
          if (ended_.wait_for(lock, std::chrono::minutes(3), [this] { return is_over_; })) return;
          std::fputs("The test waits for ever\n", stderr);
          std::_Exit(1);
        }) {}
  ~Watchdog() {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      is_over_ = true;
    }
    ended_.notify_all();
    thread_.join();
  }
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

 private:
  std::mutex mutex_;
  std::condition_variable ended_;
  bool is_over_ = false;
  std::thread thread_;
};

// Allocates on a thread of its own.
Tensor threaded(const Tensor& x) {
  Tensor part;
  std::thread([&] { part = x.exp(); }).join();
  return part + x;
}
void threaded_in_place(Tensor& x) {
  Tensor part;
  std::thread([&] { part = x.exp(); }).join();
  x.add_(part);
}

TORCH_LIBRARY(reprise_locks_test, library) {
  library.def("threaded(Tensor x) -> Tensor");
  library.def("threaded_(Tensor(a!) x) -> ()");
}

TORCH_LIBRARY_IMPL(reprise_locks_test, CPU, library) {
  library.impl("threaded", threaded);
  library.impl("threaded_", threaded_in_place);
}

Tensor call(const char* name, const Tensor& x) {
  torch::jit::Stack stack{x};
  c10::Dispatcher::singleton().findSchemaOrThrow(name, "").callBoxed(stack);
  return stack.empty() ? Tensor() : stack[0].toTensor();
}

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

TEST(TapeLocks, KernelsThatAllocateOnThreadsOfTheirOwnAreRunAgain) {
  const Watchdog watchdog;
  EXPECT_TRUE(does_the_same_when_all_is_dropped([] {
    const Tensor x = at::randn({4, 6}).sin();
    const Tensor y = call("reprise_locks_test::threaded", x).cos();
    const Tensor z = call("reprise_locks_test::threaded", y * x);
    return Tensors{x + z, y.exp()};
  }));
}

TEST(TapeLocks, SoAreThoseThatWriteToWhatOthersHaveRead) {
  const Watchdog watchdog;
  EXPECT_TRUE(does_the_same_when_all_is_dropped([] {
    const Tensor x = at::randn({4, 6}).sin();
    const Tensor before = x.cos(), also = x.exp();
    call("reprise_locks_test::threaded_", x);
    return Tensors{before + also, x * 2};
  }));
}

}  // namespace
}  // namespace reprise
