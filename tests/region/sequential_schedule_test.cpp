// checkpoint_sequential() by schedules and budgets: gradients, what runs again, bytes, errors.
#include <reprise/memory.h>
#include <reprise/planners.h>
#include <reprise/reprise.h>
#include <reprise/sequential.h>

#include "plan/chain/revolve.h"
#include "tests/plan/chain/chains.h"
#include "tests/region/chain_steps.h"
#include "tests/region/testing.h"

namespace reprise {
namespace {

using namespace reprise::testing;
using torch::nn::Sequential;

Outcome scheduled(const Sequential& model, const Schedule& schedule) {
  return chain_step(model,
                    [&](const at::Tensor& x) { return checkpoint_sequential(model, schedule, x); });
}

TEST(SequentialSchedule, GradientsAreThoseOfThePlainStepUnderEveryPlanner) {
  Sequential model = chain_network();
  const Outcome expected = plain_chain_step(model);
  const Chain chain = profile_chain(model, chain_sample());
  for (const char* name : {"keep_all", "every_stage", "uniform:3", "sqrt", "revolve", "rotor"}) {
    const Outcome found = scheduled(model, planner_named(name)(chain, kUnlimited));
    EXPECT_TRUE(same_bits(found.tensors, expected.tensors)) << name;
  }
  const planners::Rotor rotor(chain);
  const Bytes least = rotor.least();
  const Bytes most = evaluate(chain, planners::keep_all(chain)).peak;
  for (int i = 0; i <= 8; ++i) {
    const Bytes budget = least + Bytes((most - least).count * i / 8);
    const Outcome found = scheduled(model, rotor.plan(budget));
    EXPECT_TRUE(same_bits(found.tensors, expected.tensors)) << to_string(budget);
  }
}

TEST(SequentialSchedule, ThePeakIsThePredictedOne) {
  Sequential model = chain_network();
  const Chain chain = profile_chain(model, chain_sample());
  const planners::Rotor rotor(chain);
  const Bytes least = rotor.least();
  const Bytes most = evaluate(chain, planners::keep_all(chain)).peak;
  for (int i = 0; i <= 6; ++i) {
    const Schedule schedule = rotor.plan(least + Bytes((most - least).count * i / 6));
    const auto predicted = static_cast<double>(evaluate(chain, schedule).peak.count);
    const auto measured = static_cast<double>(scheduled(model, schedule).peak.count);
    EXPECT_NEAR(predicted / measured, 1, 0.01) << picture(chain, schedule);
  }
}

TEST(SequentialSchedule, ABudgetIsPlannedOnceAndKept) {
  Sequential model = chain_network();
  const Outcome expected = plain_chain_step(model);
  const planners::Rotor rotor(profile_chain(model, chain_sample()));
  const Bytes budget = rotor.least() + Bytes((expected.peak - rotor.least()).count / 4);
  for (int i = 0; i < 3; ++i) {
    const Outcome found = chain_step(
        model, [&](const at::Tensor& x) { return checkpoint_sequential(model, budget, x); });
    EXPECT_TRUE(same_bits(found.tensors, expected.tensors));
    // The first time profiling is in it.
    if (i > 0) {
      EXPECT_LE(found.peak, budget);
    }
  }
  const std::string error =
      error_of<BudgetError>([&] { checkpoint_sequential(model, Bytes(1000), chain_sample()); });
  EXPECT_TRUE(contains(error, "rotor: the budget is 1.0 KB (1000 bytes), but the chain needs"));
}

TEST(SequentialSchedule, AnOutputThatTheCallerHoldsIsWithinTheBudget) {
  // No backward saves the output of a dropout.
  torch::manual_seed(3);
  Sequential model;
  for (int i = 0; i < 8; ++i) {
    model->push_back(torch::nn::Linear(128, 128));
    model->push_back(torch::nn::GELU());
    model->push_back(torch::nn::Dropout(0.1));
  }
  const at::Tensor x = at::randn({1024, 128});
  const planners::Rotor rotor(profile_chain(model, x));
  const Bytes least = rotor.least(),
              most = evaluate(profile_chain(model, x), rotor.plan(GB(1))).peak;
  for (int i = 1; i <= 6; ++i) {
    const Bytes budget = least + Bytes((most - least).count * i / 6);
    for (int step = 0; step < 2; ++step) {
      model->zero_grad();
      const PeakScope peak;
      const at::Tensor y = checkpoint_sequential(model, budget, x);
      // The loss and its gradient, of the same size, are no part of what the model adds.
      const Bytes before_loss = live_bytes();
      const at::Tensor loss = (y * 2).sum();
      const Bytes callers = (live_bytes() - before_loss) + (live_bytes() - before_loss);
      loss.backward();
      if (step > 0) {
        EXPECT_LE(peak.peak_above_start(), budget + callers) << i;
      }
    }
  }
}

struct RunCounterImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& x) {
    ++runs;
    return (x * factor).sin();
  }
  int runs = 0;
  at::Tensor factor = torch::tensor(2.0F);
};
using RunCounter = torch::nn::ModuleHolder<RunCounterImpl>;

TEST(SequentialSchedule, AChainIsMeasuredAnewWhereItIsAnother) {
  std::vector<RunCounter> modules;
  for (int i = 0; i < 3; ++i) modules.emplace_back(std::make_shared<RunCounterImpl>());
  const auto forwards_of = [&](const at::Tensor& x) {
    const int before = modules[0]->runs;
    const at::Tensor y = checkpoint_sequential(modules, MB(1), x);
    if (y.requires_grad()) y.sum().backward();
    return modules[0]->runs - before;
  };
  const at::Tensor x = leaf({3, 4});
  const int measured = forwards_of(x);
  EXPECT_GT(measured, 5);
  EXPECT_EQ(forwards_of(x), 1);
  EXPECT_EQ(forwards_of(leaf({3, 4})), 1);
  EXPECT_EQ(forwards_of(leaf({4, 3})), measured) << "another shape";
  EXPECT_EQ(forwards_of(at::ones({3, 4}, at::kDouble).requires_grad_()), measured)
      << "another type";
  {
    const at::NoGradGuard no_grad;
    EXPECT_EQ(forwards_of(x), 1) << "nothing is kept anyway";
  }
  for (RunCounter& module : modules) module->eval();
  EXPECT_EQ(forwards_of(x), measured) << "no longer trained";
  EXPECT_EQ(forwards_of(x), 1);
}

TEST(SequentialSchedule, NothingRunsAgainThatWasNotPlanned) {
  std::vector<RunCounter> modules;
  for (int i = 0; i < 6; ++i) modules.emplace_back(std::make_shared<RunCounterImpl>());
  const at::Tensor x = leaf({3, 4});
  const Schedule schedule = plan::revolve_checkpoints(plan::uniform_chain(6), 2);
  std::vector<int> expected(6);
  for (const ScheduleOp& each : schedule.ops) {
    if (each.kind != ScheduleOp::Kind::kBackward) ++expected[static_cast<std::size_t>(each.stage)];
  }
  CheckpointOptions options;
  options.early_stop = EarlyStop::kNever;
  checkpoint_sequential(modules, schedule, x, options).sum().backward();
  std::vector<int> runs;
  for (const RunCounter& module : modules) runs.push_back(module->runs);
  EXPECT_EQ(runs, expected);
}

TEST(SequentialSchedule, WhatIsOffloadedGoesToTheStoreAndComesBack) {
  Sequential model = chain_network();
  const Outcome expected = plain_chain_step(model);
  const Chain chain = profile_chain(model, chain_sample());
  // A store so fast that nothing is run again.
  const TransferRate rate{1e15};
  const planners::Rotor rotor(chain, {.slots = 0, .store = rate});
  const Bytes most = evaluate(chain, planners::keep_all(chain)).peak;
  const Schedule schedule = rotor.plan(rotor.least() + Bytes((most - rotor.least()).count / 2));
  ASSERT_GT(evaluate(chain, schedule, rate).transfer.count(), 0) << picture(chain, schedule);
  const auto store = memory_store();
  const Outcome found = chain_step(model, [&](const at::Tensor& x) {
    at::Tensor y = checkpoint_sequential(model, schedule, x, {}, store);
    EXPECT_GT(store->statistics().count, 0);
    return y;
  });
  EXPECT_TRUE(same_bits(found.tensors, expected.tensors));
  EXPECT_EQ(store->statistics().count, 0);
  const std::string error =
      error_of<UsageError>([&] { checkpoint_sequential(model, schedule, chain_sample()); });
  EXPECT_TRUE(contains(error, "the schedule offloads, but there is no store"));
}

TEST(SequentialSchedule, RefusesSchedulesOfAnotherModel) {
  Sequential model = chain_network(1);
  const Chain chain = profile_chain(model, chain_sample());
  ASSERT_LT(chain.stages.size(), model->size()) << "what is in place is joined";
  const Schedule schedule = planners::sqrt(chain);
  std::vector<TensorFunction> two(2, [](const at::Tensor& x) { return x.sin(); });
  EXPECT_TRUE(contains(
      error_of<PlanError>([&] { checkpoint_sequential(two, schedule, chain_sample()); }),
      "stage 1 of the schedule is of 2 layers, but of 2 functions 1 are left; plan for a chain"));
  std::vector<TensorFunction> eight(8, [](const at::Tensor& x) { return x.sin(); });
  EXPECT_TRUE(contains(
      error_of<PlanError>([&] { checkpoint_sequential(eight, schedule, chain_sample()); }),
      "the schedule is of 6 layers, but there are 8 functions; plan for a chain of as many"));
  const std::int64_t huge = std::int64_t{1} << 62;
  EXPECT_TRUE(contains(
      error_of<PlanError>([&] {
        checkpoint_sequential(two, Schedule{{}, {huge, huge, huge, huge, 2}}, chain_sample());
      }),
      "stage 0 of the schedule is of 4611686018427387904 layers"));
  EXPECT_TRUE(contains(error_of<PlanError>([&] {
                         checkpoint_sequential(two, Schedule{{}, {1, 1}}, chain_sample());
                       }),
                       "operation 0 of the schedule: stage 0 should be kept"));
  EXPECT_TRUE(contains(error_of<PlanError>([&] {
                         checkpoint_sequential(two, Schedule{{}, {3, -1}}, chain_sample());
                       }),
                       "stage 0 of the schedule is of 3 layers"));
  EXPECT_TRUE(contains(error_of<PlanError>([&] {
                         checkpoint_sequential(two, Schedule{{}, {2, 0}}, chain_sample());
                       }),
                       "stage 1 of the schedule is of 0 layers"));
  EXPECT_TRUE(contains(
      error_of<UsageError>([&] { checkpoint_sequential(model, Bytes(0), chain_sample()); }),
      "the budget is 0 bytes; it must be at least 1"));
  EXPECT_TRUE(contains(error_of<UsageError>([&] {
                         checkpoint_sequential(std::vector<TensorFunction>(), schedule,
                                               chain_sample());
                       }),
                       "the list of functions is empty"));
}

TEST(SequentialSchedule, ABudgetWithinARegionIsPlannedOutsideOfIt) {
  Sequential model = chain_network(2);
  const Outcome expected = plain_chain_step(model);
  int calls = 0;
  for (const bool first : {true, false}) {
    calls = 0;
    const Outcome found = chain_step(model, [&](const at::Tensor& x) {
      return checkpoint(
          [&](const at::Tensor& t) {
            ++calls;
            return checkpoint_sequential(model, MB(50), t);
          },
          x);
    });
    EXPECT_EQ(calls, 2) << first;
    EXPECT_TRUE(same_bits(found.tensors, expected.tensors)) << first;
  }
}

TEST(SequentialSchedule, RunsEveryPlanThatOffloads) {
  Sequential model = chain_network();
  const Outcome expected = plain_chain_step(model);
  const Chain chain = profile_chain(model, chain_sample());
  const TransferRate rate{1e12};
  const planners::Rotor rotor(chain, {.slots = 0, .store = rate});
  const Bytes most = evaluate(chain, planners::keep_all(chain)).peak;
  for (int i = 0; i <= 8; ++i) {
    const Schedule schedule =
        rotor.plan(rotor.least() + Bytes((most - rotor.least()).count * i / 8));
    const auto store = memory_store();
    const Outcome found = chain_step(model, [&](const at::Tensor& x) {
      return checkpoint_sequential(model, schedule, x, {}, store);
    });
    EXPECT_TRUE(same_bits(found.tensors, expected.tensors)) << i;
    EXPECT_EQ(store->statistics().count, 0) << i;
  }
}

}  // namespace
}  // namespace reprise
