"""The benches of the Python package, run by scripts/bench: `bench.py NAME... [--json] [--quick]`, or --list."""

import argparse
import ctypes
import os
import sys

os.environ["OMP_NUM_THREADS"] = "1"
os.environ["REPRISE_PLAN_CACHE_DIR"] = ""  # planning is measured, too

import torch  # noqa: E402

torch.set_num_threads(1)

import budgets  # noqa: E402
import compiled  # noqa: E402
import compiled_images  # noqa: E402
import compiled_operators  # noqa: E402
import compiled_random  # noqa: E402
import every_network  # noqa: E402
import pipelines  # noqa: E402
import regions  # noqa: E402
import script_run  # noqa: E402
from timing import Figures  # noqa: E402

BENCHES = {**budgets.BENCHES, **compiled.BENCHES, **compiled_images.BENCHES, **compiled_operators.BENCHES,
           **compiled_random.BENCHES, **every_network.BENCHES, **pipelines.BENCHES, **regions.BENCHES, **script_run.BENCHES}

M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_THRESHOLD = -1, -2, -3  # malloc.h


def keep_memory():
    """malloc gives nothing back to the system: the page faults that follow else come and go with the top of the heap, and
    cost up to a twentieth of a step, with a budget and without."""
    mallopt = ctypes.CDLL(None).mallopt
    for parameter, value in ((M_MMAP_THRESHOLD, 1 << 25), (M_TRIM_THRESHOLD, 2**31 - 1), (M_TOP_PAD, 1 << 28)):
        mallopt(parameter, value)


def main():
    parser = argparse.ArgumentParser(prog="scripts/bench")
    parser.add_argument("names", nargs="*")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--list", action="store_true")
    asked = parser.parse_args()
    if asked.list:
        print("\n".join(BENCHES))
        return 0
    unknown = [name for name in asked.names if name not in BENCHES]
    if unknown:
        parser.error(f"no bench is called {unknown[0]!r}; there are {', '.join(BENCHES)}")
    keep_memory()
    figures = Figures(asked.json, asked.quick)
    for name in asked.names:
        BENCHES[name](figures, asked.quick)
    figures.print()
    return int(figures.failed)


if __name__ == "__main__":
    sys.exit(main())
