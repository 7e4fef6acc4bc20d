"""Times strategies of torch.compile beside reprise.compile. All of them stay alive, one process each, and run some steps one
after the other, round by round, so that what the machine does meanwhile meets all alike. Prints a JSON object a strategy."""

import argparse
import contextlib
import json
import os
import pathlib
import random
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks/python"))
from timing import spread  # noqa: E402

PEERS = ROOT / "tools/gpu/peers.py"
SHARES = ("60%", "40%", "30%", "20%")
CASES = ("plain", "compile:1", "compile:0.5", "compile-every-block", "compile-selective",
         *(f"reprise-compile:{share}" for share in SHARES))
# Before times are taken: graphs are compiled, and compiled again once their step was measured.
FIRST_STEPS = 6
STEPS_A_ROUND = 8
OF_A_GRAPH = ("predicted_peak", "default_peak", "predicted_seconds", "planning_seconds")
# All processes compile at the same time.
ENVIRONMENT = {"TORCHINDUCTOR_COMPILE_THREADS": "4", "OMP_NUM_THREADS": "1"}


class Worker:
    """A strategy's process, which waits after its first steps."""

    def __init__(self, case, command, folder):
        self.case, self.failed, self.times, self.peak = case, False, [], 0
        self.log = folder / f"{case}.log"
        with open(self.log, "w", encoding="utf-8") as log:
            self.process = subprocess.Popen([*command, "--case", case, "--on-demand"], stdin=subprocess.PIPE, stderr=log,
                                            stdout=subprocess.PIPE, text=True, env={**os.environ, **ENVIRONMENT})

    def steps(self):
        """Those until it waits again. None, and `failed`, where it has ended."""
        found = []
        for said in self.said():
            if "waits" in said:
                print(f"{self.case}: {len(found)} steps", file=sys.stderr, flush=True)
                return found
            found.append(said)
        self.failed = True
        return None

    def said(self):
        return (json.loads(line) for line in self.process.stdout if line.startswith("{"))

    def run_a_round(self):
        try:
            self.process.stdin.write(f"{STEPS_A_ROUND}\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            self.failed = True
            return
        for step in (self.steps() or ())[1:]:  # the first fills the allocator's cache
            self.times.append(step["ms"])
            self.peak = max(self.peak, step.get("peak_bytes", 0))

    def end(self):
        """Ends it. What it says of its graphs."""
        self.process.stdin.close()
        graphs = next((said["graphs"] for said in self.said() if "graphs" in said), [])
        # Compilers that it has started keep its output open.
        self.process.kill()
        return [{key: graph[key] for key in OF_A_GRAPH} for graph in graphs]

    def failure(self):
        return (self.log.read_text(encoding="utf-8").strip().splitlines() or ["it said nothing"])[-1]


def race(options, command):
    with tempfile.TemporaryDirectory(prefix="reprise-race-") as folder, contextlib.ExitStack() as processes:
        def start(case):
            worker = Worker(case, command, pathlib.Path(folder))
            processes.enter_context(worker.process)
            return worker

        # Only one times operators.
        ours = [case for case in CASES if case.startswith("reprise")]
        workers = [start(case) for case in CASES if case not in ours[1:]]
        first = {worker.case: worker.steps() for worker in workers}
        later = [start(case) for case in ours[1:]]
        first |= {worker.case: worker.steps() for worker in later}
        workers += later
        shuffle = random.Random(1).shuffle
        for _ in range(options.rounds):
            shuffle(workers)
            for worker in workers:
                if not worker.failed:
                    worker.run_a_round()
        for worker in sorted(workers, key=lambda worker: CASES.index(worker.case)):
            if worker.failed:
                yield {"case": worker.case, "failed": worker.failure()}
                continue
            median = statistics.median(worker.times)
            yield {"case": worker.case, "ms": median, "spread": spread(worker.times),
                   "tokens_per_s": 1000 * options.batch * options.context / median, "peak_bytes": worker.peak,
                   "first_ms": first[worker.case][0]["ms"], "graphs": worker.end()}


def main():
    parser = argparse.ArgumentParser(prog="tools/gpu/race.py")
    parser.add_argument("--network", default="gpt")
    names = ("layers", "width", "heads", "context", "batch")
    for name in names:
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--rounds", type=int, default=4)
    options = parser.parse_args()
    command = [sys.executable, str(PEERS), "--network", options.network, "--device", options.device, "--steps", str(FIRST_STEPS)]
    for name in names:
        command += [f"--{name}", str(getattr(options, name))]
    for figure in race(options, command):
        print(json.dumps(figure), flush=True)


if __name__ == "__main__":
    main()
