// PGAC: what scoring costs, whether budgets hold while the mask changes, whether gradients are
// those of the plain step under every mask, and what rankings recompute beside static choices.
#include <fmt/format.h>
#include <reprise/experimental/pgac.h>
#include <reprise/memory.h>
#include <reprise/planners.h>
#include <reprise/sequential.h>
#include <torch/nn/functional/upsampling.h>
#include <torch/nn/modules.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/optim/sgd.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <random>

#include "benches.h"
#include "benchmarks/support/race.h"
#include "blocks.h"
#include "core/statistics.h"
#include "influence/fitting.h"

namespace reprise::bench {
namespace {

constexpr BlockShape kCoarse = {
    .width = 256, .heads = 4, .length = 128, .batch = 8, .dropout = 0.1};

// A step of blocks, with and without PGAC.
class BlockSteps {
 public:
  explicit BlockSteps(int count, const BlockShape& shape) : model_(make_model(count, shape)) {}

  template <class Run>
  void step(Run&& run) {
    (run(model_.input) * 2).sum().backward();
    model_.drop_gradients();
  }
  void plain() {
    step([this](at::Tensor x) {
      for (Block& block : model_.blocks) x = block->forward(x);
      return x;
    });
  }
  void with(Pgac& pgac) {
    step([&](const at::Tensor& x) { return pgac.run(model_.blocks, x); });
    pgac.observe(number_++);
  }

 private:
  Model model_;
  std::int64_t number_ = 0;
};

template <class F>
Bytes pgac_peak(F&& step) {
  const PeakScope peak;
  step();
  return peak.peak_above_start();
}

Figure pgac_figure(const char* bench, std::string name, double ours, const char* unit,
                   Bar bar = {}) {
  return {.bench = bench,
          .name = std::move(name),
          .ours = ours,
          .peer = {},
          .unit = unit,
          .runs = 1,
          .spread = 0,
          .bar = bar};
}

// A residual block of convolutions that may shrink the map or widen the channels.
struct ConvBlockImpl : torch::nn::Module {
  ConvBlockImpl(std::int64_t from, std::int64_t to, std::int64_t stride, double scale = 1)
      : scale_(scale) {
    using torch::nn::Conv2dOptions;
    first_ = register_module(
        "first", torch::nn::Conv2d(Conv2dOptions(from, to, 3).stride(stride).padding(1)));
    norm_ = register_module("norm", torch::nn::BatchNorm2d(to));
    second_ = register_module("second", torch::nn::Conv2d(Conv2dOptions(to, to, 3).padding(1)));
    side_ = register_module("side", torch::nn::Conv2d(Conv2dOptions(from, to, 1).stride(stride)));
  }
  at::Tensor forward(at::Tensor x) {
    if (scale_ != 1) {
      using torch::nn::functional::InterpolateFuncOptions;
      x = torch::nn::functional::interpolate(
          x, InterpolateFuncOptions().scale_factor(std::vector<double>{scale_, scale_}));
    }
    return torch::relu(side_(x) + second_(torch::relu(norm_(first_(x)))));
  }
  double scale_;
  torch::nn::Conv2d first_ = nullptr, second_ = nullptr, side_ = nullptr;
  torch::nn::BatchNorm2d norm_ = nullptr;
};
TORCH_MODULE(ConvBlock);

struct UnlikeLayers {
  const char* name;
  torch::nn::Sequential model;
  at::Tensor sample;
};

UnlikeLayers resnet() {
  torch::nn::Sequential model;
  std::int64_t channels = 3;
  for (const std::int64_t next : {16, 16, 16, 32, 32, 64, 64, 128, 128}) {
    model->push_back(ConvBlock(channels, next, next != channels && channels != 3 ? 2 : 1));
    channels = next;
  }
  return {"ResNet", model, at::randn({4, 3, 48, 48})};
}

// Down to small maps of many channels and up again, as a U-Net without its skip connections, which
// no chain of layers has.
UnlikeLayers hourglass() {
  torch::nn::Sequential model;
  std::int64_t channels = 3;
  for (const std::int64_t next : {8, 16, 32, 64}) {
    model->push_back(ConvBlock(channels, next, channels == 3 ? 1 : 2));
    channels = next;
  }
  model->push_back(ConvBlock(channels, channels, 1));
  for (const std::int64_t next : {32, 16, 8}) {
    model->push_back(ConvBlock(channels, next, 1, 2));
    channels = next;
  }
  return {"hourglass", model, at::randn({4, 3, 64, 64})};
}

// Blocks of several widths, with a linear layer between two of them.
UnlikeLayers mixed_gpt() {
  torch::nn::Sequential model;
  std::int64_t width = 64;
  for (const std::int64_t next : {64, 256, 256, 128, 64, 192, 192, 64}) {
    if (next != width) model->push_back(torch::nn::Linear(width, next));
    model->push_back(
        Block(BlockShape{.width = next, .heads = 4, .length = 96, .batch = 4, .dropout = 0.1}));
    width = next;
  }
  return {"mixed-width GPT", model, at::randn({4, 96, 64})};
}

constexpr const char* kStaticBench = "pgac_vs_static";
constexpr int kDraws = 25;
constexpr double kWanted = 0.85;

// What PGAC knows of the layers after some steps.
std::vector<double> averages_of(UnlikeLayers& layered) {
  Pgac pgac({.alpha = 0.9, .gamma = GammaSchedule::constant(0)});
  for (int step = 0; step < 5; ++step) {
    layered.model->zero_grad();
    (pgac.run(layered.model, layered.sample) * 2).sum().backward();
    pgac.observe(step);
  }
  return pgac.report().averages;
}

influence::Preference drawn_preference(std::size_t stages, std::mt19937_64& random) {
  std::uniform_real_distribution<double> draw(0, 1);
  std::vector<double> ranks;
  for (std::size_t i = 0; i < stages; ++i) ranks.push_back(draw(random));
  return {ranks, ranks};
}

// Seconds that run again under masks of as many bytes as segments of equal length need, all by the
// same measured layers.
void report_rankings(Session& session, UnlikeLayers layered) {
  const influence::Fitting fitting(
      profile_chain(layered.model, layered.sample, {.repetitions = session.quick() ? 1 : 9}));
  const Chain& chain = fitting.chain();
  const plan::KeepMask all(chain.stages.size(), true);
  const std::vector<double> averages = averages_of(layered);
  for (const std::int64_t segments : {2, 3, 4}) {
    const ScheduleCost uniform = evaluate(chain, planners::uniform(chain, segments));
    if (fitting.fit(all, {}, std::nullopt, false).peak <= uniform.peak) continue;
    const auto recompute = [&](const influence::Preference& preference) {
      return fitting.fit(all, preference, uniform.peak, /*fills=*/true).recompute.count();
    };
    std::mt19937_64 random(1);
    std::vector<double> drawn;
    for (int i = 0; i < kDraws; ++i) {
      drawn.push_back(recompute(drawn_preference(all.size(), random)));
    }
    const double by_uniform = uniform.recompute.count(), by_random = median(drawn);
    const std::string where = fmt::format("{}, as {} segments ({:.1f} MB): ", layered.name,
                                          segments, uniform.peak.megabytes());
    const auto report = [&](const std::string& how, double seconds) {
      session.report(pgac_figure(kStaticBench, where + how, seconds * 1e3, "ms"));
    };
    report("uniform", by_uniform);
    report(fmt::format("random, median of {}", kDraws), by_random);
    double best = std::numeric_limits<double>::infinity();
    const std::pair<const char*, PgacRanking> kRankings[] = {
        {"influence", PgacRanking::kInfluence},
        {"cost", PgacRanking::kCost},
        {"influence×cost", PgacRanking::kInfluenceTimesCost}};
    for (const auto& [name, ranking] : kRankings) {
      const double seconds = recompute(fitting.preference(ranking, averages));
      report(std::string("by ") + name, seconds);
      best = std::min(best, seconds);
    }
    const double fastest = fitting.fastest(uniform.peak).recompute.count();
    report("searched by cost, the fastest mask that there is", fastest);
    const auto beside = [&](const std::string& what, double theirs) {
      const std::string unit = "×" + what;
      const auto report_beside = [&](const char* ours, double seconds, Bar bar) {
        session.report(pgac_figure(kStaticBench, where + ours + " beside " + what, seconds / theirs,
                                   unit.c_str(), bar));
      };
      // No ranking can be below what no mask is below.
      const Bar bar = fastest <= kWanted * theirs ? Bar{.at_most = kWanted} : Bar{};
      report_beside("best ranking", best, bar);
      report_beside("searched", fastest, bar);
    };
    beside("uniform", by_uniform);
    beside("random", by_random);
  }
}

}  // namespace

void influence_overhead(Session& session) {
  constexpr const char* kBench = "influence_overhead";
  constexpr int kBlocks = 8;
  // A factor of zero: everything is scored, averaged and compared, and kept.
  BlockSteps steps(kBlocks, kCoarse);
  Pgac pgac({.gamma = GammaSchedule::constant(0)});
  steps.with(pgac);
  Race race(session, kBench, nullptr);
  race.add("plain", [&] { steps.plain(); });
  race.add("scored", [&] { steps.with(pgac); });
  race.run(Seconds(session.quick() ? 4 : 40));
  race.report("8 blocks, score, average and mask of each", "×plain",
              [](const Round& round) { return round["scored"] / round["plain"]; },
              {.at_most = 1.02});
  const Bytes plain = pgac_peak([&] { steps.plain(); });
  const Bytes scored = pgac_peak([&] { steps.with(pgac); });
  session.report(pgac_figure(kBench, "peak",
                             static_cast<double>(scored.count) / static_cast<double>(plain.count),
                             "×plain", {.at_most = 1.01}));
}

void pgac_budget(Session& session) {
  constexpr const char* kBench = "pgac_budget";
  constexpr int kBlocks = 8;
  const int kSteps = session.quick() ? 20 : 200;
  const BlockShape shape{.width = 64, .heads = 4, .length = 64, .batch = 4, .dropout = 0.1};
  Model model = make_model(kBlocks, shape);
  torch::optim::SGD optimizer(model.parameters, torch::optim::SGDOptions(0.05));
  BlockSteps plain(kBlocks, shape);
  plain.plain();
  const Bytes whole = pgac_peak([&] { plain.plain(); });
  std::mt19937_64 random(4);
  for (const int percent : {90, 70, 50}) {
    // Masks by a threshold that rises from what all layers pass to what few do; and drawn ones,
    // which change in every step.
    for (const bool draws : {false, true}) {
      const Bytes budget(whole.count * percent / 100);
      Pgac pgac({.alpha = 0.5,
                 .gamma = GammaSchedule::linear(0, 1.5),
                 .steps = kSteps,
                 .budget = budget});
      pgac.run(model.blocks, model.input);  // measures
      Bytes most;
      for (int step = 0; step < kSteps; ++step) {
        if (draws) {
          std::vector<bool> mask;
          for (int i = 0; i < kBlocks; ++i) mask.push_back((random() & 1) != 0);
          pgac.set_mask(mask);
        }
        const at::Tensor x = at::randn(model.input.sizes());
        most = std::max(most, pgac_peak([&] { (pgac.run(model.blocks, x) * 2).sum().backward(); }));
        pgac.observe(step);
        optimizer.step();
        model.drop_gradients();
      }
      const std::string where = fmt::format("{} steps in {} % of the plain step's bytes, {}",
                                            kSteps, percent, draws ? "drawn masks" : "a threshold");
      session.report(
          pgac_figure(kBench, where + ": peak",
                      static_cast<double>(most.count) / static_cast<double>(budget.count),
                      "×budget", {.at_most = 1}));
      session.report(pgac_figure(kBench, where + ": entries of the mask changed",
                                 static_cast<double>(pgac.report().changes), ""));
    }
  }
}

void pgac_exact(Session& session) {
  constexpr const char* kBench = "pgac_exact";
  constexpr int kLayers = 6;
  constexpr unsigned kMasks = 1u << kLayers;
  Model model =
      make_model(kLayers, {.width = 64, .heads = 4, .length = 32, .batch = 2, .dropout = 0.1});
  const auto gradients = [&](Pgac* pgac) {
    torch::manual_seed(5);
    at::Tensor x = model.input;
    if (pgac != nullptr) {
      x = pgac->run(model.blocks, x);
    } else {
      for (Block& block : model.blocks) x = block->forward(x);
    }
    x.square().mean().backward();
    std::vector<at::Tensor> all;
    for (const at::Tensor& parameter : model.parameters) all.push_back(parameter.grad().clone());
    model.drop_gradients();
    return all;
  };
  const std::vector<at::Tensor> expected = gradients(nullptr);
  Pgac pgac;
  gradients(&pgac);
  int same = 0;
  for (unsigned bits = 0; bits < kMasks; ++bits) {
    std::vector<bool> mask;
    for (int i = 0; i < kLayers; ++i) mask.push_back((bits >> i & 1) != 0);
    pgac.set_mask(mask);
    const std::vector<at::Tensor> found = gradients(&pgac);
    const bool is_same = std::equal(
        found.begin(), found.end(), expected.begin(), [](const at::Tensor& a, const at::Tensor& b) {
          return std::memcmp(a.const_data_ptr(), b.const_data_ptr(), a.nbytes()) == 0;
        });
    same += is_same ? 1 : 0;
  }
  session.report(pgac_figure(kBench,
                             fmt::format("masks of {} with the plain step's gradients", kMasks),
                             same, "masks", {.at_least = kMasks}));
}

void pgac_vs_static(Session& session) {
  torch::manual_seed(3);
  report_rankings(session, resnet());
  report_rankings(session, hourglass());
  report_rankings(session, mixed_gpt());
}

}  // namespace reprise::bench
