// What a guest language sets for the regions of a process (region/foreign.h), played by C++ functions; and regions whose
// function the caller runs (region/open_region.h).
#include "region/foreign.h"

#include "region/open_region.h"
#include "tests/region/testing.h"

namespace reprise {
namespace {

using namespace reprise::testing;
using region::Mismatch;

struct LeftByGuest final : std::exception {};
struct GuestsError final : std::runtime_error {
  using std::runtime_error::runtime_error;
};

class ForeignRegions : public ::testing::Test {
 protected:
  void SetUp() override { asked = thrown = unlocked = 0; }
  void TearDown() override { region::foreign() = before_; }

  // The guest's functions have no state of their own.
  inline static int asked, thrown, unlocked;
  static void leave() {
    ++thrown;
    throw LeftByGuest();
  }

 private:
  const region::Foreign before_ = region::foreign();
};

at::Tensor plain(const at::Tensor& x) { return x.sin().cos() * 1; }

::testing::AssertionResult is_plain_with_early_stop(
    const std::function<at::Tensor(const at::Tensor&)>& f) {
  const at::Tensor x = leaf();
  const auto run = [&] { return checkpoint(with_early_stop(EarlyStop::kAlways), f, x); };
  return same_bits(gradients_of(run, {x}), gradients_of([&] { return plain(x); }, {x}));
}

TEST_F(ForeignRegions, AnEarlyStopLeavesTheFunctionByTheGuestsException) {
  region::foreign().leave = &leave;
  int left = 0, tails = 0;
  EXPECT_TRUE(is_plain_with_early_stop([&](const at::Tensor& x) {
    try {
      const at::Tensor y = x.sin().cos();
      ++tails;
      return y * 1;
    } catch (const LeftByGuest&) {
      ++left;
      throw;
    }
  }));
  EXPECT_EQ(left, 1);
  EXPECT_EQ(tails, 1) << "the recomputation ran to its end";
}

TEST_F(ForeignRegions, WhatTheFunctionThrowsAtAnEarlyStopDoesNotMatter) {
  region::foreign().leave = &leave;
  EXPECT_TRUE(is_plain_with_early_stop([](const at::Tensor& x) {
    try {
      return plain(x);
    } catch (const LeftByGuest&) {
      throw std::runtime_error("something else");
    }
  }));
  EXPECT_EQ(thrown, 1);
}

// A long tail is left by the exception in any case, so either may be what ends the function.
TEST_F(ForeignRegions, AFunctionIsLeftAfterItsOperatorWhereTheGuestCan) {
  region::foreign().leave = &leave;
  region::foreign().leave_afterwards = [] { return ++asked > 0; };
  int operators = 0;
  EXPECT_TRUE(is_plain_with_early_stop([&](const at::Tensor& x) {
    const at::Tensor y = x.sin().cos();
    ++operators;
    if (asked > 0) throw LeftByGuest();
    return y * 1;
  }));
  EXPECT_EQ(asked + thrown, 1);
  EXPECT_EQ(operators, 1 + asked);
}

TEST_F(ForeignRegions, AFunctionIsLeftByTheExceptionWhereTheGuestCannotLeaveItAfterwards) {
  region::foreign().leave = &leave;
  region::foreign().leave_afterwards = [] { return false; };
  EXPECT_TRUE(is_plain_with_early_stop(plain));
  EXPECT_EQ(thrown, 1);
}

TEST_F(ForeignRegions, TheGuestsLockIsGivenBackWhileARecomputationMayBeWaitedFor) {
  region::foreign().unlock = [] {
    ++unlocked;
    return std::shared_ptr<void>(&unlocked, [](void*) { --unlocked; });
  };
  std::vector<int> during;
  const at::Tensor x = leaf();
  gradients_of(
      [&] {
        return checkpoint(
            [&](const at::Tensor& t) {
              during.push_back(unlocked);
              return plain(t);
            },
            x);
      },
      {x});
  EXPECT_EQ(during, (std::vector{0, 1}));
  EXPECT_EQ(unlocked, 0);
}

TEST_F(ForeignRegions, AGuestWithoutALockGivesNothingBack) {
  region::foreign().unlock = [] { return std::shared_ptr<void>(); };
  EXPECT_TRUE(is_plain_with_early_stop(plain));
}

// What the guest is told, before it throws its own error in place of the library's.
struct Told {
  Mismatch::Kind kind = Mismatch::Kind::kReadTwice;
  std::size_t before = 0, now = 0, differences = 0;
};
Told told;

void report(const detail::RegionCall&, const Mismatch& mismatch) {
  told = {mismatch.kind, mismatch.saved_before, mismatch.saved_now, mismatch.differences.size()};
  throw GuestsError(mismatch.text);
}

template <class F, class G>
Told told_of(const CheckpointOptions& options, F first, G again) {
  const at::Tensor x = leaf({1});
  const auto f = [&](const at::Tensor& t) { return is_recomputing() ? again(t) : first(t); };
  EXPECT_NE(error_of<GuestsError>([&] { checkpoint(options, f, x).sum().backward(); }), "");
  return told;
}

TEST_F(ForeignRegions, TheGuestIsToldWhatARecomputationGotWrongAndThrowsItsOwnError) {
  region::foreign().report = &report;
  const auto saves_two = [](const at::Tensor& x) { return x.sin().exp(); };
  const auto saves_three = [](const at::Tensor& x) { return x.sin().exp().sin(); };
  const auto widens = [](const at::Tensor& x) { return x.sin() * torch::ones({2}); };
  const CheckpointOptions to_the_end = with_early_stop(EarlyStop::kNever);

  const Told fewer = told_of(to_the_end, saves_three, saves_two);
  EXPECT_EQ(fewer.kind, Mismatch::Kind::kFewerSaved);
  EXPECT_EQ(std::pair(fewer.before, fewer.now), std::pair(std::size_t{3}, std::size_t{2}));
  const Told more = told_of(to_the_end, saves_two, saves_three);
  EXPECT_EQ(more.kind, Mismatch::Kind::kMoreSaved);
  EXPECT_EQ(std::pair(more.before, more.now), std::pair(std::size_t{2}, std::size_t{3}));
  const Told other = told_of({}, saves_two, widens);
  EXPECT_EQ(other.kind, Mismatch::Kind::kOtherMetadata);
  EXPECT_EQ(other.differences, 1);

  const at::Tensor x = leaf();
  const at::Tensor y = checkpoint(reentrant(), plain, x);
  error_of<GuestsError>([&] { torch::autograd::grad({y.sum()}, {x}); });
  EXPECT_EQ(told.kind, Mismatch::Kind::kNotAccumulating);
}

TEST_F(ForeignRegions, TheLibrarysErrorFollowsWhereTheGuestThrowsNone) {
  region::foreign().report = [](const detail::RegionCall&, const Mismatch&) { ++asked; };
  const at::Tensor x = leaf();
  const auto f = [](const at::Tensor& t) { return is_recomputing() ? t.sin() : t.sin().exp(); };
  EXPECT_TRUE(contains(error_of<DeterminismError>([&] { checkpoint(f, x).sum().backward(); }),
                       "a different number of tensors was saved"));
  EXPECT_EQ(asked, 1);
}

TEST_F(ForeignRegions, TheGuestWarnsOfAReentrantRegionWithoutGradients) {
  const auto run = [] { checkpoint(reentrant(), plain, torch::ones({2})); };
  WarningLog log;
  run();
  EXPECT_EQ(log.texts.size(), 1);
  region::foreign().warn_of_no_gradient = [] { ++asked; };
  run();
  EXPECT_EQ(log.texts.size(), 1);
  EXPECT_EQ(asked, 1);
}

// Dropout and a product of the argument, which the caller runs in forward.
class OpenCall final : public detail::RegionCall {
 public:
  explicit OpenCall(at::Tensor x) : x_(std::move(x)) {}
  static at::Tensor run(const at::Tensor& x) { return dropout(x.sin()) * x.exp(); }

  void run_first() override { ADD_FAILURE() << "the caller runs the function in forward"; }
  void run_again(detail::Tensors& tensors, detail::Tensors*) override {
    ++runs_again;
    run(tensors[0]);
  }
  void visit_arguments(const std::function<void(at::Tensor&)>& f) override { f(x_); }
  void visit_result(const std::function<void(at::Tensor&)>&) override {}
  void drop_result() override {}

  int runs_again = 0;

 private:
  at::Tensor x_;
};

TEST(OpenRegion, BackwardRunsTheFunctionAgainThatTheCallerRanBetween) {
  const at::Tensor x = leaf();
  const auto call = std::make_shared<OpenCall>(x);
  const Tensors mine = gradients_of(
      [&] {
        region::OpenRegion open({}, call);
        const at::Tensor y = OpenCall::run(x);
        EXPECT_TRUE(is_checkpointing());
        open.end();
        EXPECT_FALSE(is_checkpointing());
        return y;
      },
      {x});
  EXPECT_TRUE(same_bits(mine, gradients_of([&] { return OpenCall::run(x); }, {x})));
  EXPECT_EQ(call->runs_again, 1);
}

TEST(OpenRegion, WithoutAnEndNothingStaysInForceAndTheCallDiesWithItsGraph) {
  const at::Tensor x = leaf();
  auto call = std::make_shared<OpenCall>(x);
  const std::weak_ptr<OpenCall> watch = call;
  try {
    region::OpenRegion open({}, std::move(call));
    OpenCall::run(x);
    throw GuestsError("in forward");
  } catch (const GuestsError&) {
    EXPECT_FALSE(is_checkpointing());
  }
  EXPECT_TRUE(watch.expired());
  const Tensors after = gradients_of([&] { return plain(x); }, {x});
  EXPECT_TRUE(same_bits(after, {x.detach().sin().sin() * -1 * x.detach().cos()}));
}

}  // namespace
}  // namespace reprise
