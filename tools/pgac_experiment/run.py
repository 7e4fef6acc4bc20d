#!/usr/bin/env python3
"""Trains models under PGAC and its baselines, and reports what came of it.

All measurements are kept in the folder of --out, one folder a run, so an experiment that was interrupted goes on with the
same command. The report is made anew from that folder each time.
"""

import argparse
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
ROOT = pathlib.Path(__file__).resolve().parents[2]

try:
    import filelock
    import matplotlib  # noqa: F401
    import pandas  # noqa: F401
    import scipy  # noqa: F401
    import sklearn  # noqa: F401
    import statsmodels  # noqa: F401
    import tabulate  # noqa: F401
except ImportError as missing:
    print(f"run.py: no module {missing.name}; `scripts/setup --experiments` installs what is needed and says with which "
          "python3 to run this", file=sys.stderr)
    sys.exit(2)

from errors import ExperimentError  # noqa: E402
import logs  # noqa: E402
import plan  # noqa: E402
import report  # noqa: E402
import runs  # noqa: E402


def arguments(words):
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--out", type=pathlib.Path, help="folder of the experiment; pgac-experiment, or pgac-quick with --quick")
    parser.add_argument("--quick", action="store_true", help="tiny models and few methods, in about two minutes")
    parser.add_argument("--models", type=names, help="of " + ",".join(plan.MODELS))
    parser.add_argument("--methods", action="append",
                        help="names of `reprise train --method`, separated by spaces; may be given again")
    parser.add_argument("--seeds", type=int, help="runs of each method; 4, or 3 with --quick")
    parser.add_argument("--steps", type=int, help="of each run; 50, or 8 with --quick")
    parser.add_argument("--budget", default="70%", help="as `reprise train --budget`; 70%% of the plain step's peak")
    parser.add_argument("--text", type=pathlib.Path, action="append",
                        help="text for bert and gpt; else topics of Python's documentation")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads of each run")
    parser.add_argument("--program", type=pathlib.Path, default=ROOT / "build/release/bin/reprise", help="the program reprise")
    parser.add_argument("--report-only", action="store_true", help="run nothing, and report what is there")
    return parser.parse_args(words)


def names(text):
    return [each for each in text.split(",") if each]


def run(words):
    options = arguments(words)
    out = options.out or pathlib.Path("pgac-quick" if options.quick else "pgac-experiment")
    settings = plan.settings(options)
    out.mkdir(parents=True, exist_ok=True)
    lock = filelock.FileLock(out / ".lock")
    try:
        lock.acquire(timeout=0)
    except filelock.Timeout:
        raise ExperimentError(f"another run.py works in {out}; wait for it, or give another --out") from None
    with lock:
        if not options.report_only:
            runs.run_all(options.program, out, settings)
        page = report.write(out, logs.read(out), " ".join(["python3 tools/pgac_experiment/run.py", *words]))
    print(page)


def main(words):
    try:
        run(words)
    except ExperimentError as error:
        print(f"run.py: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("run.py: interrupted; the same command goes on", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
