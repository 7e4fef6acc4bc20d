"""A training script under `reprise run --budget 40%`, beside the script alone."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile

SCRIPT = str(pathlib.Path(__file__).parent / "train.py")
SHARE = "40%"


def losses_and_seconds(*command):
    done = subprocess.run([sys.executable, *command], stdout=subprocess.PIPE, text=True, check=True, stderr=subprocess.DEVNULL,
                          env=os.environ | {"OMP_NUM_THREADS": "1"})
    *losses, seconds = done.stdout.splitlines()
    return losses, float(seconds)


def run(figures, quick):
    ratios, plain, peaks = [], [], []
    with tempfile.TemporaryDirectory() as folder:
        report = os.path.join(folder, "report.json")
        for _ in range(1 if quick else 7):
            expected, alone = losses_and_seconds(SCRIPT)
            losses, seconds = losses_and_seconds("-m", "reprise", "run", "--budget", SHARE, "--report", report, SCRIPT)
            if losses != expected:
                raise SystemExit("python_run: the losses are not those of the script alone")
            ratios.append(seconds / alone)
            plain.append(alone)
            figure = json.loads(pathlib.Path(report).read_text())
            peaks.append(figure["peak"] / figure["limit"])
    figures.add("python_run", f"{SHARE} of the activations: time", ratios, "x alone", bar=1.15)
    figures.add("python_run", f"{SHARE} of the activations: peak", peaks, "x limit", bar=1.0)
    figures.add("python_run", "the script alone", plain, "s")


BENCHES = {"python_run": run}
