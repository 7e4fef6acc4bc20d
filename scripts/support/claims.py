"""What texts about activation checkpointing say in figures, measured: called by scripts/claims.

Each claim is one function that runs commands and returns our figure, its spread and a verdict. The bounds
that decide stand beside the text's figure in the table; nothing is fitted to what comes out.
"""

import argparse
import datetime
import glob
import json
import math
import os
import platform
import subprocess
import sys
import tempfile
from dataclasses import dataclass

HOLDS, FAILS, UNMEASURED = "holds", "does not hold", "not measurable here"


@dataclass
class Row:
    claim: str
    text: str  # the text's figure
    command: str
    ours: str
    verdict: str


class Programs:
    """Runs each command once; what is printed as JSON is remembered."""

    def __init__(self, folder, quick):
        self.folder, self.quick, self.known = folder, quick, {}

    def json(self, *arguments):
        if arguments not in self.known:
            command = [os.path.join(self.folder, "reprise"), *arguments, "--json"]
            print("-- reprise", *arguments, file=sys.stderr)
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode != 0:
                raise SystemExit(f"error: {' '.join(command)}\n{done.stderr}")
            self.known[arguments] = json.loads(done.stdout)
        return self.known[arguments]

    def has(self, subcommand):
        command = [os.path.join(self.folder, "reprise"), "--help"]
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        return any(line.split()[:1] == [subcommand] for line in text.splitlines())

    def bench(self, name):
        if name not in self.known:
            command = [os.path.join(self.folder, "reprise_bench"), name, "--json"]
            if self.quick:
                command.append("--quick")
            print("-- scripts/bench", name, file=sys.stderr)
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
            # 1: a bar was missed, and bars are not what is asked for here.
            if done.returncode not in (0, 1):
                raise SystemExit(f"error: {' '.join(command)} ended with {done.returncode}")
            lines = (json.loads(line) for line in done.stdout.splitlines())
            self.known[name] = {line["case"]: line for line in lines}
        return self.known[name]


class Claims:
    def __init__(self, programs, quick, steps):
        self.run = programs
        self.steps = str(steps or (2 if quick else 9))
        size = ["4", "64", "4", "64", "4"] if quick else ["12", "256", "8", "128", "4"]
        names = ["--layers", "--width", "--heads", "--context", "--batch"]
        self.model = [word for pair in zip(names, size) for word in pair]
        self.model += ["--dropout", "0", "--threads", "1"]
        self.context, self.layers = int(size[3]), int(size[0])

    # Of the model, with other options where they are given.
    def compare(self, *more):
        return ["compare", *self.model, "--steps", self.steps, *more]

    def strategies(self, *more):
        command = self.compare(*more)
        rows = self.run.json(*command)["strategies"]
        return "reprise " + " ".join(command), {row["strategy"]: row for row in rows}

    ALL = "every-block,sqrt,segments:2,segments:4,from-input"

    @staticmethod
    def within(value, least, most):
        return HOLDS if least <= value <= most else FAILS

    def law(self, claim, text, case, least, most, unit="L^"):
        figure = self.run.bench("memory_law")[case]
        value = figure["ours"]
        ours = f"{unit}{value:.2f}" if unit == "L^" else f"{value:.2f} {unit}"
        return Row(claim, text, "scripts/bench memory_law", ours + ", counted",
                   self.within(value, least, most))

    def grows_with_depth(self):
        return self.law("Activations that are all kept grow like the depth", "O(L)",
                        "exponent of peak, none", 0.9, 1.1)

    def grows_with_context(self):
        bytes_of = {}
        for context in (self.context // 2, self.context, 2 * self.context):
            command, rows = self.strategies("--strategies", "every-block", "--context",
                                            str(context))
            bytes_of[context] = rows["none"]["activation_bytes"]
        contexts = sorted(bytes_of)
        slope = exponent(contexts[0], bytes_of[contexts[0]], contexts[-1], bytes_of[contexts[-1]])
        return Row("… and like the length of the sequence", "O(T)",
                   command + f", and {contexts[0]}, {contexts[1]}", f"T^{slope:.2f}, counted",
                   self.within(slope, 0.9, 1.1))

    def memory_from_input(self):
        return self.law("Keeping nothing but the input takes constant memory", "O(1)",
                        "exponent of peak, from-input", -0.1, 0.1)

    def forwards_from_input(self):
        figures = self.run.bench("memory_law")
        name = next(case for case in figures if case.startswith("extra forwards, from-input"))
        depth = int(name.rsplit("=", 1)[1])
        value = figures[name]["ours"]
        return Row("… and, for each layer, the layers before it once more", "about L/2 forwards more",
                   "scripts/bench memory_law", f"{value:.1f} at L = {depth}, counted",
                   self.within(value / (depth / 2), 0.9, 1.1))

    def memory_of_root(self):
        return self.law("Checkpoints at every √L-th layer take the root of the memory", "O(√L)",
                        "exponent of peak, sqrt", 0.4, 0.6)

    def one_more_forward(self):
        figures = self.run.bench("memory_law")
        values = [figures[f"extra forwards, {each}"]["ours"] for each in ("sqrt", "every-block")]
        return Row("One more forward, whatever the length of a segment", "1",
                   "scripts/bench memory_law",
                   f"{values[0]:.2f} (√L), {values[1]:.2f} (each layer), counted; where the last "
                   "segment is kept, as by checkpoint_sequential, less by that",
                   HOLDS if all(0.95 <= value <= 1.05 for value in values) else FAILS)

    def time_whatever_the_segment(self):
        command, rows = self.strategies("--strategies", self.ALL)
        names = ["segments:2", "segments:4", "sqrt", "every-block"]
        # Of what is run again: all segments but the last, and all blocks.
        share = {"segments:2": 1 / 2, "segments:4": 3 / 4, "every-block": 1}
        count = round(math.sqrt(self.layers))
        share["sqrt"] = 1 - math.ceil(self.layers / count) / self.layers
        over = {name: (rows[name]["ratio_to_none"] - 1) / share[name] for name in names}
        text = ", ".join(f"{name} {spread_of(rows[name])}" for name in names)
        middle = sorted(over.values())[len(over) // 2]
        alike = all(abs(value - middle) <= 0.1 for value in over.values())
        return Row("… and so the same time, but for a last segment that is kept", "the same",
                   command, text, HOLDS if alike else FAILS)

    def planners(self):
        command = self.compare("--planners", "keep_all,every_stage")
        return "reprise " + " ".join(command), self.run.json(*command)

    def share_of_forward(self):
        command, result = self.planners()
        stages = result["chain"]["stages"]
        forward = sum(each["forward_seconds"] for each in stages)
        share = forward / (forward + sum(each["backward_seconds"] for each in stages))
        return Row("A forward is a third of a step, and so one more is a third more compute",
                   "about 33 %", command,
                   f"{100 * share:.0f} % (medians of the stages' profiles)",
                   self.within(share, 0.28, 0.38))

    def wall_time(self):
        command, rows = self.strategies("--strategies", self.ALL)
        row = rows["every-block"]
        return Row("Each block a region: so much more time", "20–35 %; 30 %; 1.3×", command,
                   spread_of(row), self.within(row["ratio_to_none"], 1.2, 1.35))

    def memory_of_blocks(self):
        command, rows = self.strategies("--strategies", self.ALL)
        factor = rows["none"]["activation_bytes"] / rows["every-block"]["activation_bytes"]
        return Row("… and so much less activation memory", "about 5×", command,
                   f"{factor:.1f}× at {self.layers} layers, counted",
                   self.within(factor, 4, 7))

    def selective(self):
        name = "selective:recompute-attention"
        command, rows = self.strategies("--strategies", "every-block," + name, "--attention",
                                        "unfused", "--context", str(2 * self.context))
        plain = rows["none"]["activation_bytes"]
        whole = plain - rows["every-block"]["activation_bytes"]
        part = (plain - rows[name]["activation_bytes"]) / whole
        ratio = rows[name]["ratio_to_none"]
        return Row("Running attention's insides again, and nothing else, saves most of it for far less",
                   "most of the memory; well under 33 %", command,
                   f"{100 * part:.0f} % of what whole blocks save; {spread_of(rows[name])}, blocks "
                   f"{spread_of(rows['every-block'])}",
                   HOLDS if part > 0.5 and ratio < 1.25 else FAILS)

    def fused_attention(self):
        slopes, command = {}, ""
        for kind in ("unfused", "fused"):
            found = {}
            for context in (self.context, 2 * self.context):
                command, rows = self.strategies("--strategies", "every-block", "--context",
                                                str(context), "--attention", kind)
                found[context] = rows["none"]["activation_bytes"]
            slopes[kind] = exponent(self.context, found[self.context], 2 * self.context,
                                    found[2 * self.context])
        return Row("Fused attention is the limit of that: the matrix of weights is never there",
                   "no T² term", command + ", unfused, and half the context",
                   f"T^{slopes['fused']:.2f} fused, T^{slopes['unfused']:.2f} not, counted",
                   HOLDS if slopes["fused"] < 1.1 < slopes["unfused"] else FAILS)

    def finer_grain(self):
        figures = self.run.bench("sequential_fine")
        fine, coarse = figures["100 segments"], figures["10 segments"]
        order = exponent(10, coarse["ours"] - 1, 100, fine["ours"] - 1)
        return Row("Finer than a block, the overhead jumps more than in proportion", "superlinear",
                   "scripts/bench sequential_fine",
                   f"regions^{order:.2f}: {fine['ours']:.2f}× plain (spread {100 * fine['spread']:.0f} %) with each "
                   f"of 100 small operators a region, {coarse['ours']:.2f}× (spread "
                   f"{100 * coarse['spread']:.0f} %) with ten of them",
                   HOLDS if order > 1 else FAILS)

    def filled(self):
        peak = self.strategies("--strategies", self.ALL)[1]["none"]["activation_bytes"]
        command = self.compare("--fill-budget", "--strategies", "every-block,sqrt", "--budget",
                               f"+{round(peak / 1e6)}MB")
        return "reprise " + " ".join(command), self.run.json(*command)["strategies"]

    def larger_batches(self):
        command, rows = self.filled()
        first, others = rows[0], [row for row in rows[1:] if row["fits"]]
        ours = ", ".join(
            f"{row['strategy']} {row['ratio_to_first']:.2f}× ({row['lowest_ratio']:.2f}–"
            f"{row['highest_ratio']:.2f}) at batch {row['batch']}" for row in others)
        if not others:
            return Row("In the same bytes larger batches repay the recomputation",
                       "more samples a second", command, "nothing fits", FAILS)
        best = max(row["ratio_to_first"] for row in others)
        return Row("In the same bytes larger batches repay the recomputation",
                   "more samples a second", command,
                   f"{ours}; without, batch {first['batch']}: 1",
                   HOLDS if best > 1 else FAILS)

    def one_sequence(self):
        command = self.compare("--strategies", "every-block")
        smallest = self.compare("--strategies", "every-block", "--batch", "1")
        batch = int(command[command.index("--batch") + 1])
        many = {row["strategy"]: row for row in self.run.json(*command)["strategies"]}
        one = {row["strategy"]: row for row in self.run.json(*smallest)["strategies"]}
        recomputing = batch / many["every-block"]["ms_per_step"]
        reduced = 1 / one["none"]["ms_per_step"]
        return Row("A smaller batch instead costs more throughput than recomputing", "more",
                   "reprise " + " ".join(smallest) + f", and batch {batch}",
                   f"{1e3 * reduced:.1f} samples a second plainly at batch 1, {1e3 * recomputing:.1f} "
                   f"recomputing at batch {batch}",
                   HOLDS if recomputing > reduced else FAILS)

    GIANT = ["estimate", "--model", "gpt", "--dropout", "0", "--dtype", "bf16", "--optimizer",
             "adamw", "--device", "cuda", "--flops", "990e12", "--bandwidth", "3.35e12", "--strategy", "every-block"]

    # `reprise estimate` of a model that no machine here can run; None without that command.
    def estimate(self, *more):
        if not self.run.has("estimate"):
            return None, None
        command = [*self.GIANT, *more]
        return "reprise " + " ".join(command), self.run.json(*command)

    def seventy_billion(self):
        claim = "70B parameters at 8K, batch 4, bf16: "
        command, result = self.estimate("--layers", "80", "--width", "8192", "--heads", "64",
                                        "--context", "8192", "--batch", "4")
        texts = ["1.1 TB", "120 GB", "10 GB", "about 33 %"]
        what = ["weights, gradients, Adam's state", "activations, all kept",
                "activations kept by forward, each block a region", "compute of one more forward"]
        if result is None:
            return [Row(claim + each, text, "-", "this program has no estimates", UNMEASURED)
                    for each, text in zip(what, texts)]
        plain, blocks = result["plain"], result["strategies"][0]
        state = sum(plain[key] for key in ("parameter_bytes", "gradient_bytes", "optimizer_bytes"))
        more = blocks["flops"] / plain["flops"] - 1
        figures = [state / 1e9, plain["activation_bytes"] / 1e9, blocks["activation_bytes"] / 1e9]
        stated = [1100, 120, 10]
        rows = [Row(claim + each, text, command, f"{ours:,.0f} GB, computed",
                    self.within(ours / says, 0.75, 1.33))
                for each, text, ours, says in zip(what, texts, figures, stated)]
        rows.append(Row(claim + what[3], texts[3], command,
                        f"{100 * more:.1f} %, computed: regions stop before the last product, whose result nothing "
                        "in backward needs",
                        self.within(more, 0.28, 0.38)))
        return rows

    def seven_billion(self):
        command, result = self.estimate("--layers", "32", "--width", "4096", "--heads", "32",
                                        "--context", "131072", "--batch", "1")
        claim = "7B parameters at 128K, batch 1: activations are more than the model"
        if result is None:
            return Row(claim, "more", "-", "this program has no estimates", UNMEASURED)
        plain = result["plain"]
        kept, weights = plain["activation_bytes"] / 1e9, plain["parameter_bytes"] / 1e9
        return Row(claim, "more", command,
                   f"{kept:,.0f} GB beside weights of {weights:,.0f} GB, computed",
                   HOLDS if kept > weights else FAILS)

    def by_influence(self):
        claim = "Keeping activations by their gradients' influence recomputes less"
        text = "15–30 % less than fixed segments, 10–20 % less than DTR"
        options = ["--models", "gpt2", "--methods", "uniform,dtr,pgac:influence", "--no-ablations"]
        options += ["--quick"] if self.run.quick else ["--seeds", "3", "--steps", "20"]
        with tempfile.TemporaryDirectory() as folder:
            self.run.json("experiment", "pgac", *options, "--out", folder)
            spent = {name: self.recomputing(folder, name)
                     for name in ("uniform", "dtr", "pgac=influence")}
        beside = {name: spent["pgac=influence"] / spent[name] - 1 for name in ("uniform", "dtr")}
        ours = f"{100 * beside['uniform']:+.0f} % beside fixed segments, {100 * beside['dtr']:+.0f} % beside DTR"
        holds = beside["uniform"] <= -0.15 and beside["dtr"] <= -0.10
        return Row(claim, text, " ".join(["reprise experiment pgac", *options]), ours, HOLDS if holds else FAILS)

    # Milliseconds of all steps of a method that were spent on running things again.
    @staticmethod
    def recomputing(folder, method):
        lines = []
        for path in glob.glob(os.path.join(folder, "runs", "gpt2", method, "*.jsonl")):
            with open(path, encoding="utf-8") as file:
                lines += [json.loads(line) for line in file]
        return sum(line.get("recompute_milliseconds", 0) for line in lines)

    def elsewhere(self):
        claim = "A pipeline's micro-batches, all but the last of 8 recomputed, take 7/8 of 25 % more"
        return Row(claim, "21.9 %", "-", "this program runs no pipeline", UNMEASURED)

    def rows(self):
        all_claims = [
            self.grows_with_depth, self.grows_with_context, self.memory_from_input,
            self.forwards_from_input, self.memory_of_root, self.one_more_forward,
            self.time_whatever_the_segment, self.share_of_forward, self.wall_time,
            self.memory_of_blocks, self.selective, self.fused_attention, self.finer_grain,
            self.larger_batches, self.one_sequence, self.seventy_billion, self.seven_billion,
            self.elsewhere, self.by_influence,
        ]
        rows = []
        for claim in all_claims:
            found = claim()
            rows.extend(found if isinstance(found, list) else [found])
        return rows


def exponent(x0, y0, x1, y1):
    return math.log(y1 / y0) / math.log(x1 / x0)


def spread_of(row):
    return (f"{row['ratio_to_none']:.2f}× ({row['lowest_ratio']:.2f}–{row['highest_ratio']:.2f})")


def processor():
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            name = next(line for line in lines if line.startswith("model name"))
            return name.split(":", 1)[1].strip()
    except (OSError, StopIteration):
        return platform.machine()


def document(rows):
    called = " ".join(["scripts/claims", *sys.argv[3:]])
    head = f"""# What is said about checkpointing, and what comes out here

Written by `{called}` on {datetime.date.today()}: {processor()},
the CPU alone, one thread, of a machine that others may use too. Times are medians with the least and the most of the
rounds in brackets; bytes and layers are counted, and the same in every run. The models have no dropout, whose random
numbers take a CPU longer than the rest. What decides between *holds* and *does not hold* is in
`scripts/support/claims.py`, beside the text's figure. The texts speak of accelerators: where a time is another here,
the ratio of computing to moving is another, too.

| claim | the text's figure | here | verdict | command |
| --- | --- | --- | --- | --- |
"""
    return head + "".join(
        f"| {row.claim} | {row.text} | {row.ours} | *{row.verdict}* | `{row.command}` |\n"
        for row in rows)


def main():
    parser = argparse.ArgumentParser(prog="scripts/claims")
    parser.add_argument("--programs", required=True, help="the folder of reprise and reprise_bench")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--steps", type=int, default=0)
    parser.add_argument("--output", default="")
    options = parser.parse_args()
    programs = Programs(options.programs, options.quick)
    text = document(Claims(programs, options.quick, options.steps).rows())
    output = options.output or ("" if options.quick else "docs/results/claims.md")
    if not output:
        print(text, end="")
        return
    with open(output, "w", encoding="utf-8") as file:
        file.write(text)


if __name__ == "__main__":
    main()
