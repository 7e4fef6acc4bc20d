"""The Python side of the comparisons: runs one case when it is told to and answers with the figure.

The benchmark program (benchmarks/support/peer_process.cpp) drives it over a pipe, a line a request, so that
batches of both languages alternate and see the same weather of the machine:

    time CASE CALLS   ->  ok SECONDS    time per call, over CALLS calls (after one that is
                                        not timed, if CALLS is more than 1): processor time on the CPU, on
                                        an accelerator elapsed time until the device has done its work
    peak CASE         ->  ok BYTES      most bytes alive in a step above those before it
    has CASE          ->  ok 1 | ok 0
    anything failing  ->  error TEXT

The first line is `ok TORCH_VERSION`, or `error TEXT` where torch is missing. Tensors are made on `--device`
(cpu). With `--meter LIBRARY` the counting allocator of reprise is loaded into this process, which then serves
bytes (`peak`) of the CPU; the times come from a process without it. Bytes of an accelerator are those of torch's
statistics.
"""

import argparse
import ctypes
import sys
import time


def load_meter(path):
    meter = ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)
    meter.reprise_bench_peak_above_start.restype = ctypes.c_int64
    return meter


class Cases:
    """Steps by name, each made on the device at its first use: some own large models."""

    def __init__(self, device):
        import operators
        import transformers

        self.device = device
        self.factories = {**operators.CASES, **transformers.CASES}
        self.made = {}

    def step(self, name):
        if name not in self.made:
            # Steps make no tensors by name, so they run without this mode, which costs each call.
            with self.device:
                self.made[name] = self.factories[name]()
        return self.made[name]


def now(device):
    """In nanoseconds."""
    if device.type == "cpu":
        return time.process_time_ns()
    import torch

    torch.accelerator.synchronize(device)
    return time.perf_counter_ns()


def time_calls(step, calls, device):
    if calls > 1:
        step()
    start = now(device)
    for _ in range(calls):
        step()
    return (now(device) - start) / calls * 1e-9


def peak_bytes(step, meter, device):
    step()
    if device.type != "cpu":
        import torch

        torch.accelerator.reset_peak_memory_stats(device)
        before = torch.accelerator.memory_allocated(device)
        step()
        return torch.accelerator.max_memory_allocated(device) - before
    meter.reprise_bench_start()
    step()
    return meter.reprise_bench_peak_above_start()


def answer(words, cases, meter):
    if words[0] == "has":
        return int(words[1] in cases.factories)
    if words[0] == "time":
        return repr(time_calls(cases.step(words[1]), int(words[2]), cases.device))
    if words[0] == "peak":
        return peak_bytes(cases.step(words[1]), meter, cases.device)
    raise ValueError(f"no such request: {words[0]}")


def main():
    def say(text):
        print(text, flush=True)

    arguments = argparse.ArgumentParser()
    arguments.add_argument("--device", default="cpu")
    arguments.add_argument("--meter")
    options = arguments.parse_args()
    try:
        import torch

        meter = load_meter(options.meter) if options.meter else None
        cases = Cases(torch.device(options.device))
    except (ImportError, OSError, RuntimeError) as error:
        say(f"error {error}")
        return
    torch.set_num_threads(1)
    say(f"ok {torch.__version__}")
    for line in sys.stdin:
        try:
            say(f"ok {answer(line.split(), cases, meter)}")
        except Exception as error:  # the text goes to the program that asked, which stops on it
            say("error " + " ".join(f"{type(error).__name__}: {error}".split()))


if __name__ == "__main__":
    main()
