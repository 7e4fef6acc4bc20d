#include "apps/cli/experiment/findings_figures.h"

#include <algorithm>
#include <cmath>
#include <span>
#include <utility>

#include "apps/cli/io/figures.h"

namespace reprise::app {

namespace {

// The mean of the values that are numbers; NaN if none is.
double mean_of_numbers(const std::vector<double>& values) {
  double sum = 0, count = 0;
  for (const double value : values) {
    if (std::isnan(value)) continue;
    sum += value;
    ++count;
  }
  return count > 0 ? sum / count : kNoFigure;
}

template <class F>
std::vector<double> of_steps(const RunFile& run, F&& figure) {
  std::vector<double> values;
  for (const StepLine& step : run.steps) values.push_back(figure(step));
  return values;
}

// A method measures in its first step what it plans with, and LibTorch makes what it keeps.
std::span<const StepLine> settled_steps(const RunFile& run) {
  const std::span<const StepLine> all(run.steps);
  return all.size() < 2 ? all : all.subspan(1);
}

OverSeeds summary_of(const std::vector<double>& figures) {
  OverSeeds over;
  over.seeds = figures.size();
  over.mean = mean_of_numbers(figures);
  if (figures.size() >= 2) over.interval = mean_interval(figures).interval;
  return over;
}

}  // namespace

double peak_bytes_of(const RunFile& run) {
  if (run.steps.empty()) return kNoFigure;
  return static_cast<double>(std::ranges::max(run.steps, {}, &StepLine::peak).peak.count);
}

double milliseconds_of(const RunFile& run) {
  std::vector<double> times = of_steps(run, [](const StepLine& step) { return step.milliseconds; });
  std::erase_if(times, [](double time) { return std::isnan(time); });
  return times.empty() ? kNoFigure : median(std::move(times));
}

double recompute_share_of(const RunFile& run) {
  double again = 0, all = 0;
  for (const StepLine& step : settled_steps(run)) {
    if (std::isnan(step.recompute_milliseconds) || std::isnan(step.milliseconds)) continue;
    again += step.recompute_milliseconds;
    all += step.milliseconds;
  }
  return all > 0 ? again / all : kNoFigure;
}

double recompute_milliseconds_of(const RunFile& run) {
  std::vector<double> times;
  for (const StepLine& step : settled_steps(run)) times.push_back(step.recompute_milliseconds);
  return mean_of_numbers(times);
}

double units_a_second_of(const RunFile& run) {
  const double units =
      mean_of_numbers(of_steps(run, [](const StepLine& step) { return double(step.units); }));
  const double milliseconds = milliseconds_of(run);
  return milliseconds > 0 ? 1e3 * units / milliseconds : kNoFigure;
}

double validation_loss_of(const RunFile& run) { return run.validation_loss; }
double perplexity_of(const RunFile& run) { return run.perplexity; }
double accuracy_of(const RunFile& run) { return run.accuracy; }
double joules_of(const RunFile& run) { return run.joules; }

double mask_changes_of(const RunFile& run) {
  double changes = 0;
  const std::string* before = nullptr;
  for (const StepLine& step : run.steps) {
    if (step.mask.empty()) continue;
    for (std::size_t i = 0; before != nullptr && i < step.mask.size(); ++i) {
      if (step.mask[i] != (*before)[i]) ++changes;
    }
    before = &step.mask;
  }
  return before == nullptr ? kNoFigure : changes;
}

double gradient_error_of(const RunFile& run) {
  return mean_of_numbers(of_steps(run, [](const StepLine& step) { return step.gradient_error; }));
}

double compression_of(const RunFile& run) {
  double from = 0, to = 0;
  for (const StepLine& step : run.steps) {
    from += static_cast<double>(step.compressed_from.count);
    to += static_cast<double>(step.compressed_to.count);
  }
  return to > 0 ? from / to : kNoFigure;
}

OverSeeds over_seeds(const std::vector<const RunFile*>& runs, Quantity quantity) {
  std::vector<double> figures;
  for (const RunFile* run : runs) {
    const double figure = quantity(*run);
    if (std::isfinite(figure)) figures.push_back(figure);
  }
  return summary_of(figures);
}

PairedFigures paired(const std::vector<const RunFile*>& ours,
                     const std::vector<const RunFile*>& theirs, Quantity quantity) {
  PairedFigures pairs;
  for (const RunFile* run : ours) {
    const auto other = std::ranges::find(theirs, run->seed, &RunFile::seed);
    if (other == theirs.end()) continue;
    const double figure = quantity(*run), beside = quantity(**other);
    if (!std::isfinite(figure) || !std::isfinite(beside)) continue;
    pairs.ours.push_back(figure);
    pairs.theirs.push_back(beside);
  }
  return pairs;
}

OverSeeds ratio_of(const PairedFigures& pairs) {
  const auto is_positive = [](double figure) { return figure > 0; };
  if (pairs.ours.empty() || !std::ranges::all_of(pairs.ours, is_positive) ||
      !std::ranges::all_of(pairs.theirs, is_positive)) {
    return {};
  }
  if (pairs.ours.size() == 1) return {pairs.ours[0] / pairs.theirs[0], std::nullopt, 1};
  const PairedTest test = paired_ratio_test(pairs.ours, pairs.theirs);
  return {test.mean, test.interval, pairs.ours.size()};
}

OverSeeds change_of(const PairedFigures& pairs) {
  std::vector<double> changes;
  for (std::size_t i = 0; i < pairs.ours.size(); ++i) {
    if (pairs.theirs[i] == 0) return {};
    changes.push_back((pairs.ours[i] - pairs.theirs[i]) / pairs.theirs[i]);
  }
  return summary_of(changes);
}

double p_of_ratio(const PairedFigures& pairs) {
  if (pairs.ours.size() < 2 || !ratio_of(pairs).interval) return kNoFigure;
  return paired_ratio_test(pairs.ours, pairs.theirs).p;
}

double p_of_difference(const PairedFigures& pairs) {
  if (pairs.ours.size() < 2) return kNoFigure;
  return paired_t_test(pairs.ours, pairs.theirs).p;
}

LossDifferences loss_differences(const std::vector<const RunFile*>& ours,
                                 const std::vector<const RunFile*>& theirs) {
  LossDifferences found;
  for (const RunFile* run : ours) {
    const auto other = std::ranges::find(theirs, run->seed, &RunFile::seed);
    if (other == theirs.end()) continue;
    const std::size_t steps = std::min(run->steps.size(), (*other)->steps.size());
    for (std::size_t i = 0; i < steps; ++i) {
      const double a = run->steps[i].loss, b = (*other)->steps[i].loss;
      const bool are_same = a == b || (std::isnan(a) && std::isnan(b));
      found.differing += are_same ? 0 : 1;
      ++found.compared;
    }
  }
  return found;
}

}  // namespace reprise::app
