"""The logs of all runs as tables of pandas: a row a run, and a row a step."""

import dataclasses
import json

import pandas

from errors import ExperimentError
from runs import FAILURE, LOG

# The first step also measures layers and makes what LibTorch keeps, so no time of it counts.
STEPS_NOT_TIMED = 1
# Parts of a step's seconds that keeping within the budget costs beside running the step once.
OVERHEAD = ["recompute_seconds", "packing_seconds", "tape_seconds"]
KEY = ["model", "method", "seed"]


@dataclasses.dataclass
class Logs:
    settings: dict
    runs: pandas.DataFrame   # one row a complete run
    steps: pandas.DataFrame  # one row a step of them
    failures: list           # (model, method, seed, why)


def read(out):
    settings_file = out / "settings.json"
    if not settings_file.exists():
        raise ExperimentError(f"{out} holds no experiment; run without --report-only first")
    runs, steps, failures = [], [], []
    for folder in sorted(path for path in (out / "runs").glob("*/*/*") if path.is_dir()):
        key = key_of(folder)
        if (folder / FAILURE).exists():
            failures.append((*key.values(), (folder / FAILURE).read_text(encoding="utf-8").strip()))
            continue
        lines = lines_of(folder / LOG)
        if not lines or lines[-1]["kind"] != "end":
            continue
        head, *middle, end = lines
        steps += [{**key, **line} for line in middle]
        runs.append({**key, **head_of(head), **end_of(end)})
    if not runs:
        raise ExperimentError(f"{out} has no complete run; run the same command without --report-only")
    table = pandas.DataFrame(steps)
    settings = json.loads(settings_file.read_text(encoding="utf-8"))
    return Logs(settings, with_steps(pandas.DataFrame(runs), table), table, failures)


def key_of(folder):
    model, method, seed = folder.parts[-3:]
    return {"model": model, "method": method.replace("=", ":", 1) if method.startswith("pgac=") else method, "seed": int(seed)}


def lines_of(file):
    """Nothing for a log whose last line was cut, since its run is not complete."""
    if not file.exists():
        return []
    try:
        return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    except json.JSONDecodeError:
        return []


def head_of(head):
    kept = ("version", "libtorch", "machine", "data", "fingerprint", "units", "layers", "exact")
    budget = None if head["budget_bytes"] is None else head["budget_bytes"] - head["live_before_step_bytes"]
    return {**{name: head[name] for name in kept}, "description": head["model"], "budget_bytes": budget}


def end_of(end):
    return {name: end[name] for name in ("validation_loss", "accuracy", "weights_xxh3")}


def with_steps(runs, steps):
    """The runs with figures over their timed steps. Seconds are medians, since another program may interrupt a step. Bytes are
    those above what is live before a step: the most that a step of the run adds."""
    seconds = ["seconds", "forward_seconds", "backward_seconds", *OVERHEAD, "overhead_seconds"]
    steps = steps.assign(overhead_seconds=steps[OVERHEAD].sum(axis=1), peak_bytes=steps["peak_bytes"] - steps["live_bytes"])
    timed = steps[steps["step"] > STEPS_NOT_TIMED].groupby(KEY)
    figures = timed[seconds].median()
    figures["units_a_second"] = timed["units"].median() / figures["seconds"]
    figures["peak_bytes"] = steps.groupby(KEY)["peak_bytes"].max()
    return runs.merge(figures.reset_index(), on=KEY)
