// The figures of simrd on its own logs of four networks, which tie this simulator to the
// literature. The logs are not part of the source: REPRISE_TRACES names the folder that has them.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <vector>

#include "plan/simulate/simulator.h"
#include "tests/plan/simulate/heuristics.h"

namespace reprise::plan {
namespace {

constexpr double kRatios[] = {.8, .5, .4, .3, .2};
constexpr double kNoFit = 0;

struct Reference {
  const char* model;
  double base_ms, plain_peak_mb, floor_mb;
  double slowdown[5];  // of h_eq at the ratios
  double smallest;     // ratio, in hundredths, that h_eq fits into at less than twice the time
};

constexpr Reference kReferences[] = {
    {"resnet32", 291.905, 10'061.2, 575.1, {1.0248, 1.1068, 1.1404, 1.1786, 1.3322}, .15},
    {"transformer", 276.259, 9'864.4, 934.3, {1.0199, 1.0584, 1.0914, 1.1238, 1.5449}, .18},
    {"lstm", 769.459, 5'595.1, 298.5, {1.0268, 1.0710, 1.1590, 1.3651, 1.5502}, .19},
    {"unet", 435.278, 8'415.8, 2'036.2, {1.0577, 1.1587, kNoFit, kNoFit, kNoFit}, .44},
};

class ReferenceFigures : public testing::TestWithParam<Reference> {
 protected:
  void SetUp() override {
    const char* folder = std::getenv("REPRISE_TRACES");
    if (folder == nullptr) {
      GTEST_SKIP() << "set REPRISE_TRACES to a folder with simrd's logs, " << GetParam().model
                   << ".jsonl.gz and others";
    }
    trace_ = read_trace(std::string(folder) + "/" + GetParam().model + ".jsonl.gz");
  }

  SimulationResult run(const Simulator& simulator, double ratio, Search search) const {
    SimulationOptions options;
    options.budget =
        static_cast<std::int64_t>(static_cast<double>(simulator.need().plain_peak) * ratio);
    options.slowdown_limit = 2;
    options.search = search;
    return simulator.run(*heuristic_named("h_eq"), options);
  }

  Trace trace_;
};

TEST_P(ReferenceFigures, OfCostAndBytesComeOut) {
  const TraceNeed need = Simulator(trace_).need();
  EXPECT_NEAR(static_cast<double>(trace_.nanoseconds()) / 1e6, GetParam().base_ms, 1e-3);
  EXPECT_NEAR(static_cast<double>(need.plain_peak) / 1e6, GetParam().plain_peak_mb, 0.05);
  EXPECT_NEAR(static_cast<double>(need.floor) / 1e6, GetParam().floor_mb, 0.05);
}

TEST_P(ReferenceFigures, OfSlowdownComeOut) {
  const Simulator simulator(trace_);
  for (std::size_t i = 0; i < std::size(kRatios); ++i) {
    const SimulationResult result = run(simulator, kRatios[i], Search::kExact);
    if (GetParam().slowdown[i] == kNoFit) {
      EXPECT_EQ(result.outcome, Outcome::kOutOfMemory) << kRatios[i];
    } else {
      EXPECT_EQ(result.outcome, Outcome::kFits) << kRatios[i];
      EXPECT_NEAR(result.slowdown(), GetParam().slowdown[i], 1e-4) << kRatios[i];
    }
  }
}

TEST_P(ReferenceFigures, OfTheSmallestBudgetComeOut) {
  const Simulator simulator(trace_);
  EXPECT_EQ(run(simulator, GetParam().smallest, Search::kExact).outcome, Outcome::kFits);
  EXPECT_NE(run(simulator, GetParam().smallest - .01, Search::kExact).outcome, Outcome::kFits);
}

// What the tape searches with costs a step no more than looking at every value would.
TEST_P(ReferenceFigures, AreMetByTheIndexToo) {
  const Simulator simulator(trace_);
  for (std::size_t i = 0; i < std::size(kRatios); ++i) {
    const SimulationResult result = run(simulator, kRatios[i], Search::kIndex);
    if (GetParam().slowdown[i] == kNoFit) continue;
    EXPECT_EQ(result.outcome, Outcome::kFits) << kRatios[i];
    EXPECT_LE(result.slowdown(), GetParam().slowdown[i] + 0.03) << kRatios[i];
  }
}

INSTANTIATE_TEST_SUITE_P(Simrd, ReferenceFigures, testing::ValuesIn(kReferences),
                         [](const auto& info) { return std::string(info.param.model); });

}  // namespace
}  // namespace reprise::plan
