// Threads that work for no step beside one that does: room is made for what they allocate, they are
// never refused, and what found no room is refused to the step.

#include <ATen/Parallel.h>
#include <ATen/TensorIterator.h>
#include <ATen/ThreadLocalState.h>
#include <gmock/gmock.h>
#include <sys/wait.h>
#include <torch/library.h>
#include <torch/torch.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <functional>
#include <future>
#include <mutex>
#include <optional>
#include <thread>

#include "libtorch/memory/memory_limit.h"
#include "tests/tape/testing.h"

namespace reprise {
namespace {

using at::Tensor;
using ::testing::HasSubstr;
using testing::leaf;
using testing::same_bits;
using testing::Tensors;

// What `f` throws on a thread of its own, which knows nothing of steps; empty: nothing.
std::string error_elsewhere(const std::function<void()>& f) {
  std::string text;
  std::thread([&] {
    try {
      f();
    } catch (const std::exception& error) {
      text = error.what();
    }
  }).join();
  return text;
}

Tensor new_megabytes(int count) { return at::empty({count * 250'000}); }

// A kernel that keeps what a thread of its own has allocated, and writes to what others have read:
// it runs under the lock, which is lent meanwhile.
Tensor kept_of_kernel;
void allocating_in_place(Tensor& x) {
  std::thread([] { kept_of_kernel = new_megabytes(4); }).join();
  float* const data = x.mutable_data_ptr<float>();
  for (std::int64_t i = 0; i < x.numel(); ++i) data[i] += 1;
}

// A kernel of which the workers of a parallel loop allocate.
std::atomic<int> allocating_workers{0};
Tensor allocating_in_parallel(const Tensor& x) {
  Tensor result = at::empty_like(x);
  auto iterator = at::TensorIteratorConfig().add_output(result).add_const_input(x).build();
  // Two dimensions at a time.
  const auto copy = [](char** data, const std::int64_t* strides, std::int64_t columns,
                       std::int64_t rows) {
    if (at::get_thread_num() != 0) {
      new_megabytes(4);
      ++allocating_workers;
    }
    for (std::int64_t i = 0; i < rows * columns; ++i) {
      const std::int64_t row = i / columns, column = i % columns;
      std::memcpy(data[0] + row * strides[2] + column * strides[0],
                  data[1] + row * strides[3] + column * strides[1], sizeof(float));
    }
  };
  iterator.for_each(copy);
  return result;
}

TORCH_LIBRARY(reprise_other_threads_test, library) {
  library.def("allocating_(Tensor(a!) x) -> ()", allocating_in_place);
  library.def("parallel(Tensor x) -> Tensor");
}
TORCH_LIBRARY_IMPL(reprise_other_threads_test, CPU, library) {
  library.impl("parallel", allocating_in_parallel);
}

void run_named(const char* name, const Tensor& x) {
  torch::jit::Stack stack{x};
  c10::Dispatcher::singleton().findSchemaOrThrow(name, "").callBoxed(stack);
}

TEST(TapeOtherThreads, AThreadWithoutAStepIsNeverRefusedAndTheStepIs) {
  const Bytes limit = live_bytes() + MB(2);
  MemoryBudget budget(limit, {.plan_repeated_steps = false});
  auto step = budget.step();
  const Tensor root = at::ones({100'000});
  Tensor theirs;
  EXPECT_EQ(error_elsewhere([&] { theirs = new_megabytes(4); }), "");
  EXPECT_GE(live_bytes(), limit + MB(2));
  const std::string text = testing::error_of<BudgetError>([&] { at::ones({1000}); });
  EXPECT_THAT(text, HasSubstr("4.0 MB held by threads outside the step"));
  // As soon as it is free the step goes on.
  theirs.reset();
  EXPECT_NO_THROW(at::ones({1000}));
  step.finish();
  EXPECT_GE(budget.report().other_threads, MB(4));
  EXPECT_GE(budget.report().peak, limit + MB(2));
}

TEST(TapeOtherThreads, MemoryOfAStepThatHasEndedCountsForTheNextOne) {
  MemoryBudget budget(live_bytes() + MB(3), {.plan_repeated_steps = false});
  Tensor theirs;
  {
    auto step = budget.step();
    EXPECT_EQ(error_elsewhere([&] { theirs = new_megabytes(1); }), "");
  }
  {
    auto step = budget.step();
    EXPECT_THAT(testing::error_of<BudgetError>([&] { new_megabytes(3); }),
                HasSubstr("1.0 MB held by threads outside the step"));
    // What the step has read is the step's input.
    const Tensor read = theirs * 2;
    EXPECT_THAT(testing::error_of<BudgetError>([&] { new_megabytes(3); }),
                ::testing::Not(HasSubstr("held by threads outside the step")));
  }
  theirs.reset();
  {
    auto step = budget.step();
    step.finish();
  }
  EXPECT_LT(budget.report().other_threads, KB(1));
}

TEST(TapeOtherThreads, ValuesAreDroppedForThem) {
  const Tensor x = leaf({64, 64});
  const auto forward = [&] {
    Tensor y = x;
    for (int i = 0; i < 40; ++i) y = y.sin();
    return y;
  };
  const Tensors plain = testing::plain_gradients(forward, {x});
  const Bytes limit = live_bytes() + KiB(16 * 50);
  MemoryBudget budget(limit, {.plan_repeated_steps = false});
  testing::take_gradients({x});
  auto step = budget.step();
  const Tensor loss = forward().sum();
  EXPECT_EQ(budget.report().dropped, 0);
  EXPECT_EQ(error_elsewhere([] {
              const Tensor theirs = at::ones({64, 64 * 30});
              EXPECT_EQ(theirs.sum().item<float>(), 64 * 64 * 30);
            }),
            "");
  EXPECT_GE(budget.report().dropped, 20);
  loss.backward();
  step.finish();
  EXPECT_LE(budget.report().peak, limit);
  EXPECT_TRUE(same_bits(testing::take_gradients({x}), plain));
}

TEST(TapeOtherThreads, AThreadOfAKernelIsNotRefusedWhileItsStepWaitsForIt) {
  const Bytes limit = live_bytes() + MB(2);
  MemoryBudget budget(limit, {.plan_repeated_steps = false});
  auto step = budget.step();
  const Tensor x = at::ones({1000}).sin();
  const Tensor before = x.exp();  // has read what is overwritten
  EXPECT_NO_THROW(run_named("reprise_other_threads_test::allocating_", x));
  EXPECT_THAT(testing::error_of<BudgetError>([&] { at::ones({1000}); }),
              HasSubstr("held by threads outside the step"));
  kept_of_kernel.reset();
  EXPECT_TRUE(same_bits(x, at::ones({1000}).sin() + 1));
  EXPECT_TRUE(same_bits(before, at::ones({1000}).sin().exp()));
  step.finish();
}

TEST(TapeOtherThreads, WorkersOfAParallelLoopAreNotRefused) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "the thread sanitizer does not see the barriers of OpenMP";
#endif
  const int threads = at::get_num_threads();
  at::set_num_threads(2);
  allocating_workers = 0;
  const Bytes limit = live_bytes() + MB(4);
  MemoryBudget budget(limit, {.plan_repeated_steps = false});
  {
    auto step = budget.step();
    const Tensor x = at::ones({200'000}).sin();
    EXPECT_NO_THROW(run_named("reprise_other_threads_test::parallel", x));
    EXPECT_NO_THROW(x.exp());  // the workers' memory is free again
    step.finish();
  }
  at::set_num_threads(threads);
  EXPECT_GE(allocating_workers, 1);
  EXPECT_GE(budget.report().other_threads, MB(4));
}

TEST(TapeOtherThreads, AThreadThatTookTheStateAlongIsRefused) {
  MemoryBudget budget(live_bytes() + MB(2), {.plan_repeated_steps = false});
  auto step = budget.step();
  const at::ThreadLocalState state;
  EXPECT_THAT(error_elsewhere([&] {
                const at::ThreadLocalStateGuard guard(state);
                new_megabytes(4);
              }),
              HasSubstr("memory budget of"));
  EXPECT_EQ(error_elsewhere([&] { new_megabytes(4); }), "");
  step.finish();
}

TEST(TapeOtherThreads, AStepOfAnotherBudgetIsNotRefusedForThisOne) {
  MemoryBudget small(live_bytes() + MB(2), {.plan_repeated_steps = false});
  auto step = small.step();
  EXPECT_EQ(error_elsewhere([] {
              MemoryBudget large(live_bytes() + MB(20), {.plan_repeated_steps = false});
              auto mine = large.step();
              new_megabytes(4);
              EXPECT_THROW(new_megabytes(40), BudgetError);
              mine.finish();
            }),
            "");
  EXPECT_THROW(new_megabytes(4), BudgetError);
  {
    // Nested steps are the thread's own, both of them.
    MemoryBudget large(live_bytes() + MB(20), {.plan_repeated_steps = false});
    auto inner = large.step();
    EXPECT_THROW(new_megabytes(4), BudgetError);
    inner.finish();
  }
  step.finish();
}

TEST(TapeOtherThreads, AStepThatIsFinishedOnAnotherThreadIsRefusedThere) {
  MemoryBudget budget(live_bytes() + MB(4), {.plan_repeated_steps = false});
  std::optional<MemoryBudget::Step> step(budget.step());
  Tensors held;
  for (int i = 0; i < 6; ++i) held.push_back((held.empty() ? at::ones({250'000}) : held[0]).sin());
  const StepReport report = budget.report();
  EXPECT_GE(report.dropped + report.packed, 2);
  EXPECT_THAT(error_elsewhere([&] { step->finish(); }), HasSubstr("memory budget of"));
  held.clear();
  step->finish();
  EXPECT_LE(budget.report().peak, budget.limit());
}

// Data loaders fork their workers.
TEST(TapeOtherThreads, AForkedProcessHasNoLimitWhoeverHadTheLockAndReadsWhatWasDropped) {
  const Tensor x = leaf({1 << 18});
  MemoryBudget budget(live_bytes() + MB(3));
  auto step = budget.step();
  const Tensor y = x.sin();
  Tensor more = y;
  for (int i = 0; i < 4; ++i) more = more.cos();
  ASSERT_GT(budget.report().dropped, 0);
  std::promise<void> is_locked, may_unlock;
  std::thread other([&] {
    const std::lock_guard<libtorch::LimitMutex> lock(libtorch::limit_mutex());
    is_locked.set_value();
    may_unlock.get_future().wait();
  });
  is_locked.get_future().wait();
  const pid_t child = fork();
  if (child == 0) {
    alarm(120);  // a child that waits for ever is ended
    try {
      const Tensor batch = new_megabytes(30);
      std::_Exit(at::equal(y, x.detach().sin()) ? 0 : 2);
    } catch (const std::exception& error) {
      std::fputs(error.what(), stderr);
      std::_Exit(1);
    }
  }
  may_unlock.set_value();
  other.join();
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_THROW(new_megabytes(30), BudgetError);
}

}  // namespace
}  // namespace reprise
