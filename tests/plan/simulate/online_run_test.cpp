// Recorded steps that run again in arithmetic.
#include "plan/simulate/online_run.h"

#include <gtest/gtest.h>
#include "tests/plan/simulate/heuristics.h"

namespace reprise::plan {
namespace {

// A chain of `count` values of `bytes` each, each made from the one before, all held while it is
// made, and read from the last to the first when it is.
OnlineStep recorded_chain(OnlineStep::Index count, std::int64_t bytes, std::int64_t beside = 0,
                          std::int64_t workspace = 0) {
  OnlineStep step;
  double time = 0;
  const auto call = [&](std::initializer_list<OnlineStep::Index> reads, std::int64_t taken) {
    step.reads.insert(step.reads.end(), reads);
    step.calls.push_back({.time = time++,
                          .beside = beside,
                          .taken = taken,
                          .reads_end = static_cast<OnlineStep::Index>(step.reads.size())});
    const auto number = static_cast<OnlineStep::Index>(step.calls.size() - 1);
    step.events.push_back({OnlineStep::Do::kBegin, number});
    step.events.push_back({OnlineStep::Do::kRun, number});
    return number;
  };
  for (OnlineStep::Index i = 0; i < count; ++i) {
    const OnlineStep::Index number =
        i == 0 ? call({}, bytes + workspace) : call({i - 1}, bytes + workspace);
    if (i != 0) step.inputs.push_back({.value = i - 1, .bytes = bytes});
    step.values.push_back({.size = bytes, .bytes = bytes, .own_cost = 1});
    step.outputs.push_back({.value = i});
    step.producers.push_back({.call = number,
                              .form = 1,
                              .again = 1,
                              .inputs_end = static_cast<OnlineStep::Index>(step.inputs.size()),
                              .outputs_end = static_cast<OnlineStep::Index>(step.outputs.size())});
    step.events.push_back({OnlineStep::Do::kMake, i});
    step.events.push_back({OnlineStep::Do::kEnd, number});
  }
  for (OnlineStep::Index i = count; i-- > 0;) {
    step.events.push_back({OnlineStep::Do::kEnd, call({i}, 0)});
    step.events.push_back({OnlineStep::Do::kDie, i});
  }
  step.beside_at_end = beside;
  return step;
}

OnlineOutcome outcome_of(const OnlineStep& step, std::int64_t limit, std::int64_t most = 1 << 20) {
  const auto heuristic = heuristic_named("h_up");
  return OnlineRun(step, *heuristic, {.limit = limit, .most_replays = most}).run();
}

TEST(OnlineRun, WithRoomNothingIsDropped) {
  const OnlineOutcome outcome = outcome_of(recorded_chain(10, 100, 7), 1007);
  EXPECT_TRUE(outcome.fits);
  EXPECT_EQ(outcome.peak, 1007);
  EXPECT_EQ(outcome.drops, 0);
  EXPECT_EQ(outcome.replays, 0);
}

TEST(OnlineRun, AByteLessDropsAValueAndRunsItsCallAgain) {
  const OnlineOutcome outcome = outcome_of(recorded_chain(10, 100, 7), 1006);
  EXPECT_TRUE(outcome.fits);
  EXPECT_LE(outcome.peak, 1006);
  EXPECT_GE(outcome.drops, 1);
  EXPECT_GE(outcome.replays, 1);
}

// A call needs what it reads, what it makes and its workspace.
TEST(OnlineRun, TheLeastIsWhatOneCallNeeds) {
  const OnlineStep step = recorded_chain(10, 100, 50, 30);
  EXPECT_TRUE(outcome_of(step, 50 + 100 + 100 + 30).fits);
  EXPECT_FALSE(outcome_of(step, 50 + 100 + 100 + 30 - 1).fits);
}

// Blocks x + f(x): x is pinned while f(x) is replayed, and not made a second time beside it.
TEST(OnlineRun, ResidualBlocksNeedNoMoreThanABlock) {
  constexpr OnlineStep::Index kBlocks = 12;
  const auto heuristic = heuristic_named("lru");
  std::int64_t least_of[2];
  for (const OnlineStep::Index blocks : {kBlocks, 2 * kBlocks}) {
    OnlineStep step;
    const auto call = [&](std::initializer_list<OnlineStep::Index> reads) {
      step.reads.insert(step.reads.end(), reads);
      step.calls.push_back({.time = static_cast<double>(step.calls.size()),
                            .taken = 100,
                            .reads_end = static_cast<OnlineStep::Index>(step.reads.size())});
      const auto number = static_cast<OnlineStep::Index>(step.calls.size() - 1);
      step.events.push_back({OnlineStep::Do::kBegin, number});
      step.events.push_back({OnlineStep::Do::kRun, number});
      for (const OnlineStep::Index read : reads)
        step.inputs.push_back({.value = read, .bytes = 100});
      step.outputs.push_back({.value = static_cast<OnlineStep::Index>(step.values.size())});
      step.values.push_back({.size = 100, .bytes = 100, .own_cost = 1});
      step.producers.push_back(
          {.call = number,
           .form = 1,
           .again = 1,
           .inputs_end = static_cast<OnlineStep::Index>(step.inputs.size()),
           .outputs_end = static_cast<OnlineStep::Index>(step.outputs.size())});
      step.events.push_back({OnlineStep::Do::kMake, number});
      step.events.push_back({OnlineStep::Do::kEnd, number});
      return number;
    };
    OnlineStep::Index x = call({});
    for (OnlineStep::Index i = 0; i < blocks; ++i) x = call({x, call({call({x})})});
    const auto count = static_cast<OnlineStep::Index>(step.values.size());
    for (OnlineStep::Index value = count; value-- > 0;) {
      step.events.push_back({OnlineStep::Do::kHold, value});
      step.events.push_back({OnlineStep::Do::kRelease, value});
      step.events.push_back({OnlineStep::Do::kDie, value});
    }
    least_of[blocks == kBlocks ? 0 : 1] = least_bytes(step, *heuristic);
  }
  EXPECT_EQ(least_of[0], least_of[1]);
  EXPECT_LE(least_of[0], 400);
}

TEST(OnlineRun, TooManyReplaysAreARefusal) {
  const OnlineStep step = recorded_chain(10, 100);
  const OnlineOutcome outcome = outcome_of(step, 200);
  ASSERT_TRUE(outcome.fits);
  EXPECT_TRUE(outcome_of(step, 200, outcome.replays).fits);
  EXPECT_FALSE(outcome_of(step, 200, outcome.replays - 1).fits);
}

// Its old contents are made again where a replay reads them, in a copy.
TEST(OnlineRun, WhatIsOverwrittenIsMadeAgainForThoseWhoReadIt) {
  OnlineStep step = recorded_chain(1, 100);
  step.events.clear();
  step.calls.clear();
  step.reads.clear();
  const auto call = [&](std::initializer_list<OnlineStep::Index> reads, std::int64_t taken) {
    step.reads.insert(step.reads.end(), reads);
    step.calls.push_back(
        {.taken = taken, .reads_end = static_cast<OnlineStep::Index>(step.reads.size())});
    return static_cast<OnlineStep::Index>(step.calls.size() - 1);
  };
  // 0 is made; 1 is what an operator in place makes of it; 2 is made of 1; both are read.
  call({}, 100);
  call({0}, 0);
  call({1}, 100);
  call({1}, 0);
  step.values.assign(3, {.size = 100, .bytes = 100, .own_cost = 1});
  step.inputs = {{.value = 0, .bytes = 100, .use = OnlineStep::Input::Use::kUpdate},
                 {.value = 1, .bytes = 100}};
  step.outputs = {{.value = 0}, {.value = 1, .is_written = true}, {.value = 2}};
  step.producers = {{.call = 0, .again = 1, .inputs_end = 0, .outputs_end = 1},
                    {.call = 1, .again = 1, .inputs_end = 1, .outputs_end = 2},
                    {.call = 2, .again = 1, .inputs_end = 2, .outputs_end = 3}};
  step.events = {
      {OnlineStep::Do::kBegin, 0},     {OnlineStep::Do::kRun, 0},   {OnlineStep::Do::kMake, 0},
      {OnlineStep::Do::kEnd, 0},       {OnlineStep::Do::kBegin, 1}, {OnlineStep::Do::kRun, 1},
      {OnlineStep::Do::kOverwrite, 0}, {OnlineStep::Do::kMake, 1},  {OnlineStep::Do::kEnd, 1},
      {OnlineStep::Do::kBegin, 2},     {OnlineStep::Do::kRun, 2},   {OnlineStep::Do::kMake, 2},
      {OnlineStep::Do::kEnd, 2},       {OnlineStep::Do::kBegin, 3}, {OnlineStep::Do::kRun, 3},
      {OnlineStep::Do::kEnd, 3}};
  step.held = {2, 1};
  const OnlineOutcome roomy = outcome_of(step, 200);
  EXPECT_TRUE(roomy.fits);
  EXPECT_EQ(roomy.replays, 0);
  EXPECT_FALSE(outcome_of(step, 199).fits);
}

TEST(LeastBytes, IsTheFloorWhereCostsDoNotMatter) {
  const auto heuristic = heuristic_named("h_up");
  const std::int64_t floor = 5'000'000 + 2 * 100'000 + 30'000;
  const std::int64_t found =
      least_bytes(recorded_chain(20, 100'000, 5'000'000, 30'000), *heuristic);
  EXPECT_GE(found, floor);
  // Half a percent of safety, and the step of the bisection.
  EXPECT_LE(static_cast<double>(found), 1.008 * static_cast<double>(floor));
}

TEST(LeastBytes, OfAStepThatDropsNothingIsItsPeak) {
  OnlineStep step = recorded_chain(3, 100);
  step.min_bytes = 101;
  for (OnlineStep::Index i = 0; i < 3; ++i) {
    step.calls[i].beside = 100 * i;
    step.calls[5 - i].beside = 100 * (i + 1);
  }
  const auto heuristic = heuristic_named("h_up");
  EXPECT_GE(least_bytes(step, *heuristic), 300);
}

}  // namespace
}  // namespace reprise::plan
