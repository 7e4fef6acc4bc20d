"""What the proposal expects of PGAC, and whether the runs support it, refute it, or leave it open."""

import dataclasses
import math

import stats

SUPPORTED, REFUTED, NOT_SETTLED, NOT_MEASURED = "supported", "refuted", "not settled", "not measured"
# Validation is the same where it is less than this apart.
SAME = 0.005
RULE = f"""A measured figure is the geometric mean over seeds of the change beside the baseline's run with the same seed, with
its {stats.CONFIDENCE:.0%} interval by Student's t. An expectation is *supported* if a paired t-test, corrected by Holm's method
for all expectations of a method, tells the gain from its lower end with p < {stats.SIGNIFICANT} and the gain is above it. It
is *refuted* if the test tells them apart and the gain is below. Otherwise it is *not settled*. For validation both tests
against ± {SAME:.1%} must agree. It is *not measured* where a run or a figure is missing, where fewer than two seeds are in
common, or where the same memory is asked for and one of both took more than its budget."""


@dataclasses.dataclass(frozen=True)
class Claim:
    text: str
    expected: str
    baseline: str
    column: str
    # The ratio ours / theirs that is the lower end of what is expected, and whether less is better.
    bound: float
    less_is_better: bool = True
    same_memory: bool = False


GAINS = [
    Claim("less recomputation than static checkpointing", "15 to 30 % less", "uniform", "recompute_seconds", 0.85),
    Claim("less recomputation than DTR", "10 to 20 % less", "dtr", "recompute_seconds", 0.90),
    Claim("less recomputation, packing and tape together than DTR", "10 to 20 % less", "dtr", "overhead_seconds", 0.90),
    Claim("more throughput in the same memory than static checkpointing", "10 to 25 % more", "uniform", "units_a_second", 1.10,
          less_is_better=False, same_memory=True),
]
QUALITY = Claim("the same validation loss as without checkpointing", "less than 0.5 % apart", "none", "validation_loss", 1.0)


@dataclasses.dataclass
class Judged:
    model: str
    method: str
    claim: Claim
    measured: stats.Interval | None = None  # the ratio
    p: float = math.nan                     # before correction
    p_holm: float = math.nan
    verdict: str = NOT_MEASURED
    why: str = ""


def judge(logs, method):
    """A Judged for each model and claim about `method`. Corrected together."""
    judged = [judge_one(logs, model, method, claim) for model in logs.settings["models"] for claim in [*GAINS, QUALITY]]
    for each, p_holm in zip(judged, stats.holm([each.p for each in judged])):
        each.p_holm = float(p_holm)
        if each.measured is not None:
            each.verdict, each.why = verdict_of(each)
    return judged


def judge_one(logs, model, method, claim):
    judged = Judged(model, method, claim)
    ours, theirs = pairs_of(logs.runs, model, method, claim)
    judged.why = lack_of(ours, theirs, method, claim)
    if judged.why:
        return judged
    ours, theirs = ours[claim.column], theirs[claim.column]
    judged.measured = stats.ratio_of(ours, theirs)
    if claim is QUALITY:
        judged.p = p_of_equivalence(ours, theirs)
    else:
        judged.p = stats.p_of_ratio(ours, theirs, claim.bound)
    return judged


def pairs_of(runs, model, method, claim):
    """Rows of both with the same seeds, in the same order."""
    of_model = runs[runs["model"] == model].set_index("seed")
    ours, theirs = (of_model[of_model["method"] == name] for name in (method, claim.baseline))
    seeds = ours.index.intersection(theirs.index).sort_values()
    return ours.loc[seeds], theirs.loc[seeds]


def lack_of(ours, theirs, method, claim):
    """Why nothing can be judged; empty if it can."""
    if len(ours) < 2:
        return f"{len(ours)} seeds with a complete run of both {method} and {claim.baseline}"
    if not ((ours[claim.column] > 0).all() and (theirs[claim.column] > 0).all()):
        return f"{claim.column.replace('_', ' ')} is zero in a run"
    if claim.same_memory:
        for rows, name in ((ours, method), (theirs, claim.baseline)):
            if (rows["peak_bytes"] > rows["budget_bytes"]).any():
                return f"{name} took more than its budget"
    return ""


def p_of_equivalence(ours, theirs):
    """The larger p of two one-sided tests, that the ratio is above 1 - SAME and below 1 + SAME; where it is clearly outside, the
    p of that."""
    inside = max(stats.p_of_ratio(ours, theirs, 1 - SAME, "greater"), stats.p_of_ratio(ours, theirs, 1 + SAME, "less"))
    outside = min(stats.p_of_ratio(ours, theirs, 1 - SAME, "less"), stats.p_of_ratio(ours, theirs, 1 + SAME, "greater"))
    return min(inside, outside)


def verdict_of(judged):
    claim, mean = judged.claim, judged.measured.mean
    if not judged.p_holm < stats.SIGNIFICANT:
        return NOT_SETTLED, f"p = {judged.p_holm:.2g}"
    if claim is QUALITY:
        holds = 1 - SAME < mean < 1 + SAME
    else:
        holds = mean < claim.bound if claim.less_is_better else mean > claim.bound
    return (SUPPORTED if holds else REFUTED), f"p = {judged.p_holm:.2g}"
