"""The Python side of the comparisons: runs one case when it is told to and answers with the figure.

The benchmark program (benchmarks/support/peer_process.cpp) drives it over a pipe, a line a request, so that
batches of both languages alternate and see the same weather of the machine:

    time CASE CALLS   ->  ok SECONDS    processor time per call, over CALLS calls (after one that is
                                        not timed, if CALLS is more than 1)
    peak CASE         ->  ok BYTES      most bytes alive in a step above those before it
    has CASE          ->  ok 1 | ok 0
    anything failing  ->  error TEXT

The first line is `ok TORCH_VERSION`, or `error TEXT` where torch is missing. With `--meter LIBRARY`
the counting allocator of reprise is loaded into this process, which then serves bytes (`peak`); the
times come from a process without it.
"""

import ctypes
import sys
import time


def load_meter(path):
    meter = ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)
    meter.reprise_bench_peak_above_start.restype = ctypes.c_int64
    return meter


class Cases:
    """Steps by name, each made at its first use: some own large models."""

    def __init__(self):
        import operators
        import transformers

        self.factories = {**operators.CASES, **transformers.CASES}
        self.made = {}

    def step(self, name):
        if name not in self.made:
            self.made[name] = self.factories[name]()
        return self.made[name]


def time_calls(step, calls):
    if calls > 1:
        step()
    start = time.process_time_ns()
    for _ in range(calls):
        step()
    return (time.process_time_ns() - start) / calls * 1e-9


def peak_bytes(step, meter):
    step()
    meter.reprise_bench_start()
    step()
    return meter.reprise_bench_peak_above_start()


def answer(words, cases, meter):
    if words[0] == "has":
        return int(words[1] in cases.factories)
    if words[0] == "time":
        return repr(time_calls(cases.step(words[1]), int(words[2])))
    if words[0] == "peak":
        return peak_bytes(cases.step(words[1]), meter)
    raise ValueError(f"no such request: {words[0]}")


def main(arguments):
    def say(text):
        print(text, flush=True)

    try:
        import torch

        meter = load_meter(arguments[1]) if arguments[:1] == ["--meter"] else None
    except (ImportError, OSError) as error:
        say(f"error {error}")
        return
    torch.set_num_threads(1)
    cases = Cases()
    say(f"ok {torch.__version__}")
    for line in sys.stdin:
        try:
            say(f"ok {answer(line.split(), cases, meter)}")
        except Exception as error:  # the text goes to the program that asked, which stops on it
            say("error " + " ".join(f"{type(error).__name__}: {error}".split()))


if __name__ == "__main__":
    main(sys.argv[1:])
