// Early stop: what of the function runs again, who decides, and that the decision is made in
// forward.
#include "tests/region/testing.h"

#include <chrono>
#include <thread>

namespace reprise {
namespace {

using namespace reprise::testing;

// How often the tail of a function, after its last save, runs in one forward and backward.
int tail_runs(const CheckpointOptions& options,
              const std::function<at::Tensor(const at::Tensor&)>& tail) {
  int runs = 0;
  const at::Tensor x = leaf({});
  const at::Tensor y = checkpoint(
      options,
      [&](const at::Tensor& t) {
        const at::Tensor inner = t.sin().exp();
        ++runs;
        return tail(inner);
      },
      x);
  y.backward();
  EXPECT_TRUE(same_bits(take_gradients({x}), {torch::autograd::grad({x.sin().exp()}, {x})[0]}));
  return runs;
}

// exp saves its result, so that nothing at all is left to be done after the save.
at::Tensor light_tail(const at::Tensor& t) { return t; }
at::Tensor heavy_tail(const at::Tensor& t) {
  std::this_thread::sleep_for(std::chrono::milliseconds(2));
  return t.clone();
}

TEST(CheckpointEarlyStop, AlwaysSkipsTheTailAndNeverRunsIt) {
  EXPECT_EQ(tail_runs(with_early_stop(EarlyStop::kAlways), light_tail), 1);
  EXPECT_EQ(tail_runs(with_early_stop(EarlyStop::kAlways), heavy_tail), 1);
  EXPECT_EQ(tail_runs(with_early_stop(EarlyStop::kNever), light_tail), 2);
  EXPECT_EQ(tail_runs(with_early_stop(EarlyStop::kNever), heavy_tail), 2);
}

TEST(CheckpointEarlyStop, WhenCheaperSkipsAHeavyTailAndRunsALightOne) {
  EXPECT_EQ(CheckpointOptions().early_stop, EarlyStop::kWhenCheaper);
  EXPECT_EQ(tail_runs({}, heavy_tail), 1);
  // A light tail looks heavy when the machine takes the thread away in the middle of it.
  int ran = 0;
  for (int i = 0; i < 50; ++i) {
    ran += tail_runs({}, light_tail) == 2;
  }
  EXPECT_GT(ran, 0);
}

TEST(CheckpointEarlyStop, AScopeOverridesTheOptionAndTheInnermostScopeWins) {
  {
    const EarlyStopScope scope(EarlyStop::kNever);
    EXPECT_EQ(tail_runs({}, heavy_tail), 2);
    EXPECT_EQ(tail_runs(with_early_stop(EarlyStop::kAlways), light_tail), 2);
    {
      const EarlyStopScope inner(EarlyStop::kAlways);
      EXPECT_EQ(tail_runs(with_early_stop(EarlyStop::kNever), light_tail), 1);
    }
    EXPECT_EQ(tail_runs(with_early_stop(EarlyStop::kAlways), light_tail), 2);
  }
  {
    const EarlyStopScope scope(EarlyStop::kAlways);
    EXPECT_EQ(tail_runs(with_early_stop(EarlyStop::kNever), light_tail), 1);
  }
  EXPECT_EQ(tail_runs(with_early_stop(EarlyStop::kNever), light_tail), 2);
}

TEST(CheckpointEarlyStop, AScopeCountsWhereForwardRunsAndNotWhereBackwardDoes) {
  const at::Tensor x = leaf({});
  int runs = 0;
  const auto f = [&](const at::Tensor& t) {
    const at::Tensor inner = t.sin().cos();
    ++runs;
    return inner.clone();
  };
  at::Tensor y;
  {
    const EarlyStopScope scope(EarlyStop::kNever);
    y = checkpoint(with_early_stop(EarlyStop::kAlways), f, x);
  }
  y.backward();
  EXPECT_EQ(runs, 2);
  runs = 0;
  y = checkpoint(with_early_stop(EarlyStop::kAlways), f, x);
  {
    const EarlyStopScope scope(EarlyStop::kNever);
    y.backward();
  }
  EXPECT_EQ(runs, 1);
}

TEST(CheckpointEarlyStop, TheFunctionStopsBeforeTheKernelWhereOnlyItsInputIsSaved) {
  // sin saves its input before it computes: the function is entered again, the kernel is not.
  const at::Tensor x = leaf({100});
  const auto allocations_and_runs = [&](EarlyStop stop) {
    int runs = 0;
    const at::Tensor y = checkpoint(with_early_stop(stop),
                                    counted(runs, [](const at::Tensor& t) { return t.sin(); }), x);
    const at::Tensor gradient = torch::ones({100});
    const std::int64_t before = allocation_count();
    y.backward(gradient);
    const std::int64_t made = allocation_count() - before;
    take_gradients({x});
    return std::pair(made, runs);
  };
  allocations_and_runs(EarlyStop::kNever);  // whatever is allocated at first use only
  const auto [always, runs_always] = allocations_and_runs(EarlyStop::kAlways);
  const auto [never, runs_never] = allocations_and_runs(EarlyStop::kNever);
  EXPECT_EQ(runs_always, 2);
  EXPECT_EQ(runs_never, 2);
  EXPECT_EQ(never - always, 1);
}

TEST(CheckpointEarlyStop, AFunctionThatSavesNothingIsNeverRunAgain) {
  for (const EarlyStop stop : {EarlyStop::kNever, EarlyStop::kWhenCheaper, EarlyStop::kAlways}) {
    const at::Tensor x = leaf({});
    int runs = 0;
    checkpoint(with_early_stop(stop), counted(runs, [](const at::Tensor& t) { return t.clone(); }),
               x)
        .backward();
    EXPECT_EQ(runs, 1);
    EXPECT_TRUE(same_bits(take_gradients({x}), {torch::ones({})}));
  }
}

TEST(CheckpointEarlyStop, StopsAtTheLastTensorThatSomebodyStillWaitsFor) {
  // The second result is dropped, and what was saved for it with it.
  const at::Tensor x = leaf({});
  int tails = 0;
  const auto f = [&](const at::Tensor& t) {
    const at::Tensor first = t.sin().cos();
    if (is_recomputing()) ++tails;
    return std::pair(first, first.exp().tanh());
  };
  {
    auto [first, second] = checkpoint(with_early_stop(EarlyStop::kAlways), f, x);
    second = at::Tensor();
    first.backward();
  }
  EXPECT_EQ(tails, 0);
}

TEST(CheckpointEarlyStop, AnExceptionOfTheFunctionsOwnIsNotTakenForAStop) {
  const at::Tensor x = leaf({});
  for (const EarlyStop stop : {EarlyStop::kNever, EarlyStop::kWhenCheaper, EarlyStop::kAlways}) {
    const at::Tensor y = checkpoint(
        with_early_stop(stop),
        [](const at::Tensor& t) {
          if (is_recomputing()) throw std::out_of_range("from the function");
          return t.sin().exp();
        },
        x);
    EXPECT_EQ(error_of<std::out_of_range>([&] { y.backward(); }), "from the function");
  }
}

TEST(CheckpointEarlyStop, AFunctionThatCatchesEverythingCannotSpoilTheStop) {
  const at::Tensor x = leaf({});
  const auto f = [](const at::Tensor& t) {
    at::Tensor y = t.sin().exp();
    try {
      y = y.sin();
    } catch (...) {
      y = at::Tensor();
    }
    return y.defined() ? y * 1 : t;
  };
  for (const EarlyStop stop : {EarlyStop::kNever, EarlyStop::kWhenCheaper, EarlyStop::kAlways}) {
    EXPECT_TRUE(
        same_bits(gradients_of([&] { return checkpoint(with_early_stop(stop), f, x); }, {x}),
                  gradients_of([&] { return f(x); }, {x})));
  }
}

}  // namespace
}  // namespace reprise
