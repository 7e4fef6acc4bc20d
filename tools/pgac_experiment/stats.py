"""Paired tests on runs with the same seed, in ratios: SciPy has the tests, statsmodels Holm's correction."""

import dataclasses
import math

import numpy
import scipy.stats
import statsmodels.stats.multitest

CONFIDENCE = 0.95
# Corrected p-values below it decide.
SIGNIFICANT = 0.05
# Logarithms of ratios that are closer than this are equal.
ROUNDING = 1e-12


@dataclasses.dataclass(frozen=True)
class Interval:
    mean: float
    low: float = math.nan
    high: float = math.nan


def interval_of(values):
    """The mean with its confidence interval by Student's t; bounds are NaN for a single value."""
    values = numpy.asarray(values, dtype=float)
    mean = float(values.mean())
    if len(values) < 2:
        return Interval(mean)
    if numpy.ptp(values) <= ROUNDING * abs(mean):
        return Interval(mean, mean, mean)
    error = float(scipy.stats.sem(values))
    low, high = scipy.stats.t.interval(CONFIDENCE, len(values) - 1, loc=mean, scale=error)
    return Interval(mean, float(low), float(high))


def ratio_of(ours, theirs):
    """The geometric mean of ours / theirs, pair by pair, with its interval. Values must be positive."""
    found = interval_of(logs_of(ours, theirs))
    return Interval(*(math.exp(value) for value in (found.mean, found.low, found.high)))


def p_of_ratio(ours, theirs, ratio=1.0, alternative="two-sided"):
    """p of the paired t-test that ours / theirs is `ratio`; NaN for a single pair."""
    return p_of_mean(logs_of(ours, theirs), math.log(ratio), alternative)


def p_of_mean(values, mean, alternative="two-sided"):
    values = numpy.asarray(values, dtype=float)
    if len(values) < 2:
        return math.nan
    if numpy.ptp(values) <= ROUNDING:
        # Equal values leave no doubt, and no t-test.
        beyond = {"two-sided": abs(values[0] - mean) > ROUNDING, "less": values[0] < mean, "greater": values[0] > mean}
        return 0.0 if beyond[alternative] else 1.0
    return float(scipy.stats.ttest_1samp(values, mean, alternative=alternative).pvalue)


def logs_of(ours, theirs):
    ours, theirs = numpy.asarray(ours, dtype=float), numpy.asarray(theirs, dtype=float)
    if ours.shape != theirs.shape:
        raise ValueError(f"{len(ours)} and {len(theirs)} values are no pairs; give those of the same seeds")
    if not (len(ours) and (ours > 0).all() and (theirs > 0).all()):
        raise ValueError("a ratio needs pairs of positive values")
    return numpy.log(ours) - numpy.log(theirs)


def holm(p_values):
    """Corrected for their number; NaN stays, and is not counted."""
    p_values = numpy.asarray(p_values, dtype=float)
    corrected = p_values.copy()
    known = ~numpy.isnan(p_values)
    if known.any():
        corrected[known] = statsmodels.stats.multitest.multipletests(p_values[known], alpha=SIGNIFICANT, method="holm")[1]
    return corrected
