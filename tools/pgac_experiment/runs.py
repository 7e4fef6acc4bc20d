"""Runs `reprise train` for each run that is missing, and keeps its log, or why there is none."""

import json
import subprocess
import sys
import time

import data
import plan
from errors import ExperimentError

LOG, FAILURE = "log.jsonl", "failure.txt"
# `reprise` exits with it where a step does not fit in its budget.
OVER_BUDGET = 4


def run_all(program, out, settings):
    if not program.exists():
        raise ExperimentError(f"{program} does not exist; build it by scripts/build, or give another --program")
    version = subprocess.run([program, "--version"], capture_output=True, text=True, check=False).stdout.strip()
    keep_settings(out / "settings.json", settings, version)
    every = list(settings.runs())
    missing = [run for run in every if not is_done(run.folder(out))]
    begin = time.monotonic()
    for number, run in enumerate(missing):
        show(f"run {len(every) - len(missing) + number + 1} of {len(every)}: {run.model}, {run.method}, seed {run.seed}"
             + left(begin, number, len(missing)))
        train(program, out, settings, run)
    show("")


def keep_settings(file, settings, version):
    """A folder holds one experiment, made by one version."""
    text = json.dumps({"version": version, **json.loads(settings.json())}, indent=1) + "\n"
    if not file.exists():
        file.write_text(text, encoding="utf-8")
        return
    then, now = json.loads(file.read_text(encoding="utf-8")), json.loads(text)
    for name, value in now.items():
        if then.get(name) != value:
            raise ExperimentError(f"{file.parent} holds another experiment: its {name} is {then.get(name)}, and here {value}; "
                                  "give another --out")


def is_done(folder):
    if (folder / FAILURE).exists():
        return True
    log = folder / LOG
    if not log.exists():
        return False
    lines = log.read_text(encoding="utf-8").splitlines()
    try:
        return bool(lines) and json.loads(lines[-1]).get("kind") == "end"
    except json.JSONDecodeError:
        return False


def command_of(program, out, settings, run):
    command = [str(program), "train", "--model", run.model, "--method", run.method, "--seed", str(run.seed),
               "--steps", str(settings.steps), "--threads", str(settings.threads), "--attention", "unfused", "--json",
               "--log", str(run.folder(out) / LOG)]
    if run.method not in plan.WITHOUT_BUDGET:
        command += ["--budget", settings.budget]
    for name, value in settings.shapes[run.model].items():
        command += [f"--{name}", str(value)]
    return command + ["--data", *data.paths(out, settings, run.model)]


def train(program, out, settings, run):
    folder = run.folder(out)
    folder.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(command_of(program, out, settings, run), capture_output=True, text=True, check=False)
    if done.returncode == OVER_BUDGET:
        (folder / FAILURE).write_text(done.stderr, encoding="utf-8")
    elif done.returncode != 0:
        show("")
        raise ExperimentError(f"{run.model} under {run.method}, seed {run.seed}, ended with {done.returncode}: "
                              f"{done.stderr.strip() or 'no word why'}")


def left(begin, done, count):
    if done == 0:
        return ""
    seconds = (time.monotonic() - begin) / done * (count - done)
    return f", {seconds:.0f} s left" if seconds < 120 else f", {seconds / 60:.0f} min left"


def show(text):
    """One live line on a terminal, nothing elsewhere."""
    if sys.stderr.isatty():
        print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)
