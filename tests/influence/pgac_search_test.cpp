// The mask that is searched among all that fit, in the place of the threshold's.
#include <reprise/experimental/pgac.h>

#include <algorithm>

#include "influence/fitting.h"
#include "tests/influence/testing.h"
#include "tests/plan/chain/chains.h"
#include "tests/refusal.h"

namespace reprise {
namespace {

using namespace reprise::testing;
using influence::Fitted;
using influence::Fitting;
using torch::nn::Sequential;

struct TwoLinear : torch::nn::Module {
  explicit TwoLinear(std::int64_t width)
      : up(register_module("up", torch::nn::Linear(128, width))),
        down(register_module("down", torch::nn::Linear(width, 128))) {}
  at::Tensor forward(const at::Tensor& x) { return down(at::gelu(up(x))).tanh(); }
  torch::nn::Linear up, down;
};

Sequential layers_of_widths(std::initializer_list<std::int64_t> widths) {
  torch::manual_seed(31);
  Sequential model;
  for (const std::int64_t width : widths) model->push_back(TwoLinear(width));
  return model;
}

Sequential unlike_layers() { return layers_of_widths({256, 64, 512, 128, 256, 64, 512}); }

struct StepTaken {
  Tensors gradients;
  Bytes peak;
};

StepTaken run_step(Sequential model, const at::Tensor& x, Pgac* pgac) {
  model->zero_grad();
  StepTaken taken;
  {
    const PeakScope peak;
    const at::Tensor loss = (pgac != nullptr ? pgac->run(model, x) : model->forward(x)).sum();
    loss.backward();
    taken.peak = peak.peak_above_start();
  }
  taken.gradients = take_gradients(model->parameters());
  return taken;
}

TEST(PgacSearch, NoMaskThatFitsRunsLessAgain) {
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    const Chain chain = plan::random_chain(seed, 8, 20);
    const Fitting fitting(chain);
    for (const std::int64_t percent : {0, 30, 70}) {
      const Bytes plain = fitting.fit(plan::KeepMask(8, true), {}, std::nullopt, false).peak;
      const Bytes budget = fitting.least() + Bytes((plain - fitting.least()).count * percent / 100);
      const Fitted fastest =
          fitting.search(fitting.preference(PgacRanking::kCost, {}).losses, budget);
      EXPECT_LE(fastest.peak, budget);
      EXPECT_TRUE(fastest.by_search);
      for (int bits = 0; bits < 256; ++bits) {
        plan::KeepMask mask(8);
        for (int i = 0; i < 8; ++i) mask[static_cast<std::size_t>(i)] = (bits >> i & 1) != 0;
        const ScheduleCost cost =
            evaluate(fitting.chain(), plan::masked_schedule(fitting.chain(), mask));
        if (cost.peak <= budget) {
          EXPECT_LE(fastest.recompute, cost.recompute) << seed << ' ' << bits;
        }
      }
    }
  }
}

TEST(PgacSearch, KeepsTheBudgetAndThePlainGradients) {
  Sequential model = unlike_layers();
  const at::Tensor x = sample_of(128, 256);
  run_step(model, x, nullptr);
  const StepTaken plain = run_step(model, x, nullptr);
  for (const PgacRanking ranking : {PgacRanking::kInfluence, PgacRanking::kCost,
                                    PgacRanking::kInfluenceTimesCost, PgacRanking::kRandom}) {
    const Bytes budget(plain.peak.count * 7 / 10);
    Pgac pgac({.budget = budget, .ranking = ranking, .exact_search = true});
    pgac.run(model, x);  // measures
    for (int step = 0; step < 4; ++step) {
      const StepTaken taken = run_step(model, x, &pgac);
      EXPECT_TRUE(same_bits(taken.gradients, plain.gradients));
      EXPECT_LE(taken.peak, budget);
      EXPECT_TRUE(pgac.report().by_search);
      EXPECT_GT(pgac.report().predicted_recompute.count(), 0);
      pgac.observe(step);
    }
  }
}

TEST(PgacSearch, DiscardsWhatMattersLeast) {
  const Fitting fitting(plan::uniform_chain(7));
  const plan::KeepMask all(7, true);
  const Bytes plain = fitting.fit(all, {}, std::nullopt, false).peak;
  // By rank the first to go is the second layer; the cheapest sum is that of the fourth.
  const influence::Preference preference{{5, 1, 4, 2, 6, 3, 7}, {5, 3, 4, 2, 6, 3, 7}};
  const Fitted ranked = fitting.fit(all, preference, plain - Bytes(1), false);
  EXPECT_EQ(ranked.mask, (plan::KeepMask{true, false, true, true, true, true, true}));
  const Fitted searched = fitting.search(preference.losses, plain - Bytes(1));
  EXPECT_EQ(searched.mask, (plan::KeepMask{true, true, true, false, true, true, true}));
}

TEST(PgacSearch, AMaskThatIsSetIsRun) {
  Sequential model = unlike_layers();
  const at::Tensor x = sample_of(128, 256);
  Pgac pgac({.budget = run_step(model, x, nullptr).peak * 2, .exact_search = true});
  run_step(model, x, &pgac);
  pgac.observe(0);
  const std::vector<bool> wanted{true, false, true, false, true, true, true};
  pgac.set_mask(wanted);
  run_step(model, x, &pgac);
  EXPECT_EQ(pgac.report().mask, wanted);
  pgac.observe(1);
  run_step(model, x, &pgac);
  EXPECT_EQ(pgac.report().mask, std::vector<bool>(7, true)) << "all of them fit";
}

TEST(PgacSearch, ChangesTheMaskNotOftenerThanAllowed) {
  Sequential model = layers_of_widths({256, 256, 256, 256, 256});
  const at::Tensor x = sample_of(128, 256);
  const Bytes budget(run_step(model, x, nullptr).peak.count * 95 / 100);
  // What matters least is another layer in each step.
  std::size_t least = 0;
  Pgac pgac({.budget = budget,
             .exact_search = true,
             .steps_between_changes = 3,
             .combine = [&](std::vector<double>& averages) {
               std::fill(averages.begin(), averages.end(), 1);
               averages[least % averages.size()] = 1e-3;
             }});
  std::vector<std::vector<bool>> masks;
  for (int step = 0; step < 12; ++step) {
    run_step(model, x, &pgac);
    masks.push_back(pgac.report().mask);
    ++least;
    pgac.observe(step);
  }
  std::ptrdiff_t last = -3;
  int changes = 0;
  for (std::ptrdiff_t i = 2; i < std::ssize(masks); ++i) {
    if (masks[i] == masks[i - 1]) continue;
    EXPECT_GE(i - last, 3);
    last = i;
    ++changes;
  }
  EXPECT_GT(changes, 0);
}

TEST(PgacSearch, RefusesWhatASearchLeavesNothingToDo) {
  const auto refusal = [](const PgacOptions& options) {
    return refusal_of([&] { const Pgac pgac(options); });
  };
  EXPECT_TRUE(contains(refusal({.exact_search = true}),
                       "Pgac: exact_search is set, but there is no budget that masks would fit"));
  EXPECT_TRUE(contains(refusal({.budget = MB(1), .fill_budget = true, .exact_search = true}),
                       "exact_search and fill_budget are both set, but a search leaves no room"));
  EXPECT_TRUE(contains(refusal({.budget = MB(1), .exact_search = true, .hysteresis = 0.1}),
                       "exact_search and hysteresis are both set"));
  EXPECT_TRUE(contains(
      refusal(
          {.gamma = GammaSchedule::learned(), .steps = 5, .budget = MB(1), .exact_search = true}),
      "exact_search and a learned gamma are both set, but with a search no threshold decides"));
  EXPECT_TRUE(contains(refusal({.budget = MB(1), .exact_search = true, .lossy = LossyOptions{}}),
                       "exact_search and the lossy tier are both set"));
}

}  // namespace
}  // namespace reprise
