// What the tape's lock must not stand in the way of: storages that die on other threads, kernels
// with threads of their own, and threads that hold a generator's lock.

#include <ATen/CPUGeneratorImpl.h>
#include <torch/library.h>
#include <torch/torch.h>

#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <set>
#include <thread>

#include "libtorch/operators/operator_interceptor.h"
#include "tests/tape/testing.h"

namespace reprise {
namespace {

using at::Tensor;
using testing::does_the_same_when_all_is_dropped;
using testing::leaf;
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

BudgetOptions verified() { return {.min_bytes = Bytes(1), .verify = true, .paranoid = true}; }

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
// Draws in ways that the tape sees, and in one that it does not.
std::uint32_t random_bits() {
  auto generator = at::detail::getDefaultCPUGenerator();
  const std::lock_guard<std::mutex> lock(generator.mutex());
  return generator.get<at::CPUGeneratorImpl>()->random();
}
Tensor noise_unseen(const Tensor& x) { return x + static_cast<double>(random_bits() % 1000); }
Tensor noise_mixed(const Tensor& x) {
  const Tensor first = at::rand_like(x);
  const double between = random_bits() % 1000;
  return x + first + between + at::empty_like(x).normal_();
}

TORCH_LIBRARY(reprise_locks_test, library) {
  const std::vector<at::Tag> draws{at::Tag::nondeterministic_seeded};
  library.def("threaded(Tensor x) -> Tensor");
  library.def("threaded_(Tensor(a!) x) -> ()");
  library.def("noise_unseen(Tensor x) -> Tensor", draws);
  library.def("noise_mixed(Tensor x) -> Tensor", draws);
}

TORCH_LIBRARY_IMPL(reprise_locks_test, CPU, library) {
  library.impl("threaded", threaded);
  library.impl("threaded_", threaded_in_place);
  library.impl("noise_unseen", noise_unseen);
  library.impl("noise_mixed", noise_mixed);
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

TEST(TapeLocks, AThreadThatAllocatesWithAGeneratorsLockHeldIsNotWaitedForInVain) {
  const Watchdog watchdog;
  const Tensor x = leaf({8, 8});
  MemoryBudget budget(GiB(64), verified());
  std::atomic<bool> done{false};
  std::thread other([&] {
    auto generator = at::detail::getDefaultCPUGenerator();
    while (!done) {
      {
        const std::lock_guard<std::mutex> lock(generator.mutex());
        for (int i = 0; i < 20; ++i) at::empty({64});
        std::this_thread::yield();
        for (int i = 0; i < 20; ++i) generator.get_state();
      }
      // A mutex is not fair: who takes it again at once can keep all others waiting for ever.
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
  });
  for (int i = 0; i < 100; ++i) {
    auto step = budget.step();
    Tensor y = at::dropout(x.sin(), 0.5, /*train=*/true);
    const Tensor masked = std::get<0>(at::native_dropout(y.exp(), 0.5, /*train=*/true));
    Tensor numbers = x.detach().cos();
    const Tensor before = numbers.exp(), also = numbers.sin();
    numbers.bernoulli_(0.5);  // what two others have read
    (masked + y * numbers + before + also).sum().backward();
    step.finish();
  }
  done = true;
  other.join();
}

// Draws of a step of which every read is a replay, beside a thread that draws numbers meanwhile:
// verified, and no number is drawn twice.
void draws_beside_another_thread(const std::function<void(MemoryBudget&)>& draw) {
  const Watchdog watchdog;
  const auto add_numbers = [](std::multiset<std::int64_t>& to) {
    const Tensor numbers = at::empty({4}, at::kLong).random_();
    for (int k = 0; k < 4; ++k) to.insert(numbers[k].item<std::int64_t>());
  };
  MemoryBudget budget(GiB(64), verified());
  std::atomic<bool> done{false};
  std::multiset<std::int64_t> drawn, theirs;
  std::thread other([&] {
    while (!done) add_numbers(theirs);
  });
  for (int i = 0; i < 100; ++i) {
    EXPECT_NO_THROW(draw(budget));
    add_numbers(drawn);
  }
  done = true;
  other.join();
  drawn.merge(theirs);
  for (const std::int64_t number : drawn) EXPECT_EQ(drawn.count(number), 1);
}

TEST(TapeLocks, DrawsWithoutAGeneratorArgumentAreNeitherSeenNorDisturbed) {
  const Tensor x = at::full({64, 64}, 2.);
  draws_beside_another_thread([&](MemoryBudget& budget) {
    auto step = budget.step();
    const auto [y, mask] = at::native_dropout(x, 0.5, /*train=*/true);
    EXPECT_TRUE(y.exp().equal((mask.to(at::kFloat) * 4).exp()));
    EXPECT_NO_THROW(y.sum());
    step.finish();
  });
}

TEST(TapeLocks, SoAreDrawsBelowAnotherInterceptor) {
  // Between the tape and the kernel another thread draws.
  struct Drawing final : libtorch::OperatorInterceptor {
    void intercept(libtorch::OperatorCall& call) override {
      const std::string& name = call.schema().name();
      if (name != "aten::native_dropout" && name.find("bernoulli") == std::string::npos) return;
      std::thread([] { at::rand({3}); }).join();
    }
  };
  const Tensor x = at::full({64, 64}, 2.);
  draws_beside_another_thread([&](MemoryBudget& budget) {
    const libtorch::OperatorInterceptorScope scope(std::make_shared<Drawing>());
    MemoryBudget outer(GiB(64), verified());
    auto around = outer.step();
    auto step = budget.step();
    const Tensor y = at::empty({64, 64}).bernoulli_(0.5) * x;
    const Tensor z = at::bernoulli(x / 4) + std::get<0>(at::native_dropout(x, 0.5, true));
    EXPECT_NO_THROW((y + z).sum());
    step.finish();
    around.finish();
  });
}

TEST(TapeLocks, OperatorsThatDrawUnseenDrawTheSameAgain) {
  for (const char* name : {"reprise_locks_test::noise_unseen", "reprise_locks_test::noise_mixed"}) {
    EXPECT_TRUE(does_the_same_when_all_is_dropped(
        [&] {
          const Tensor x = call(name, at::ones({4, 6}));
          const Tensor y = call(name, x.exp());
          return Tensors{x.sin() + y, y.cos(), at::rand({3})};
        },
        verified()));
  }
}

}  // namespace
}  // namespace reprise
