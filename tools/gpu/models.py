"""The part `models`: GPT-2 Medium's shape in bf16 under every strategy of reprise and of torch, one process each.

The same batch under all gives tokens a second and peaks. What fits in a number of bytes is searched after that: two peaks
give a line, the line a batch, and a run at this batch shows whether it fits.
"""

import dataclasses
import json
import pathlib
import statistics
import threading

import machine

PEERS = pathlib.Path(__file__).resolve().parent / "peers.py"
SHARES = (0.75, 0.5, 0.35, 0.25)
# Weights and AdamW's two moments, in bytes a parameter: what is live before a step.
LIVE_PER_PARAMETER = 12
TRIES = 3
# The exit code of `reprise train` for a step that does not fit into its budget.
NO_ROOM = 4


@dataclasses.dataclass(frozen=True)
class Shape:
    layers: int
    width: int
    heads: int
    context: int
    batch: int
    steps: int
    limit: float  # bytes in which the largest batch is looked for

    def size(self, batch):
        return ["--layers", self.layers, "--width", self.width, "--heads", self.heads, "--context", self.context, "--batch", batch]

    def options(self, batch, steps):
        return [*self.size(batch), "--steps", steps]

    def parameters(self):
        block = 12 * self.width**2 + 13 * self.width
        return self.layers * block + (256 + self.context + 2) * self.width


LLAMA = Shape(layers=16, width=2048, heads=32, context=1024, batch=8, steps=12, limit=40e9)
# Processes of all strategies fit on a card together.
FEW_LAYERS = dataclasses.replace(LLAMA, layers=6)
MEDIUM = Shape(layers=24, width=1024, heads=16, context=1024, batch=8, steps=12, limit=40e9)
QUICK = Shape(layers=4, width=128, heads=4, context=128, batch=4, steps=4, limit=60e6)


@dataclasses.dataclass(frozen=True)
class Machine:
    program: pathlib.Path
    python: str
    device: str
    data: pathlib.Path
    environment: dict | None = None  # in which the package can be imported; None without the package


class MemoryWatch(threading.Thread):
    """The most MiB that the card has in use while it runs, above those before: what the allocator has reserved, and the
    context of CUDA. The same for both sides."""

    def __init__(self):
        super().__init__(daemon=True)
        self.before, self.most, self.ended = machine.memory_used(), None, threading.Event()

    def run(self):
        while self.before is not None and not self.ended.wait(0.3):
            used = machine.memory_used()
            if used is not None:
                self.most = max(self.most or 0, used - self.before)

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self.ended.set()
        self.join()


def summary(steps, tokens):
    """Of the steps {"ms", "peak_bytes"}: the first, and the median of the second half."""
    later = [step["ms"] for step in steps[len(steps) // 2:]]
    peaks = [step["peak_bytes"] for step in steps if step.get("peak_bytes")]
    return {"steps": len(steps), "first_ms": steps[0]["ms"], "ms": statistics.median(later),
            "tokens_per_s": 1000 * tokens / statistics.median(later), "peak_bytes": max(peaks) if peaks else None,
            "last_peak_bytes": peaks[-1] if peaks else None, "loss": steps[-1].get("loss")}


class Cases:
    def __init__(self, steps, where, shape):
        self.steps, self.where, self.shape = steps, where, shape

    def _measure(self, name, command, read):
        if self.steps.ended_well(name):
            return self.steps.run(name, command)
        with MemoryWatch() as watch:
            record = self.steps.run(name, command, read=read, states={NO_ROOM: "does not fit"},
                                    environment=self.where.environment)
        if isinstance(record.get("result"), dict):
            record["result"]["card_mib"] = watch.most
            self.steps.save()
        return record

    def reprise(self, name, strategy="none", budget="", batch=None, steps=None):
        batch, steps = batch or self.shape.batch, steps or self.shape.steps
        metrics = self.steps.folder / "metrics.jsonl"
        metrics.unlink(missing_ok=True)

        def read(text):
            lines = [json.loads(line) for line in metrics.read_text().splitlines()]
            run, _ = json.JSONDecoder().raw_decode(text[text.index("{\n"):])
            return {"batch": batch, "reserved_bytes": run.get("reserved_bytes"),
                    **summary(lines, batch * self.shape.context)}
        command = [self.where.program, "train", *self.shape.options(batch, steps), "--dtype", "bf16", "--device",
                   self.where.device, "--data", self.where.data, "--strategy", strategy, "--metrics", metrics, "--json"]
        return self._measure(name, command + (["--budget", budget] if budget else []), read)

    def python(self, name, case, batch=None, steps=None, network="gpt"):
        batch, steps = batch or self.shape.batch, steps or self.shape.steps

        def read(text):
            lines = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
            steps = [line for line in lines if "ms" in line]
            return {"batch": batch, "reserved_bytes": steps[-1].get("reserved_bytes"),
                    **summary(steps, batch * self.shape.context), **next((line for line in lines if "graphs" in line), {})}
        command = [self.where.python, PEERS, "--case", case, "--network", network, *self.shape.options(batch, steps), "--device", self.where.device]
        return self._measure(name, command, read)


def peak_of(record):
    return record.get("result", {}).get("peak_bytes") if record and record["state"] == "done" else None


def same_batch(cases):
    """Every strategy at one batch."""
    shape = cases.shape
    plain = cases.reprise("reprise plain")
    every_block = cases.reprise("reprise every-block", "every-block")
    cases.reprise("reprise selective", "selective:matmul")
    python_cases(cases)
    if peak_of(plain):
        cases.reprise("reprise budget that never binds", budget=str(int(2 * peak_of(plain))))
        activations = peak_of(plain) - LIVE_PER_PARAMETER * shape.parameters()
        for share in SHARES:
            cases.reprise(f"reprise budget {share:.0%}", budget=f"+{int(share * activations)}")
        if peak_of(every_block):
            cases.reprise("reprise budget of every-block's bytes", budget=str(peak_of(every_block)))


def python_cases(cases, network="gpt"):
    """torch's strategies, and the package's beside them."""
    def case(name, case):
        prefix = "" if network == "gpt" else f"{network}: "
        return cases.python(prefix + name, case, network=network)
    case("torch plain", "plain")
    every_block = case("torch every-block", "every-block")
    case("torch selective", "selective")
    if cases.where.environment and peak_of(every_block):
        case("reprise from Python, every-block's bytes", f"budget:{peak_of(every_block)}")


def largest_by_peak(cases, name, attempt, most):
    """From the peak of the case `name`. `attempt(name, batch)` runs some steps and gives the record."""
    shape = cases.shape
    first = peak_of(cases.steps.done.get(name))
    second = first and peak_of(attempt(f"{name}, batch {2 * shape.batch}", 2 * shape.batch))
    if not first or not second or second <= first:
        return
    batch = shape.batch + int((most - first) / (second - first) * shape.batch)
    for _ in range(TRIES):
        peak = peak_of(attempt(f"{name}, batch {batch}", batch)) if batch > 0 else None
        if peak and peak <= most:
            cases.steps.note(f"largest: {name}", {"batch": batch, "peak_bytes": peak, "limit_bytes": most})
            return
        batch -= 1


def largest_by_budget(cases, start, most):
    """Under a budget a batch fits or ends with an error; from `start` on it grows by halves, and then by bisection."""
    name, fits, fails = "reprise budget", None, None
    batch = start
    for _ in range(2 * TRIES + 2):
        record = cases.reprise(f"{name}, batch {batch}", budget=str(int(most)), batch=batch, steps=4)
        if record["state"] == "failed":
            return
        if record["state"] == "done":
            fits = batch
            cases.steps.note(f"largest: {name}", {"batch": batch, "peak_bytes": peak_of(record), "limit_bytes": most,
                                                  "tokens_per_s": record["result"]["tokens_per_s"]})
        else:
            fails = batch
        following = (fits + fails) // 2 if fits and fails else batch * 3 // 2 if fits else batch // 2
        if following in (0, batch, fits, fails):
            break
        batch = following


def run(steps, where, shape):
    cases = Cases(steps, where, shape)
    same_batch(cases)
    python_cases(Cases(steps, where, LLAMA if shape is MEDIUM else shape), "llama")

    def of_reprise(strategy):
        return lambda name, batch: cases.reprise(name, strategy, batch=batch, steps=4)

    def of_torch(case):
        return lambda name, batch: cases.python(name, case, batch=batch, steps=4)
    largest_by_peak(cases, "reprise plain", of_reprise("none"), shape.limit)
    largest_by_peak(cases, "reprise every-block", of_reprise("every-block"), shape.limit)
    largest_by_peak(cases, "reprise selective", of_reprise("selective:matmul"), shape.limit)
    for name in ("plain", "every-block", "selective"):
        largest_by_peak(cases, f"torch {name}", of_torch(name), shape.limit)
    plain = steps.done.get("largest: reprise plain")
    if plain:
        largest_by_budget(cases, plain["result"]["batch"] * 2, shape.limit)
