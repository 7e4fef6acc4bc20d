// PGAC's lossy tier while a small GPT is trained on the text of this source tree: bytes, time, the
// error of gradients as measured and as estimated, and what becomes of the validation loss. All
// variants of a seed are trained in turns, on the same batches with the same random numbers.
#include <ATen/ops/from_blob.h>
#include <ATen/ops/stack.h>
#include <c10/core/GradMode.h>
#include <fmt/format.h>
#include <reprise/checkpoint.h>
#include <reprise/experimental/pgac.h>
#include <reprise/memory.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/optim/adamw.h>
#include <torch/utils.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "benches.h"
#include "core/clock.h"
#include "core/statistics.h"
#include "models/gpt.h"

namespace reprise::bench {
namespace {

constexpr const char* kLossyTier = "lossy_tier";
constexpr std::int64_t kContext = 64, kBatch = 16;
constexpr double kNoBound = 1e6;
constexpr double kWarmUp = 10;  // steps
// Of which none is compressed: the tier knows nothing yet.
constexpr int kFirstSteps = 10;

// The documents, as bytes, in the order of their names; the last tenth is for validation.
struct LossyText {
  std::string training, validation;

  LossyText() {
    std::vector<std::filesystem::path> files;
    for (const auto& each :
         std::filesystem::recursive_directory_iterator(REPRISE_SOURCE_DIR "/docs")) {
      if (each.path().extension() == ".md") files.push_back(each.path());
    }
    std::ranges::sort(files);
    for (const auto& path : files) {
      std::ifstream file(path, std::ios::binary);
      training.append(std::istreambuf_iterator<char>(file), {});
    }
    const std::size_t split = training.size() - training.size() / 10;
    validation = training.substr(split);
    training.resize(split);
  }
};

struct TokenBatch {
  at::Tensor tokens, targets;
};

TokenBatch batch_at(const std::string& text, const std::vector<std::size_t>& places) {
  std::vector<at::Tensor> tokens, targets;
  const auto row = [&](std::size_t from) {
    auto* const bytes = const_cast<char*>(text.data() + from);  // read only
    return at::from_blob(bytes, {kContext}, at::kByte).to(at::kLong);
  };
  for (const std::size_t place : places) {
    tokens.push_back(row(place));
    targets.push_back(row(place + 1));
  }
  return {at::stack(tokens), at::stack(targets)};
}

enum class Tier { kPlain, kEveryBlock, kLossy };

// One model in training.
class Variant {
 public:
  Variant(std::string name, Tier tier, const PgacOptions& options, std::uint64_t seed)
      : name_(std::move(name)), tier_(tier), pgac_(options), model_(made(seed)) {
    if (options.lossy) pgac_bound_ = options.lossy->gradient_error;
    optimizer_ = std::make_unique<torch::optim::AdamW>(model_->parameters(),
                                                       torch::optim::AdamWOptions(1e-3));
    for (const auto& block : model_->blocks()) {
      for (const at::Tensor& each : block->parameters()) of_blocks_.push_back(each);
    }
  }

  const std::string& name() const { return name_; }
  Tier tier() const { return tier_; }

  void train(const TokenBatch& batch, std::int64_t step, bool examines) {
    std::vector<at::Tensor> exact;
    if (examines && tier_ == Tier::kLossy) {
      backward(batch, step, Tier::kPlain);
      for (const at::Tensor& each : of_blocks_) exact.push_back(each.grad().clone());
      model_->zero_grad();
    }
    const PeakScope peak;
    const Stopwatch watch;
    backward(batch, step, tier_);
    milliseconds_.push_back(watch.elapsed().count() * 1e3);
    if (step >= kFirstSteps) {
      peaks_.push_back(static_cast<double>(peak.peak_above_start().count));
      later_.push_back(milliseconds_.back());
    }
    if (tier_ == Tier::kLossy) {
      pgac_.observe(step);
      note(exact);
      if (step >= kFirstSteps && pgac_.report().audited) ++audits_;
    }
    // As `reprise train` does; without it such a training is left to chance in its first steps.
    torch::nn::utils::clip_grad_norm_(model_->parameters(), 1.0);
    for (auto& group : optimizer_->param_groups()) {
      group.options().set_lr(1e-3 * std::min(1.0, static_cast<double>(step + 1) / kWarmUp));
    }
    optimizer_->step();
    model_->zero_grad();
  }

  double validation(const LossyText& text) {
    const at::NoGradGuard no_grad;
    model_->eval();
    double sum = 0;
    constexpr std::size_t kBatches = 16;
    for (std::size_t i = 0; i < kBatches; ++i) {
      std::vector<std::size_t> places;
      const std::size_t room = text.validation.size() - kContext - 1;
      for (std::size_t k = 0; k < kBatch; ++k) {
        places.push_back(room * (i * kBatch + k) / (kBatches * kBatch));
      }
      const TokenBatch batch = batch_at(text.validation, places);
      sum += model_->loss(batch.tokens, batch.targets).item<double>();
    }
    model_->train();
    return sum / kBatches;
  }

  const std::vector<double>& milliseconds() const { return milliseconds_; }
  const std::vector<double>& peaks() const { return peaks_; }
  const std::vector<double>& measured_errors() const { return measured_; }
  const std::vector<double>& estimated_errors() const { return estimated_; }
  double within_bound() const { return static_cast<double>(within_) / static_cast<double>(steps_); }
  double audited() const {
    return static_cast<double>(audits_) / std::max(1.0, static_cast<double>(later_.size()));
  }
  double compressed() const {
    return static_cast<double>(compressed_) / std::max(1.0, static_cast<double>(later_.size()));
  }
  // Of the steps after the first ones, audits among them.
  double mean_milliseconds() const {
    double sum = 0;
    for (const double each : later_) sum += each;
    return sum / std::max(1.0, static_cast<double>(later_.size()));
  }
  double times_fewer_bytes() const {
    return static_cast<double>(before_.count) / std::max(1.0, static_cast<double>(after_.count));
  }

 private:
  static models::Gpt made(std::uint64_t seed) {
    torch::manual_seed(seed);
    return models::Gpt(models::GptOptions{
        .layers = 6, .width = 128, .heads = 4, .context = kContext, .dropout = 0.1});
  }

  void backward(const TokenBatch& batch, std::int64_t step, Tier tier) {
    torch::manual_seed(static_cast<std::uint64_t>(step));
    at::Tensor x = model_->embed(batch.tokens);
    if (tier == Tier::kLossy) {
      x = pgac_.run(model_->blocks(), x);
    } else {
      for (models::GptBlock block : model_->blocks()) {
        x = tier == Tier::kPlain ? block->forward(x) : checkpoint(block, x);
      }
    }
    models::next_token_loss(model_->head(x), batch.targets).backward();
  }

  void note(const std::vector<at::Tensor>& exact) {
    const PgacReport report = pgac_.report();
    before_ += report.compressed_from;
    after_ += report.compressed_to;
    ++steps_;
    if (report.gradient_error <= pgac_bound_) ++within_;
    if (report.compressed_from.count > 0) ++compressed_;
    if (exact.empty() || report.gradient_error == 0) return;
    double error = 0, all = 0;
    for (std::size_t i = 0; i < exact.size(); ++i) {
      error += (of_blocks_[i].grad() - exact[i]).square().sum().item<double>();
      all += exact[i].square().sum().item<double>();
    }
    measured_.push_back(std::sqrt(error / all));
    estimated_.push_back(report.gradient_error);
  }

  std::string name_;
  Tier tier_;
  Pgac pgac_;
  models::Gpt model_;
  std::vector<at::Tensor> of_blocks_;
  std::unique_ptr<torch::optim::AdamW> optimizer_;
  std::vector<double> milliseconds_, later_, peaks_, measured_, estimated_;
  double pgac_bound_ = kNoBound;
  std::int64_t steps_ = 0, within_ = 0, audits_ = 0, compressed_ = 0;
  Bytes before_, after_;
};

// Every block in so many bits, whatever that does; or as influence and a bound route it.
PgacOptions all_blocks(double far) {
  return {.quantile = 1,
          .gamma = GammaSchedule::constant(2),
          .lossy = LossyOptions{.gradient_error = kNoBound, .int4_threshold = far}};
}
PgacOptions routed(double bound) {
  return {.quantile = 0.5, .lossy = LossyOptions{.gradient_error = bound}};
}

struct LossyCase {
  const char* name;
  Tier tier;
  PgacOptions options = {};
  Bar fewer = {};
};

std::vector<LossyCase> lossy_cases() {
  return {{"plain", Tier::kPlain},
          {"every block run again", Tier::kEveryBlock},
          {"8 bits, all blocks", Tier::kLossy, all_blocks(0), {.at_least = 3.8}},
          {"4 bits, all blocks", Tier::kLossy, all_blocks(1), {.at_least = 7}},
          {"routed by influence, error <= 3e-2", Tier::kLossy, routed(3e-2)},
          {"routed by influence, error <= 3e-3", Tier::kLossy, routed(3e-3)}};
}

// What the seeds came to, of one case.
struct Outcomes {
  std::vector<double> milliseconds, means, peaks, losses, measured, estimated;
  std::vector<double> within, audited, compressed;
  double fewer = 0;
};

void train_seed(std::uint64_t seed, int steps, const LossyText& text,
                std::vector<Outcomes>& outcomes) {
  std::vector<std::unique_ptr<Variant>> variants;
  for (const LossyCase& each : lossy_cases()) {
    variants.push_back(std::make_unique<Variant>(each.name, each.tier, each.options, seed));
  }
  std::mt19937_64 random(seed);
  for (int step = 0; step < steps; ++step) {
    std::vector<std::size_t> places;
    for (int i = 0; i < kBatch; ++i) {
      places.push_back(random() % (text.training.size() - kContext - 1));
    }
    const TokenBatch batch = batch_at(text.training, places);
    for (auto& variant : variants) variant->train(batch, step, step % 10 == 9);
  }
  for (std::size_t i = 0; i < variants.size(); ++i) {
    Outcomes& outcome = outcomes[i];
    Variant& variant = *variants[i];
    outcome.milliseconds.push_back(median(variant.milliseconds()));
    outcome.means.push_back(variant.mean_milliseconds());
    outcome.losses.push_back(variant.validation(text));
    std::ranges::copy(variant.measured_errors(), std::back_inserter(outcome.measured));
    std::ranges::copy(variant.estimated_errors(), std::back_inserter(outcome.estimated));
    outcome.fewer = variant.times_fewer_bytes();
    if (variant.tier() == Tier::kLossy) {
      outcome.within.push_back(variant.within_bound());
      outcome.audited.push_back(variant.audited());
      outcome.compressed.push_back(variant.compressed());
    }
    std::ranges::copy(variant.peaks(), std::back_inserter(outcome.peaks));
  }
}

void report_case(Session& session, const LossyCase& of, const Outcomes& mine,
                 const Outcomes& plain) {
  const auto report = [&](const std::string& what, const std::string& unit,
                          const std::vector<double>& values, Bar bar = {}) {
    session.report(
        make_figure(kLossyTier, fmt::format("{}: {}", of.name, what), unit, values, {}, bar));
  };
  const auto beside = [](const std::vector<double>& ours, const std::vector<double>& theirs) {
    std::vector<double> ratios;
    for (std::size_t i = 0; i < ours.size(); ++i) ratios.push_back(ours[i] / theirs[i]);
    return ratios;
  };
  report("step", "×plain", beside(mine.milliseconds, plain.milliseconds));
  const std::vector<double> peaks = beside(mine.peaks, plain.peaks);
  report("step, mean after the tenth", "×plain", beside(mine.means, plain.means));
  report("peak of a step, above its start", "×plain", peaks);
  report("highest such peak", "×plain", {std::ranges::max(peaks)});
  if (of.tier != Tier::kLossy) return;
  report("bytes of routed values", "× fewer", {mine.fewer}, of.fewer);
  report("steps after the tenth that were compressed", "of all", mine.compressed);
  report("steps after the tenth that were audited", "of all", mine.audited);
  if (mine.measured.empty()) return;
  report("gradient error, measured", "", mine.measured);
  report("gradient error, expected at most ÷ measured", "", beside(mine.estimated, mine.measured));
  if (of.options.lossy->gradient_error < kNoBound) {
    report("largest gradient error measured", "×bound",
           {std::ranges::max(mine.measured) / of.options.lossy->gradient_error}, {.at_most = 1});
    report("steps whose expected error is within the bound", "of all", mine.within);
  }
  double change = 0;
  for (const double ratio : beside(mine.losses, plain.losses)) change += ratio - 1;
  change /= static_cast<double>(mine.losses.size());
  report("validation loss, mean change", "×plain", {change},
         {.at_most = 0.005, .at_least = -0.005});
}

}  // namespace

void lossy_tier(Session& session) {
  const LossyText text;
  const std::vector<LossyCase> cases = lossy_cases();
  std::vector<Outcomes> outcomes(cases.size());
  const int seeds = session.quick() ? 1 : 3, steps = session.quick() ? 30 : 100;
  for (int seed = 1; seed <= seeds; ++seed) {
    train_seed(static_cast<std::uint64_t>(seed), steps, text, outcomes);
  }
  for (std::size_t i = 1; i < cases.size(); ++i) {
    report_case(session, cases[i], outcomes[i], outcomes.front());
  }
}

}  // namespace reprise::bench
