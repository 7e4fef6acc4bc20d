// What is computed of runs: figures of each, their means over seeds, and comparisons with another
// method seed by seed.
#pragma once

#include <reprise/report.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "apps/cli/experiment/findings_runs.h"

namespace reprise::app {

// A figure of one run; NaN where it was not measured.
using Quantity = double (*)(const RunFile&);

double peak_bytes_of(const RunFile& run);    // the most of all steps
double milliseconds_of(const RunFile& run);  // of a step: their median
// What ran again, as a part of the time of all steps, and its milliseconds a step; both without the
// first of several steps, which includes what a method measures once.
double recompute_share_of(const RunFile& run);
double recompute_milliseconds_of(const RunFile& run);
double units_a_second_of(const RunFile& run);  // the mean step's units in the median step's time
double validation_loss_of(const RunFile& run);
double perplexity_of(const RunFile& run);
double accuracy_of(const RunFile& run);
double joules_of(const RunFile& run);
// Entries of the mask that differ from the step before; NaN for a method without a mask.
double mask_changes_of(const RunFile& run);
// Of lossy methods: means over the steps.
double gradient_error_of(const RunFile& run);
double compression_of(const RunFile& run);  // bytes before over bytes after

// Over the seeds for which there is a figure.
struct OverSeeds {
  double mean = kNoFigure;           // NaN without any
  std::optional<Interval> interval;  // 95 %; there from two seeds on
  std::size_t seeds = 0;
};

OverSeeds over_seeds(const std::vector<const RunFile*>& runs, Quantity quantity);

// Of a quantity for which both have a figure with the same seed: ours[i] and theirs[i].
struct PairedFigures {
  std::vector<double> ours, theirs;
};
PairedFigures paired(const std::vector<const RunFile*>& ours,
                     const std::vector<const RunFile*>& theirs, Quantity quantity);

// The geometric mean of ours / theirs, for positive quantities; nothing without a pair or where one
// is not positive.
OverSeeds ratio_of(const PairedFigures& pairs);
// The mean of (ours - theirs) / theirs; nothing without a pair or where one of theirs is zero.
OverSeeds change_of(const PairedFigures& pairs);

// Two-sided p-values by paired t-tests, of ratios and of differences; NaN for fewer than two pairs.
double p_of_ratio(const PairedFigures& pairs);
double p_of_difference(const PairedFigures& pairs);

// Steps with the same seed whose losses are not the same number, and how many were compared.
// Losses that are both not finite count as the same.
struct LossDifferences {
  std::int64_t differing = 0, compared = 0;
};
LossDifferences loss_differences(const std::vector<const RunFile*>& ours,
                                 const std::vector<const RunFile*>& theirs);

}  // namespace reprise::app
