// A training that is resumed goes on as if it had not ended.
#include <reprise/experimental/pgac.h>

#include <random>

#include "tests/influence/testing.h"
#include "tests/refusal.h"

namespace reprise {
namespace {

using namespace reprise::testing;
using torch::nn::Sequential;

void observed_step(Pgac& pgac, Sequential model, int step) {
  torch::manual_seed(static_cast<std::uint64_t>(step));
  model->zero_grad();
  const at::Tensor x = at::randn({32, 24}) * (1 + step % 5);
  pgac.run(model, x).square().sum().backward();
  pgac.observe(step);
}

TEST(PgacState, AResumedTrainingMakesTheSameMasks) {
  for (const std::optional<Bytes> budget : {std::optional<Bytes>(), std::optional(KB(60))}) {
    PgacOptions options{.alpha = 0.7,
                        .quantile = 0.6,
                        .gamma = GammaSchedule::cosine(0.8, 1.2),
                        .steps = 40,
                        .budget = budget,
                        .hysteresis = 0.05,
                        .steps_between_changes = 2};
    Sequential model = six_layers();
    Pgac whole(options), resumed(options);
    for (int step = 0; step < 20; ++step) observed_step(whole, model, step);
    resumed.restore(whole.state());
    EXPECT_EQ(resumed.state(), whole.state());
    EXPECT_EQ(resumed.layers().size(), 6u);
    for (int step = 20; step < 40; ++step) {
      observed_step(whole, model, step);
      observed_step(resumed, model, step);
      const PgacReport a = whole.report(), b = resumed.report();
      ASSERT_EQ(a.averages, b.averages) << step;
      ASSERT_EQ(a.threshold, b.threshold) << step;
      ASSERT_EQ(a.wanted, b.wanted) << step;
      ASSERT_EQ(a.mask, b.mask) << step;
      ASSERT_EQ(a.changes, b.changes) << step;
    }
  }
}

TEST(PgacState, OfALearnedScheduleHoldsItsWeights) {
  const PgacOptions options{
      .gamma = GammaSchedule::learned(1.5), .steps = 20, .budget = KB(60), .seed = 1};
  Sequential model = six_layers();
  Pgac pgac(options);
  for (int step = 0; step < 10; ++step) observed_step(pgac, model, step);
  Pgac resumed(options);
  EXPECT_NE(resumed.state(), pgac.state());
  resumed.restore(pgac.state());
  EXPECT_EQ(resumed.state(), pgac.state());
  EXPECT_TRUE(contains(resumed.state(), "\"gamma_steps\": 10"));
}

TEST(PgacState, BeforeTheFirstRunIsAStateToo) {
  Pgac pgac, restored;
  restored.restore(pgac.state());
  EXPECT_TRUE(restored.layers().empty());
  Sequential model = six_layers();
  observed_step(restored, model, 0);
  EXPECT_EQ(restored.layers().size(), 6u);
}

TEST(PgacState, OfOtherOptionsIsRefusedWithTheDifference) {
  Sequential model = six_layers();
  Pgac pgac({.alpha = 0.5});
  observed_step(pgac, model, 0);
  const auto refusal = [&](const PgacOptions& options) {
    Pgac other(options);
    return refusal_of([&] { other.restore(pgac.state(), "checkpoint"); });
  };
  EXPECT_TRUE(contains(refusal({}), "options: has alpha as 0.5, and this Pgac's is 0.9; restore"));
  EXPECT_TRUE(contains(refusal({.alpha = 0.5, .quantile = 0.25}),
                       "has quantile as 0.5, and this Pgac's is 0.25"));
  EXPECT_TRUE(
      contains(refusal({.alpha = 0.5, .gamma = GammaSchedule::linear(1, 2), .steps = 4}),
               "has gamma as constant from 1.0 to 1.0, and this Pgac's is linear from 1.0 to 2.0"));
  EXPECT_TRUE(contains(refusal({.alpha = 0.5, .follow_pseudocode = true}),
                       "has follow_pseudocode as false"));
  EXPECT_TRUE(contains(refusal({.alpha = 0.5, .ranking = PgacRanking::kRandom}),
                       "has ranking as influence, and this Pgac's is random"));
  EXPECT_TRUE(contains(refusal({.alpha = 0.5, .lossy = LossyOptions{}}), "without the lossy tier"));
  // On a machine with less memory, say.
  Pgac bounded({.alpha = 0.5, .steps = 9, .budget = MB(100)});
  bounded.restore(pgac.state());
  // As states were before they had options.
  const std::string state = pgac.state();
  const auto begin = state.find(" \"options\""), end = state.find(" \"step\"");
  Pgac other;
  other.restore(state.substr(0, begin) + state.substr(end));
}

TEST(PgacState, OfAnotherModelIsRefusedByTheFirstRun) {
  Sequential model = six_layers();
  Pgac pgac;
  observed_step(pgac, model, 0);
  const auto refusal = [&](Sequential other) {
    Pgac restored;
    restored.restore(pgac.state());
    return refusal_of([&] { restored.run(other, sample_of()); });
  };
  using torch::nn::GELU;
  using torch::nn::Linear;
  EXPECT_TRUE(
      contains(refusal(Sequential(Linear(24, 24), GELU(), Linear(24, 24), GELU(), GELU(), GELU())),
               "layer 1 is \"GELU\", but in the restored state \"BatchNorm1d\"; restore"));
  EXPECT_TRUE(contains(refusal(Sequential(Linear(24, 24), GELU())),
                       "the model has 2 layers, but that of the restored state had 6; give"));
}

TEST(PgacState, RefusesWhatIsNoState) {
  Sequential model = six_layers();
  Pgac pgac;
  observed_step(pgac, model, 0);
  const std::string state = pgac.state();
  const auto refusal = [&](const std::string& text) {
    return refusal_of([&] { pgac.restore(text, "checkpoint"); });
  };
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string changed = state;
    const auto at = changed.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    return changed.replace(at, from.size(), to);
  };
  EXPECT_TRUE(contains(refusal("{"), "checkpoint:1: "));
  EXPECT_TRUE(contains(refusal(with("pgac state", "plan")), "checkpoint:2: format: "));
  EXPECT_TRUE(contains(refusal(with("\"count\": 1", "\"count\": 0")), "count: is 0"));
  EXPECT_TRUE(contains(refusal(with("\"wanted\": ", "\"wanted\": 3, \"x\": ")), "x"));
  EXPECT_TRUE(contains(refusal(with("\"step\": 0", "\"step\": -2")), "step: is -2"));
  EXPECT_TRUE(
      contains(refusal(with("\"gamma_steps\": 0", "\"gamma_steps\": \"\"")), "gamma_steps"));
  EXPECT_EQ(pgac.state(), state) << "what is refused changes nothing";

  Pgac other;
  Sequential two(torch::nn::Linear(24, 24), torch::nn::Linear(24, 24));
  observed_step(other, two, 0);
  EXPECT_TRUE(contains(refusal_of([&] { other.restore(state, "checkpoint"); }),
                       "layers: has 6 entries, but the model has 2 layers"));
  EXPECT_TRUE(contains(refusal(with("\"BatchNorm1d\"", "\"GELU\"")),
                       "layers[1]: is \"GELU\" of 1 layers, but the model's is \"BatchNorm1d\""));
  // Every prefix of a state is refused, and no byte of it crashes.
  for (std::size_t i = 0; i + 2 < state.size(); i += 7) EXPECT_NE(refusal(state.substr(0, i)), "");
  std::mt19937 random(1);
  for (int i = 0; i < 300; ++i) {
    std::string changed = state;
    changed[random() % changed.size()] = static_cast<char>(random() % 128);
    try {
      pgac.restore(changed);
    } catch (const Error&) {
    }
  }
  observed_step(pgac, model, 1);
}

}  // namespace
}  // namespace reprise
