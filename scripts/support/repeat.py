"""Runs the tests of folders again and again, to find those that pass by luck: called by scripts/test --repeat.

From the second round on the tests of a program come in another order and random programs are drawn from another seed;
the seed is the round, so that a failure can be had again. The first set that fails ends the run, and its output is kept.
"""

import argparse
import contextlib
import fcntl
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

from tally import tally

# Computes and moves memory until its parent is gone, however that ended.
BUSY = """
import os
parent, block = os.getppid(), bytearray(1 << 24)
while os.getppid() == parent:
    sum(range(1 << 18))
    block = bytearray(block)
"""


@contextlib.contextmanager
def busy(count):
    programs = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(count)]
    try:
        yield programs
    finally:
        for program in programs:
            program.kill()
        for program in programs:
            program.wait()


@contextlib.contextmanager
def alone(build):
    """Two runs at once would count each other's reports."""
    with open(os.path.join(build, "repeat.lock"), "w", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise SystemExit(f"error: another scripts/test --repeat is at work in {build}; wait for it") from None
        yield


def suites_of(build):
    """Folders of tests, but not those that build projects, which have no luck to find."""
    listed = subprocess.run(["ctest", "--test-dir", build, "--show-only=json-v1"], check=True, capture_output=True)
    return sorted({test["name"].split(".", 1)[0] for test in json.loads(listed.stdout)["tests"]} - {"packaging", "form"})


def run(build, suite, jobs, number, folder):
    """(seconds, counts) of one set."""
    results = os.path.join(build, "test-results")
    shutil.rmtree(results, ignore_errors=True)
    os.makedirs(results)
    junit = os.path.join(folder, "ctest.xml")
    seeds = {"RC_PARAMS": f"seed={number}"}
    if number > 1:
        seeds |= {"GTEST_SHUFFLE": "1", "GTEST_RANDOM_SEED": str(number)}
    began = time.monotonic()
    with open(os.path.join(folder, "output.txt"), "w", encoding="utf-8") as output:
        subprocess.run(["ctest", "--test-dir", build, "-j", jobs, "-R", rf"^{suite}\.", "--output-on-failure",
                        "--no-tests=error", "--test-output-size-passed", "1000000", "--output-junit", junit],
                       stdout=output, stderr=subprocess.STDOUT, env=os.environ | seeds, check=False)
    taken = time.monotonic() - began
    if not os.path.exists(junit):
        raise SystemExit(f"error: no tests in '{suite}'; the folders are {', '.join(suites_of(build))}")
    return taken, tally(junit, results)


def repeat(options, suites, folder):
    passed = failed = 0
    seconds = {suite: [] for suite in suites}
    for number in range(1, options.rounds + 1):
        for suite in suites:
            taken, counts = run(options.build, suite, options.jobs, number, folder)
            seconds[suite].append(taken)
            passed, failed = passed + counts.passed, failed + len(counts.failures)
            if counts.failures:
                for failure in counts.failures:
                    print(f"FAILED {failure}")
                print(f"-- {suite}: round {number} of {options.rounds} failed (GTEST_SHUFFLE={int(number > 1)} "
                      f"GTEST_RANDOM_SEED={number} RC_PARAMS=seed={number}); its output is in {folder}/output.txt")
                return passed, failed
            print(f"-- {suite}, round {number}: {counts.passed} passed, {counts.skipped.total()} skipped, {taken:.0f} s",
                  flush=True)
    for suite in suites:
        times = seconds[suite]
        print(f"-- {suite}: {len(times)} of {options.rounds} rounds passed, {min(times):.0f} to {max(times):.0f} s, "
              f"median {statistics.median(times):.0f} s")
    shutil.rmtree(folder)
    return passed, failed


def main():
    parser = argparse.ArgumentParser(prog="scripts/test --repeat")
    parser.add_argument("--build", required=True)
    parser.add_argument("--jobs", required=True)
    parser.add_argument("--rounds", type=int, required=True)
    parser.add_argument("--busy", action="store_true")
    parser.add_argument("suites", nargs="*")
    options = parser.parse_args()
    known = suites_of(options.build)
    for suite in options.suites:
        if suite not in known:
            raise SystemExit(f"error: there is no folder of tests '{suite}'; there are {', '.join(known)}")
    with alone(options.build), busy(2 if options.busy else 0):
        passed, failed = repeat(options, options.suites or known, tempfile.mkdtemp(prefix="reprise-repeat-"))
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
