// Figures of a finished run, as a table for people and as JSON for programs.
#include "apps/cli/training/training_report.h"

#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string>

#include "apps/cli/io/failure.h"
#include "apps/cli/io/figures.h"
#include "apps/cli/io/interrupt.h"
#include "apps/cli/io/streams.h"

namespace reprise::app {

namespace {

constexpr std::int64_t kSampleLength = 120;

int report_interruption(const TrainOptions& options, const Outcome& outcome) {
  const std::string saved = saved_where(options);
  const bool lacks_trace = !options.trace_out.empty() && outcome.traced_step == 0;
  print_error_line(fmt::format("reprise train: interrupted after step {}; {}{}", outcome.last.step,
                               saved.empty()
                                   ? "nothing was saved, for there is no --checkpoint-dir"
                                   : fmt::format("saved to {}; add --resume to go on", saved),
                               lacks_trace ? "; no step was traced" : ""));
  return exit_code_of_signal(outcome.signal);
}

std::string describe_verification(const TrainOptions& options, const Outcome& outcome) {
  const std::size_t steps = outcome.verification_milliseconds.size();
  if (steps == 0) return fmt::format("no step of this call: one of {} is", options.verify);
  const std::string what =
      outcome.difference
          ? fmt::format("the gradients of step {} differ from the plain step's", outcome.last.step)
          : "all gradients are those of the plain step, bit for bit";
  return fmt::format("{} step{}: {}; {} ms each, {} alive at once", steps, steps == 1 ? "" : "s",
                     what, format_milliseconds(median(outcome.verification_milliseconds)),
                     to_string(outcome.verification_peak));
}

nlohmann::json verification_of(const TrainOptions& options, const Outcome& outcome) {
  nlohmann::json verification = {{"every", options.verify},
                                 {"steps", outcome.verification_milliseconds.size()},
                                 {"gradients_equal", !outcome.difference},
                                 {"ms", median(outcome.verification_milliseconds)},
                                 {"peak_bytes", outcome.verification_peak.count}};
  if (outcome.difference) {
    verification["differing_step"] = outcome.last.step;
    verification["first_difference"] = outcome.difference->json();
  }
  return verification;
}

// Steps that may have gone wrong unseen, between the last verified one and the one that differs.
std::string describe_unverified(const TrainOptions& options, const Outcome& outcome) {
  const std::int64_t unverified = std::min(options.verify, outcome.last.step) - 1;
  if (unverified == 0) return "";
  return fmt::format("; the last {} not verified",
                     unverified == 1 ? "step was" : fmt::format("{} steps were", unverified));
}

int report_difference(const TrainOptions& options, const Outcome& outcome) {
  const std::string saved = saved_where(options);
  const bool plainly = options.strategy == "none" && !options.pipeline;
  print_error_line(fmt::format(
      "reprise train: at step {} under {} {}. The step was not done; {}; {}", outcome.last.step,
      options.pipeline ? "--pipeline" : options.strategy, outcome.difference->text(),
      saved.empty() ? "nothing was saved, for there is no --checkpoint-dir"
                    : fmt::format("step {} is saved to {}{}", outcome.last.step - 1, saved,
                                  describe_unverified(options, outcome)),
      plainly ? "the plain step itself does not repeat: look for operators that are not "
                "deterministic on this device"
              : "--determinism values names the tensor that is recomputed to other values"));
  return kDiffers;
}

std::string describe_tape(const Outcome& outcome, const TrainingBudget& budget) {
  const auto steps = static_cast<double>(outcome.milliseconds.size());
  const StepReport& sum = outcome.tape;
  const auto bytes = [&](Bytes total) {
    return to_string(Bytes(std::llround(static_cast<double>(total.count) / steps)));
  };
  const std::string packed =
      sum.packed == 0
          ? ""
          : fmt::format(
                ", packs {} ({}) in {} ms", format_count(static_cast<double>(sum.packed) / steps),
                bytes(sum.packed_bytes), format_milliseconds(1e3 * sum.pack_time.count() / steps));
  const std::string parked =
      sum.parked == 0 ? ""
                      : fmt::format(", parks {} ({}) and waits {} ms for that",
                                    format_count(static_cast<double>(sum.parked) / steps),
                                    bytes(sum.parked_bytes),
                                    format_milliseconds(1e3 * sum.transfer_time.count() / steps));
  return fmt::format(
      "{} held: a step drops {} values ({}){}{}, and runs {} operators again in {} ms",
      to_string(budget.limit()), format_count(static_cast<double>(sum.dropped) / steps),
      bytes(sum.dropped_bytes), packed, parked,
      format_count(static_cast<double>(sum.replayed) / steps),
      format_milliseconds(1e3 * sum.replay_time.count() / steps));
}

nlohmann::json tape_of(const Outcome& outcome, const TrainingBudget& budget) {
  nlohmann::json tape = {{"asked", budget.asked().text()},
                         {"bytes", budget.limit().count},
                         {"live_before_step_bytes", budget.live().count},
                         {"peak_bytes", outcome.tape.peak.count},
                         {"steps", outcome.milliseconds.size()},
                         {"per_step", per_step(outcome.tape, outcome.milliseconds.size())}};
  if (budget.asked().is_share()) tape["plain_peak_bytes"] = budget.measured().count;
  return tape;
}

void print_closing_table(const TrainOptions& options, const Outcome& outcome, Trainer& trainer) {
  const double typical = median(outcome.milliseconds);
  Facts facts;
  facts.add("loss", fmt::format("{:.4f}, validation {:.4f} nats per byte", outcome.last.loss,
                                outcome.validation_loss));
  facts.add("steps",
            fmt::format("{} in {}", outcome.milliseconds.size(), format_duration(outcome.seconds)));
  facts.add("speed",
            fmt::format("{} ms/step, {} tokens/s", format_milliseconds(typical),
                        format_count(static_cast<double>(outcome.last.tokens) / typical * 1e3)));
  facts.add("peak", fmt::format("{} alive at once{}", to_string(outcome.peak),
                                outcome.reserved == Bytes(0)
                                    ? ""
                                    : fmt::format(", {} reserved by the device's allocator",
                                                  to_string(outcome.reserved))));
  if (trainer.budget()) facts.add("budget", describe_tape(outcome, *trainer.budget()));
  if (trainer.pipeline() != nullptr) {
    facts.add("bubble", fmt::format("workers were idle for {:.1f} % of the last step's time",
                                    100 * trainer.pipeline()->timeline().bubble));
  }
  if (options.verify > 0) facts.add("verified", describe_verification(options, outcome));
  facts.add("weights", fmt::format("{:016x}", hash_parameters(*trainer.network().model())));
  if (outcome.traced_step > 0) {
    facts.add("trace", fmt::format("{}, of step {}", options.trace_out, outcome.traced_step));
  }
  if (!saved_where(options).empty()) facts.add("saved", saved_where(options));
  if (options.sample) facts.add("sample", trainer.sample(kSampleLength));
  print_result(facts.text());
}

void print_json(const TrainOptions& options, const Outcome& outcome, Trainer& trainer) {
  const double typical = median(outcome.milliseconds);
  nlohmann::json result = {
      {"options", describe(options)},
      {"device", trainer.network().device().str()},
      {"threads", at::get_num_threads()},
      {"step", trainer.steps_done()},
      {"loss", outcome.last.loss},
      {"validation_loss", outcome.validation_loss},
      {"seconds", outcome.seconds},
      {"ms_per_step", typical},
      {"tokens_per_s", static_cast<double>(outcome.last.tokens) / typical * 1e3},
      {"peak_bytes", outcome.peak.count},
      {"weights_xxh3", fmt::format("{:016x}", hash_parameters(*trainer.network().model()))},
      {"saved", saved_where(options)}};
  if (trainer.budget()) result["budget"] = tape_of(outcome, *trainer.budget());
  if (const PipelinedModel* const pipeline = trainer.pipeline()) {
    result["pipeline"] = pipeline->json();
    result["pipeline"]["bubble"] = pipeline->timeline().bubble;
  }
  if (outcome.reserved != Bytes(0)) result["reserved_bytes"] = outcome.reserved.count;
  if (options.verify > 0) result["verification"] = verification_of(options, outcome);
  if (outcome.traced_step > 0) {
    result["trace"] = {{"file", options.trace_out}, {"step", outcome.traced_step}};
  }
  if (options.sample) result["sample"] = trainer.sample(kSampleLength);
  print_object(result);
}

}  // namespace

nlohmann::json per_step(const StepReport& sum, std::size_t steps) {
  const auto mean = [&](auto total) {
    return static_cast<double>(total) / static_cast<double>(std::max<std::size_t>(steps, 1));
  };
  return {{"operators", mean(sum.operators)},
          {"dropped", mean(sum.dropped)},
          {"dropped_bytes", mean(sum.dropped_bytes.count)},
          {"replayed", mean(sum.replayed)},
          {"replay_ms", mean(1e3 * sum.replay_time.count())},
          {"packed", mean(sum.packed)},
          {"packed_bytes", mean(sum.packed_bytes.count)},
          {"pack_ms", mean(1e3 * sum.pack_time.count())},
          {"parked", mean(sum.parked)},
          {"parked_bytes", mean(sum.parked_bytes.count)},
          {"transfer_ms", mean(1e3 * sum.transfer_time.count())}};
}

int report(const TrainOptions& options, const Outcome& outcome, Trainer& trainer) {
  if (outcome.signal) return report_interruption(options, outcome);
  options.json ? print_json(options, outcome, trainer)
               : print_closing_table(options, outcome, trainer);
  return outcome.difference ? report_difference(options, outcome) : 0;
}

}  // namespace reprise::app
