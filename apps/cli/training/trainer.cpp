// A step in the usual order; what is unusual is that each part can be repeated exactly.
#include "apps/cli/training/trainer.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/multinomial.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <fmt/format.h>
#include <reprise/error.h>
#include <reprise/memory.h>
#include <torch/nn/utils/clip_grad.h>

#include <chrono>
#include <cmath>
#include <limits>
#include <utility>

#include "apps/cli/training/device.h"
#include "apps/cli/training/memory_need.h"
#include "apps/cli/training/park.h"

namespace reprise::app {

namespace {

constexpr Bytes kNoBound(std::int64_t{1} << 60);
constexpr std::int64_t kValidationSequences = 64;
constexpr double kSampleTemperature = 0.8;

// Options that a resumed run must share; the others (steps, rates, strategy, ...) may be changed.
constexpr const char* kPinned[] = {"model",   "layers", "width",      "heads",
                                   "context", "batch",  "accumulate", "seed"};

}  // namespace

torch::optim::AdamW make_optimizer(const torch::nn::Module& model, const TrainOptions& options) {
  std::vector<at::Tensor> matrices, others;
  for (const at::Tensor& parameter : model.parameters()) {
    (parameter.dim() > 1 ? matrices : others).push_back(parameter);
  }
  const auto with_decay = [&](double decay) {
    return std::make_unique<torch::optim::AdamWOptions>(
        torch::optim::AdamWOptions(options.learning_rate).betas({0.9, 0.95}).weight_decay(decay));
  };
  std::vector<torch::optim::OptimizerParamGroup> groups;
  groups.emplace_back(matrices, with_decay(options.weight_decay));
  groups.emplace_back(others, with_decay(0));
  return torch::optim::AdamW(groups, torch::optim::AdamWOptions(options.learning_rate));
}

Trainer::Trainer(const TrainOptions& options, models::Strategy strategy, TextData data,
                 c10::Device device)
    : options_(options),
      data_(std::move(data)),
      network_(options, device),
      strategy_(std::move(strategy)),
      learning_rate_{options.learning_rate, *options.warmup, options.steps},
      optimizer_(make_optimizer(*network_.model(), options)) {
  if (options.verify > 0 && !device.is_cpu()) {
    at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/true);
  }
  if (options.pipeline) {
    pipeline_.emplace(*options.pipeline, network_.parts(), batch_of_next_step(0).tokens, device,
                      region_options(options));
  }
}

Batch Trainer::batch_of_next_step(std::int64_t part) const {
  const auto starts = random_starts(options_.seed, done_ * options_.accumulate + part,
                                    options_.batch, data_.training.size(), options_.gpt.context);
  return cut(data_.training, starts, options_.gpt.context, network_.device());
}

double Trainer::accumulate(Run run) {
  const double share = 1.0 / static_cast<double>(options_.accumulate);
  const auto plainly = models::Strategy::parse("none");
  at::Tensor total;
  for (std::int64_t part = 0; part < options_.accumulate; ++part) {
    const Batch batch = batch_of_next_step(part);
    at::Tensor loss;
    if (!pipeline_) {
      loss =
          network_.run_backward(batch, run == Run::kPlainly ? plainly : strategy_, share) * share;
    } else if (run == Run::kPlainly) {
      loss = pipeline_->plain_step(batch.tokens, batch.targets, share);
    } else {
      loss = pipeline_->step(batch.tokens, batch.targets, share);
    }
    total = total.defined() ? total + loss : loss;
  }
  return total.item<double>();
}

Bytes Trainer::live_before_step() {
  const Bytes live = live_bytes(network_.device());
  if (!optimizer_.state().empty()) return live;
  return live + moment_bytes(*network_.model());
}

void Trainer::open_budget() {
  if (!options_.budget) return;
  const AskedBudget& asked = *options_.budget;
  optimizer_.zero_grad();
  const Bytes live = live_before_step();
  const c10::Device device = network_.device();
  const BudgetOptions options = budget_options(options_, open_park(options_.park, device), device);
  network_.model()->train();
  const Bytes moments = live - live_bytes(network_.device());
  Bytes measured;
  if (asked.is_share()) {
    const Verification plain(*network_.model(), network_.device(),
                             [&] { accumulate(Run::kPlainly); });
    measured = need_of_training(*network_.model(), live, plain.report().peak + moments).peak;
  }
  if (asked.is_least()) {
    measured = need_of_training(*network_.model(), live, least_of_backward(options) + moments).peak;
  }
  budget_.emplace(asked, live, measured, options);
  check_budget_memory(asked.text(), budget_->limit(), device);
}

// The least bytes of forward and backward of the next step, whose effects it undoes.
Bytes Trainer::least_of_backward(const BudgetOptions& options) {
  MemoryBudget boundless(kNoBound, options);
  const Verification recorded(*network_.model(), network_.device(), [&] {
    auto step = boundless.step();
    accumulate(Run::kAsAsked);
    step.finish();
  });
  return boundless.least().value();
}

TrainedStep Trainer::step(const std::shared_ptr<BudgetObserver>& observer) {
  network_.model()->train();
  std::optional<Verification> verification;
  if (is_verified_next()) {
    verification.emplace(*network_.model(), network_.device(), [&] { accumulate(Run::kPlainly); });
  }
  const auto start = std::chrono::steady_clock::now();
  const PeakScope memory(network_.device());
  TrainedStep report;
  report.step = done_ + 1;
  report.learning_rate = learning_rate_.at_step(done_);
  for (auto& group : optimizer_.param_groups()) group.options().set_lr(report.learning_rate);
  optimizer_.zero_grad();
  std::optional<MemoryBudget> boundless;
  if (!budget_ && observer) {
    boundless.emplace(kNoBound, BudgetOptions{.device = network_.device(), .observer = observer});
  }
  MemoryBudget* const budget = budget_     ? &budget_->of_step(verification.has_value(), observer)
                               : boundless ? &*boundless
                                           : nullptr;
  std::optional<MemoryBudget::Step> managed;
  if (budget) managed.emplace(budget->step());
  report.loss = finite_loss(accumulate(Run::kAsAsked));
  report.tokens = options_.accumulate * options_.batch * options_.gpt.context;
  const double comparing = verification ? verification->compare(*network_.model()) : 0;
  const double bound = options_.clip > 0 ? options_.clip : std::numeric_limits<double>::infinity();
  report.gradient_norm = torch::nn::utils::clip_grad_norm_(network_.model()->parameters(), bound);
  if (verification) report.verification = verification->report();
  if (report.differs()) {
    verification->put_back();
  } else {
    optimizer_.step();
    ++done_;
  }
  if (managed) {
    managed->finish();
    if (budget_) report.tape = budget->report();
  }
  synchronize(network_.device());
  report.peak = memory.peak();
  report.reserved = reserved_bytes(network_.device());
  report.milliseconds =
      std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count() -
      comparing;
  return report;
}

double Trainer::finite_loss(double loss) const {
  if (std::isfinite(loss)) return loss;
  throw Error(fmt::format("the loss is {} at step {}; try a smaller --lr or a longer --warmup",
                          loss, done_ + 1));
}

double Trainer::validation_loss() {
  const c10::NoGradGuard no_grad;
  network_.model()->eval();
  const auto starts =
      even_starts(kValidationSequences, data_.validation.size(), options_.gpt.context);
  double sum = 0;
  const auto plainly = models::Strategy::parse("none");
  for (std::size_t begin = 0; begin < starts.size();) {
    const auto end = std::min(begin + static_cast<std::size_t>(options_.batch), starts.size());
    const std::vector<std::size_t> some(starts.begin() + begin, starts.begin() + end);
    const Batch batch = cut(data_.validation, some, options_.gpt.context, network_.device());
    sum += network_.loss(batch, plainly).item<double>() * static_cast<double>(some.size());
    begin = end;
  }
  network_.model()->train();
  return sum / static_cast<double>(starts.size());
}

std::string Trainer::sample(std::int64_t length) {
  network_.model()->eval();
  at::Generator generator =
      at::detail::createCPUGenerator(static_cast<std::uint64_t>(options_.seed));
  std::string text = "\n";
  while (static_cast<std::int64_t>(text.size()) <= length) {
    const auto context = std::min<std::size_t>(text.size(), options_.gpt.context);
    at::Tensor tokens = at::empty({1, static_cast<std::int64_t>(context)}, at::kLong);
    for (std::size_t i = 0; i < context; ++i) {
      tokens.mutable_data_ptr<std::int64_t>()[i] =
          static_cast<unsigned char>(text[text.size() - context + i]);
    }
    const at::Tensor logits = network_.logits(tokens.to(network_.device())).select(1, -1).cpu();
    const at::Tensor next =
        at::multinomial(at::softmax(logits / kSampleTemperature, -1), 1, false, generator);
    const char byte = static_cast<char>(next.item<std::int64_t>());
    const bool begun = text.find_first_not_of(" \n\t") != std::string::npos;
    if (byte == '\n' && begun) break;
    text += byte;
  }
  network_.model()->train();
  const auto first = text.find_first_not_of(" \n\t");
  return first == std::string::npos ? "" : text.substr(first);
}

void Trainer::require_finite_weights() {
  for (const auto& entry : network_.model()->named_parameters()) {
    if (at::isfinite(entry.value().detach()).all().item<bool>()) continue;
    throw Error(
        fmt::format("the weights {} are not finite after step {}, which is not saved; try a "
                    "smaller --lr or --weight-decay, or a longer --warmup",
                    entry.key(), done_));
  }
}

void Trainer::require_finite(double validation_loss) const {
  if (std::isfinite(validation_loss)) return;
  throw Error(
      fmt::format("the validation loss is {} after step {}, which is not saved; try a smaller "
                  "--lr or a longer --warmup",
                  validation_loss, done_));
}

void Trainer::save(const std::filesystem::path& folder) {
  require_finite_weights();
  const TrainingFacts facts = {
      {"step", done_}, {"options", describe(options_)}, {"data", data_.fingerprint}};
  save_training(folder, facts, *network_.model(), optimizer_, network_.device());
}

void Trainer::resume(const std::filesystem::path& folder) {
  SavedTraining saved(folder);
  const auto file = training_checkpoint_file(folder).string();
  const nlohmann::json now = describe(options_), then = saved.facts().at("options");
  for (const char* option : kPinned) {
    if (now.at(option) != then.at(option)) {
      throw UsageError(fmt::format("--{} {} does not continue {}, which was made with --{} {}",
                                   option, now.at(option).dump(), file, option,
                                   then.at(option).dump()));
    }
  }
  if (saved.facts().at("data") != data_.fingerprint) {
    throw UsageError(
        fmt::format("the data differs from what {} was trained on; give the same --data, or "
                    "start anew in another folder",
                    file));
  }
  // Checkpoints of earlier versions know no pipelines.
  const bool had_pipeline = !then.value("pipeline", "").empty();
  if (had_pipeline != options_.pipeline.has_value()) {
    throw UsageError(fmt::format(
        "{} was made {} --pipeline, with which a model has a head matrix of its own: {}, or start "
        "anew in another folder",
        file, had_pipeline ? "with" : "without", had_pipeline ? "give one" : "leave it out"));
  }
  const auto done = saved.facts().at("step").get<std::int64_t>();
  if (done >= options_.steps) {
    throw UsageError(
        fmt::format("{} has done {} steps already; give more --steps to go on", file, done));
  }
  saved.restore(*network_.model(), optimizer_, network_.device());
  done_ = done;
}

}  // namespace reprise::app
