"""The claims that scripts/claims measures: each is one function that runs commands and returns rows, with our figure, its
spread and a verdict. The bounds that decide stand beside the text's figure; nothing is fitted to what comes out.
"""

import json
import math
import os
import tempfile
from dataclasses import dataclass

HOLDS, FAILS = "holds", "does not hold"
COUNTED, COMPUTED = "counted: the same in every run", "computed"


@dataclass
class Row:
    claim: str
    text: str  # the text's figure
    command: str
    ours: str
    spread: str
    verdict: str
    # Filled in by who measures: of which function it is, when, where.
    name: str = ""
    date: str = ""
    machine: str = ""
    load: str = ""


def exponent(x0, y0, x1, y1):
    return math.log(y1 / y0) / math.log(x1 / x0)


def times(row):
    return f"{row['ratio_to_none']:.2f}×"


def spread_of(row):
    return f"{row['lowest_ratio']:.2f}–{row['highest_ratio']:.2f}, {row['timed_steps']} rounds"


def within(value, least, most):
    return HOLDS if least <= value <= most else FAILS


class Claims:
    def __init__(self, programs, quick, steps):
        self.run = programs
        self.steps = str(steps or (2 if quick else 9))
        size = ["4", "64", "4", "64", "4"] if quick else ["12", "256", "8", "128", "4"]
        names = ["--layers", "--width", "--heads", "--context", "--batch"]
        self.model = [word for pair in zip(names, size) for word in pair] + ["--threads", "1"]
        self.layers, self.width, _, self.context, self.batch = (int(each) for each in size)

    # Of the model, with other options where they are given.
    def compare(self, *more, dropout="0", steps=""):
        return ["compare", *self.model, "--dropout", dropout, "--steps", steps or self.steps, *more]

    def strategies(self, *more, **options):
        command = self.compare(*more, **options)
        rows = self.run.json(*command)["strategies"]
        return "reprise " + " ".join(command), {row["strategy"]: row for row in rows}

    # Bytes are the same in every step.
    def counted(self, *more, **options):
        return self.strategies(*more, steps="1", **options)

    ALL = "every-block,sqrt,segments:2,segments:4,from-input"

    def law(self, claim, text, case, least, most):
        value = self.run.bench("memory_law")[case]["ours"]
        return Row(claim, text, "scripts/bench memory_law", f"L^{value:.2f}", COUNTED, within(value, least, most))

    def grows_with_depth(self):
        return self.law("Activations that are all kept grow like the depth", "O(L)", "exponent of peak, none", 0.9, 1.1)

    # By how much activations grow with an option of the model, from half of it to twice.
    def growth(self, claim, letter, option, middle):
        values = [middle // 2, middle, 2 * middle]
        found = [self.counted("--strategies", "every-block", option, str(value)) for value in values]
        kept = [rows["none"]["activation_bytes"] for _, rows in found]
        slope = exponent(values[0], kept[0], values[-1], kept[-1])
        return Row(claim, f"O({letter})", found[-1][0] + f", and {values[0]}, {values[1]}", f"{letter}^{slope:.2f}",
                   COUNTED, within(slope, 0.9, 1.1))

    def grows_with_context(self):
        return self.growth("… and like the length of the sequence", "T", "--context", self.context)

    def grows_with_batch(self):
        return self.growth("… and like the batch", "B", "--batch", self.batch)

    def grows_with_width(self):
        return self.growth("… and like the width", "W", "--width", self.width)

    def halved_by_mixed_precision(self):
        command, half = self.counted("--strategies", "every-block", "--dtype", "bf16")
        _, full = self.counted("--strategies", "every-block")
        share = half["none"]["activation_bytes"] / full["none"]["activation_bytes"]
        of_regions = half["every-block"]["activation_bytes"] / full["every-block"]["activation_bytes"]
        claim = "Mixed precision halves activations"
        rows = [Row(claim + ": autocast, weights stay f32", "1/2", command + ", and f32",
                    f"{100 * share:.0f} % of f32's; each block a region {100 * of_regions:.0f} %", COUNTED,
                    within(share, 0.4, 0.6))]
        sizes = ["--layers", "80", "--width", "8192", "--heads", "64", "--context", "8192", "--batch", "1"]
        command, half = self.estimate(*sizes)
        _, full = self.estimate(*sizes, "--dtype", "f32")
        share = half["plain"]["activation_bytes"] / full["plain"]["activation_bytes"]
        return [*rows, Row(claim + ": all of the model in bf16", "1/2", command + ", and f32",
                           f"{100 * share:.0f} % of f32's", COMPUTED, within(share, 0.4, 0.6))]

    def memory_from_input(self):
        return self.law("Keeping nothing but the input takes constant memory", "O(1)", "exponent of peak, from-input",
                        -0.1, 0.1)

    def forwards_from_input(self):
        figures = self.run.bench("memory_law")
        name = next(case for case in figures if case.startswith("extra forwards, from-input"))
        depth = int(name.rsplit("=", 1)[1])
        value = figures[name]["ours"]
        return Row("… and, for each layer, the layers before it once more", "about L/2 forwards more",
                   "scripts/bench memory_law", f"{value:.1f} at L = {depth}", COUNTED, within(value / (depth / 2), 0.9, 1.1))

    def memory_of_root(self):
        return self.law("Checkpoints at every √L-th layer take the root of the memory", "O(√L)",
                        "exponent of peak, sqrt", 0.4, 0.6)

    def one_more_forward(self):
        figures = self.run.bench("memory_law")
        values = [figures[f"extra forwards, {each}"]["ours"] for each in ("sqrt", "every-block")]
        return Row("One more forward, whatever the length of a segment", "1", "scripts/bench memory_law",
                   f"{values[0]:.2f} (√L), {values[1]:.2f} (each layer); where the last segment is kept, as by "
                   "checkpoint_sequential, less by that", COUNTED,
                   HOLDS if all(0.95 <= value <= 1.05 for value in values) else FAILS)

    def time_whatever_the_segment(self):
        command, rows = self.strategies("--strategies", self.ALL)
        names = ["segments:2", "segments:4", "sqrt", "every-block"]
        # Of what is run again: all segments but the last, and all blocks.
        share = {"segments:2": 1 / 2, "segments:4": 3 / 4, "every-block": 1}
        count = round(math.sqrt(self.layers))
        share["sqrt"] = 1 - math.ceil(self.layers / count) / self.layers
        over = {name: (rows[name]["ratio_to_none"] - 1) / share[name] for name in names}
        middle = sorted(over.values())[len(over) // 2]
        alike = all(abs(value - middle) <= 0.1 for value in over.values())
        return Row("… and so the same time, but for a last segment that is kept", "the same", command,
                   ", ".join(f"{name} {times(rows[name])}" for name in names),
                   "; ".join(spread_of(rows[name]) for name in names), HOLDS if alike else FAILS)

    def share_of_forward(self):
        command = self.compare("--planners", "keep_all,every_stage")
        stages = self.run.json(*command)["chain"]["stages"]
        forward = sum(each["forward_seconds"] for each in stages)
        share = forward / (forward + sum(each["backward_seconds"] for each in stages))
        return Row("A forward is a third of a step, and so one more is a third more compute", "about 33 %",
                   "reprise " + " ".join(command), f"{100 * share:.0f} %", "medians of the stages' profiles, one call",
                   within(share, 0.28, 0.38))

    # The CPU's dropout draws its masks anew in the recomputation, which costs a CPU more than the rest of it.
    def wall_time(self):
        rows = []
        for dropout in ("0", "0.1"):
            command, found = self.strategies("--strategies", self.ALL if dropout == "0" else "every-block",
                                             dropout=dropout)
            row = found["every-block"]
            rows.append(Row(f"Each block a region: so much more time (dropout {dropout})", "20–35 %; 30 %; 1.3×", command,
                            times(row), spread_of(row), within(row["ratio_to_none"], 1.2, 1.35)))
        return rows

    def memory_of_blocks(self):
        rows = []
        for dropout in ("0", "0.1"):
            command, found = self.counted("--strategies", "every-block", dropout=dropout)
            factor = found["none"]["activation_bytes"] / found["every-block"]["activation_bytes"]
            rows.append(Row(f"… and so much less activation memory (dropout {dropout})", "about 5×", command,
                            f"{factor:.1f}× at {self.layers} layers", COUNTED, within(factor, 4, 7)))
        return rows

    def selective(self):
        name = "selective:recompute-attention"
        rows = []
        for dropout in ("0", "0.1"):
            command, found = self.strategies("--strategies", "every-block," + name, "--attention", "unfused",
                                             "--context", str(2 * self.context), dropout=dropout)
            plain = found["none"]["activation_bytes"]
            part = (plain - found[name]["activation_bytes"]) / (plain - found["every-block"]["activation_bytes"])
            rows.append(Row("Running attention's insides again, and nothing else, saves most of it for far less "
                            f"(dropout {dropout})", "most of the memory; well under 33 %", command,
                            f"{100 * part:.0f} % of what whole blocks save; {times(found[name])}, blocks "
                            f"{times(found['every-block'])}",
                            f"{spread_of(found[name])}; blocks {spread_of(found['every-block'])}",
                            HOLDS if part > 0.5 and found[name]["ratio_to_none"] < 1.25 else FAILS))
        return rows

    def selective_at_length(self):
        name = "selective:recompute-attention"
        command, found = self.counted("--strategies", "every-block," + name, "--attention", "unfused", "--context",
                                      str(8 * self.context), "--heads", "4", "--batch", "1", "--layers", "4",
                                      dropout="0.1")
        plain = found["none"]["activation_bytes"]
        part = (plain - found[name]["activation_bytes"]) / (plain - found["every-block"]["activation_bytes"])
        return Row(f"… and at a length of {8 * self.context} with 4 heads", "most of the memory", command,
                   f"{100 * part:.0f} % of what whole blocks save", COUNTED, HOLDS if part > 0.5 else FAILS)

    def fused_attention(self):
        slopes, command = {}, ""
        for kind in ("unfused", "fused"):
            found = {}
            for context in (self.context, 2 * self.context):
                command, rows = self.counted("--strategies", "every-block", "--context", str(context), "--attention",
                                             kind)
                found[context] = rows["none"]["activation_bytes"]
            slopes[kind] = exponent(self.context, found[self.context], 2 * self.context, found[2 * self.context])
        return Row("Fused attention is the limit of that: the matrix of weights is never there", "no T² term",
                   command + ", unfused, and half the context",
                   f"T^{slopes['fused']:.2f} fused, T^{slopes['unfused']:.2f} not", COUNTED,
                   HOLDS if slopes["fused"] < 1.1 < slopes["unfused"] else FAILS)

    def finer_grain(self):
        figures = self.run.bench("sequential_fine")
        fine, coarse = figures["100 segments"], figures["10 segments"]
        order = exponent(10, coarse["ours"] - 1, 100, fine["ours"] - 1)
        return Row("Finer than a block, the overhead jumps more than in proportion", "superlinear",
                   "scripts/bench sequential_fine",
                   f"regions^{order:.2f}: {fine['ours']:.2f}× plain with each of 100 small operators a region, "
                   f"{coarse['ours']:.2f}× with ten of them",
                   f"quartiles {100 * fine['spread']:.0f} and {100 * coarse['spread']:.0f} % apart, {fine['runs']} rounds",
                   HOLDS if order > 1 else FAILS)

    def larger_batches(self):
        peak = self.counted("--strategies", "every-block")[1]["none"]["activation_bytes"]
        command = self.compare("--fill-budget", "--strategies", "every-block,sqrt", "--budget",
                               f"+{round(peak / 1e6)}MB")
        rows = self.run.json(*command)["strategies"]
        first, others = rows[0], [row for row in rows[1:] if row["fits"]]
        ours = ", ".join(f"{row['strategy']} {row['ratio_to_first']:.2f}× at batch {row['batch']}" for row in others)
        spread = "; ".join(f"{row['lowest_ratio']:.2f}–{row['highest_ratio']:.2f}" for row in others)
        best = max((row["ratio_to_first"] for row in others), default=0)
        return Row("In the same bytes larger batches repay the recomputation", "more samples a second",
                   "reprise " + " ".join(command), f"{ours or 'nothing fits'}; without, batch {first['batch']}: 1",
                   spread + f", {self.steps} rounds", HOLDS if best > 1 else FAILS)

    def one_sequence(self):
        _, many = self.strategies("--strategies", "every-block")
        command, one = self.strategies("--strategies", "every-block", "--batch", "1")
        recomputing = self.batch / many["every-block"]["ms_per_step"]
        reduced = 1 / one["none"]["ms_per_step"]
        return Row("A smaller batch instead costs more throughput than recomputing", "more",
                   command + f", and batch {self.batch}",
                   f"{1e3 * reduced:.1f} samples a second plainly at batch 1, {1e3 * recomputing:.1f} recomputing at "
                   f"batch {self.batch}", f"medians of {self.steps} steps, in two calls",
                   HOLDS if recomputing > reduced else FAILS)

    GIANT = ["estimate", "--model", "gpt", "--dtype", "bf16", "--optimizer", "adamw", "--device", "cuda", "--flops",
             "990e12", "--bandwidth", "3.35e12", "--strategy", "every-block,selective:recompute-attention"]

    # `reprise estimate` of a model that no machine here can run. A later option wins.
    def estimate(self, *more):
        options = {}
        for name, value in zip(*[iter([*self.GIANT[1:], "--dropout", "0", *more])] * 2):
            options[name] = value
        command = [self.GIANT[0], *(word for pair in options.items() for word in pair)]
        return "reprise " + " ".join(command), self.run.json(*command)

    SEVENTY = ["--layers", "80", "--width", "8192", "--heads", "64", "--context", "8192", "--batch", "4"]

    def seventy_billion(self):
        rows = []
        for dropout in ("0", "0.1"):
            command, result = self.estimate(*self.SEVENTY, "--dropout", dropout)
            claim = f"70B parameters at 8K, batch 4, bf16, dropout {dropout}: "
            plain, blocks = result["plain"], result["strategies"][0]
            state = sum(plain[key] for key in ("parameter_bytes", "gradient_bytes", "optimizer_bytes"))
            figures = [("weights, gradients, Adam's state", "1.1 TB", state, 1100),
                       ("activations, all kept", "120 GB", plain["activation_bytes"], 120),
                       ("activations kept by forward, each block a region", "10 GB", blocks["activation_bytes"], 10),
                       ("one block's worth in backward", "3–5 GB", blocks["temporary_bytes_at_peak"], 4)]
            rows += [Row(claim + what, text, command, f"{ours / 1e9:,.{0 if ours > 2e10 else 1}f} GB", COMPUTED,
                         within(ours / 1e9 / says, 0.75, 1.33))
                     for what, text, ours, says in figures[0 if dropout == "0" else 1:]]
            more = blocks["flops"] / plain["flops"] - 1
            why = ": regions stop before the last product, whose result nothing in backward needs" if dropout == "0" else ""
            rows.append(Row(claim + "compute of one more forward", "about 33 %", command, f"{100 * more:.1f} %{why}",
                            COMPUTED, within(more, 0.28, 0.38)))
        return rows

    def attention_for_free(self):
        command, result = self.estimate(*self.SEVENTY)
        blocks, attention = result["strategies"]
        share = attention["recomputed_flops"] / blocks["recomputed_flops"]
        return Row("Fused attention recomputes inside of its backward, so that in a region around the block it is free",
                   "nothing beside the rest of the block", command,
                   f"its forward runs again with the block: {100 * share:.0f} % of what is recomputed", COMPUTED,
                   HOLDS if share < 0.01 else FAILS)

    def hundred_layers(self):
        command, result = self.estimate("--layers", "100", "--width", "8192", "--heads", "64", "--context", "8192",
                                        "--batch", "1")
        kept = result["plain"]["activation_bytes"] / 1e9
        return Row("100 layers at 8K tokens, one sequence: activations alone", "hundreds of GB", command, f"{kept:,.0f} GB",
                   COMPUTED, within(kept, 100, 1000))

    def seven_billion(self):
        command, result = self.estimate("--layers", "32", "--width", "4096", "--heads", "32", "--context", "131072",
                                        "--batch", "1")
        kept, weights = result["plain"]["activation_bytes"] / 1e9, result["plain"]["parameter_bytes"] / 1e9
        return Row("7B parameters at 128K, batch 1: activations are more than the model", "more", command,
                   f"{kept:,.0f} GB beside weights of {weights:,.0f} GB", COMPUTED, HOLDS if kept > weights else FAILS)

    def pipeline(self):
        figures = self.run.bench("pipeline_modes")
        share, time = figures["forward's share of a step"]["ours"], figures["time, except_last"]
        more = time["ours"] - 1
        law = figures["time ÷ formula, except_last"]["ours"]
        return Row("A pipeline's micro-batches, all but the last of 8 recomputed, take 7/8 of 25 % more", "21.9 %",
                   "scripts/bench pipeline_modes", f"{100 * more:.1f} % more; 7/8 of the forward's {100 * share:.0f} %",
                   f"quartiles {100 * time['spread']:.0f} % apart, {time['runs']} rounds", within(law, 0.97, 1.03))

    def by_influence(self):
        seeds, steps = (2, 6) if self.run.quick else (3, 20)
        methods = ("uniform", "dtr", "pgac:influence")
        options = ["--budget", "60%", "--attention", "unfused", "--layers", "8", "--width", "96", "--heads", "4", "--batch", "4",
                   "--threads", "1", "--steps", str(steps)]
        with tempfile.TemporaryDirectory() as folder:
            spent = {name: [self.recomputing(folder, name, seed, options) for seed in range(1, seeds + 1)] for name in methods}
        # Less than the other, of the runs with the same seed.
        less = {name: [1 - ours / theirs for ours, theirs in zip(spent["pgac:influence"], spent[name])] for name in methods[:2]}
        mean = {name: sum(values) / len(values) for name, values in less.items()}
        ours = ", ".join(f"{100 * abs(mean[name]):.0f} % {'less' if mean[name] > 0 else 'more'} than {called}"
                         for name, called in (("uniform", "fixed segments"), ("dtr", "DTR")))
        spread = "; ".join(f"{100 * min(values):.0f} to {100 * max(values):.0f} %" for values in less.values())
        command = f"reprise train {' '.join(options)} --method M --seed S --log FILE, M {', '.join(methods)}, S to {seeds}"
        return Row("Keeping activations by their gradients' influence recomputes less",
                   "15–30 % less than fixed segments, 10–20 % less than DTR", command,
                   ours, f"less, by seed: {spread}", HOLDS if mean["uniform"] >= 0.15 and mean["dtr"] >= 0.10 else FAILS)

    # Seconds that a run's steps spent on recomputation, but for the first, which measures layers.
    def recomputing(self, folder, method, seed, options):
        log = os.path.join(folder, f"{method}-{seed}.jsonl")
        self.run.json("train", *options, "--method", method, "--seed", str(seed), "--log", log)
        with open(log, encoding="utf-8") as file:
            lines = [json.loads(line) for line in file]
        return sum(line["recompute_seconds"] for line in lines if line.get("step", 0) > 1 and line["kind"] == "step")

    ORDER = ["grows_with_depth", "grows_with_context", "grows_with_batch", "grows_with_width", "hundred_layers",
             "memory_from_input", "forwards_from_input", "memory_of_root", "one_more_forward",
             "time_whatever_the_segment", "share_of_forward", "wall_time", "memory_of_blocks", "selective",
             "selective_at_length",
             "fused_attention", "attention_for_free", "halved_by_mixed_precision", "finer_grain", "larger_batches",
             "one_sequence", "seventy_billion", "seven_billion", "pipeline", "by_influence"]

    def rows(self, name):
        found = getattr(self, name)()
        return found if isinstance(found, list) else [found]
