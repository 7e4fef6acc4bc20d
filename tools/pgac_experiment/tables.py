"""Tables of the report, as Markdown by pandas."""

import pandas

import stats

# A method's row is compared with these.
BASELINES = ["none", "uniform"]


def markdown(rows):
    return pandas.DataFrame(rows).to_markdown(index=False, disable_numparse=True)


def percent(interval):
    """A ratio as a change: '−9.0 % (−12.0 to −6.1)'."""
    low, high = (f"{100 * (value - 1):+.1f}" for value in (interval.low, interval.high))
    mean = f"{100 * (interval.mean - 1):+.1f} %"
    return mean if interval.low != interval.low else f"{mean} ({low} to {high})"


def milliseconds(seconds):
    found = stats.interval_of(seconds * 1e3)
    if found.low != found.low:
        return f"{found.mean:.1f}"
    return f"{found.mean:.1f} ({found.low:.1f} to {found.high:.1f})"


def expectations(judged):
    return markdown([{"model": each.model, "expectation": f"{each.claim.text} (`{each.claim.baseline}`)",
                      "expected": each.claim.expected,
                      "measured change": percent(each.measured) if each.measured else "–",
                      "verdict": f"*{each.verdict}*", "because": each.why} for each in judged])


def methods_of(runs, model):
    """In the order in which they were named."""
    return list(dict.fromkeys(runs[runs["model"] == model]["method"]))


def of_model(logs, model, methods):
    """Memory and time of each method. p-values are corrected for the methods of the table."""
    runs = logs.runs[logs.runs["model"] == model].set_index("seed")
    rows, p_values = [], {name: [] for name in BASELINES}
    for method in methods:
        ours = runs[runs["method"] == method]
        row = {"method": f"`{method}`", "seeds": len(ours), "peak above (MB)": f"{ours['peak_bytes'].max() / 1e6:.2f}",
               "budget above (MB)": "–" if ours["budget_bytes"].isna().all() else f"{ours['budget_bytes'].max() / 1e6:.2f}",
               "ms a step": milliseconds(ours["seconds"])}
        for name in BASELINES:
            theirs = runs[runs["method"] == name]
            seeds = ours.index.intersection(theirs.index)
            known = method != name and len(seeds) > 1
            pair = (ours.loc[seeds]["seconds"], theirs.loc[seeds]["seconds"])
            row[f"time beside {name}"] = percent(stats.ratio_of(*pair)) if known else "–"
            p_values[name].append(stats.p_of_ratio(*pair) if known else float("nan"))
        rows.append(row)
    for name, values in p_values.items():
        for row, p in zip(rows, stats.holm(values)):
            row[f"p, {name}"] = "–" if p != p else f"{p:.2g}"
    return markdown(rows)


def parts_of_step(logs, model, methods):
    """Where a step's time goes, in milliseconds."""
    runs = logs.runs[logs.runs["model"] == model]
    rows = []
    for method in methods:
        ours = runs[runs["method"] == method]
        row = {"method": f"`{method}`"}
        for name in ("forward", "backward", "recompute", "packing", "tape"):
            row[name] = f"{1e3 * ours[name + '_seconds'].mean():.2f}"
        row["overhead / step"] = f"{100 * (ours['overhead_seconds'] / ours['seconds']).mean():.1f} %"
        rows.append(row)
    return markdown(rows)


def learning(logs, model, methods):
    """What was learned, and in how many steps the loss is not that of `none`, bit for bit."""
    runs = logs.runs[logs.runs["model"] == model]
    steps = logs.steps[logs.steps["model"] == model].set_index(["seed", "step"])
    plain = steps[steps["method"] == "none"]["loss"]
    rows = []
    for method in methods:
        ours = runs[runs["method"] == method]
        loss = stats.interval_of(ours["validation_loss"])
        row = {"method": f"`{method}`", "exact": "yes" if ours["exact"].all() else "no",
               "validation loss": f"{loss.mean:.4f}" + (f" ({loss.low:.4f} to {loss.high:.4f})" if loss.low == loss.low else "")}
        if ours["accuracy"].notna().any():
            row["accuracy"] = f"{100 * ours['accuracy'].mean():.1f} %"
        own = steps[steps["method"] == method]["loss"]
        both = own.index.intersection(plain.index)
        row["steps with another loss than none"] = f"{int((own.loc[both] != plain.loc[both]).sum())} of {len(both)}"
        rows.append(row)
    return markdown(rows)


def masks(logs, model):
    """Whether the budget or a search changed what the threshold of PGAC wanted. Empty where no method has a mask."""
    steps = logs.steps[logs.steps["model"] == model]
    if "mask" not in steps or steps["mask"].isna().all():
        return ""
    steps = steps[steps["mask"].notna()]
    rows = []
    for method in methods_of(steps, model):
        ours = steps[steps["method"] == method]
        changed = ours.groupby("seed")["mask"].apply(lambda mask: int((mask != mask.shift()).sum()) - 1)
        rows.append({"method": f"`{method}`", "layers kept": f"{ours['mask'].map(lambda mask: mask.count('1')).mean():.2f}",
                     "layers wanted": f"{ours['wanted'].map(lambda mask: mask.count('1')).mean():.2f}",
                     "steps with another mask than wanted": f"{int((ours['mask'] != ours['wanted']).sum())} of {len(ours)}",
                     "steps decided by a search": f"{int(ours['by_search'].astype(bool).sum())} of {len(ours)}",
                     "changes of the mask, a run": f"{changed.mean():.1f}"})
    return markdown(rows)


def failures(logs):
    seeds = {}
    for model, method, seed, why in logs.failures:
        seeds.setdefault((model, method), []).append((seed, why))
    return markdown([{"model": model, "method": f"`{method}`", "seeds": ", ".join(str(seed) for seed, _ in found),
                      "why": found[0][1]} for (model, method), found in seeds.items()])
