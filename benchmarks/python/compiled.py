"""Compiled models within bytes, beside torch.compile's own choice, its activation budgets, checkpoints, and eager reprise."""

import statistics

import torch

import reprise
from budgets import peak_of, settle, under
from compiled_models import MODELS, SMALL, Compiled, smallest, torch_compile, within
from models import Step, same
from timing import race

# Shares of the default's peak above what is live, and the bars of their times.
SHARES = {"85%": None, "72%": None, "60%": 1.0}
SHARES_OF_LLAMA = {"80%": 1.03, "72%": 1.08, "63%": 1.15}  # without dropout, of which the default keeps masks
# torch's knob is a share of what it saves, and says nothing of the peak.
TORCH_BUDGETS = (0.7, 0.5, 0.3, 0.1)
IN_BYTES_OF = "eager reprise in those of "
NEAR = 1.001  # peaks that scalars make differ are the same


def frontier(figures, quick):
    """The peak is at most the budget, gradients are those of torch.compile's own plan, and no rival is faster in its bytes."""
    for name in ["GPT-2"] if quick else MODELS:
        torch._dynamo.reset()
        default = Compiled(name)
        expected, plain_peak = default.gradients(), peak_of(default)
        ours, peaks = {}, {"default": plain_peak}
        bars = SHARES_OF_LLAMA if name == "Llama" else SHARES
        for budget in list(bars)[-1:] if quick else [*bars, "least"]:
            ours[budget] = smallest(name) if budget == "least" else Compiled(name, within(budget))
            peaks[budget] = peak_of(ours[budget])
            if not same(ours[budget].gradients(), expected):
                raise SystemExit(f"python_compiled_frontier: {name}: gradients in {budget} are not those of torch.compile")
        rivals = {} if quick else _rivals(name)
        rivals |= {} if quick else _eager_reprise(name, {budget: peaks[budget] for budget in ours})
        peaks |= {key: peak_of(step) for key, step in rivals.items()}
        seconds = race({"default": default, **ours, **rivals}, 3 if quick else 15)
        base = statistics.median(seconds["default"])
        medians = {key: statistics.median(each) / base for key, each in seconds.items()}
        figures.add("python_compiled_frontier", f"{name}: default: bytes", [plain_peak / 1e6], "MB")
        for key in seconds:
            share = float(key[:-1]) / 100 if key in bars else None
            figures.add("python_compiled_frontier", f"{name}: {key}: peak", [peaks[key] / plain_peak], "x default", bar=share)
            allowed = peaks[key.removeprefix(IN_BYTES_OF)]
            best = min((medians[each] for each in ("default", *ours) if peaks[each] <= NEAR * allowed), default=None)
            figures.add("python_compiled_frontier", f"{name}: {key}: time", [each / base for each in seconds[key]], "x default",
                        bar=bars.get(key))
            if key in rivals:
                figures.add("python_compiled_frontier", f"{name}: ours in the bytes of {key}", [best or float("inf")], "x default",
                            medians[key], 1.0)


def _rivals(name):
    rivals = {}
    for share in TORCH_BUDGETS:
        rivals[f"torch's {share}"] = Compiled(name, context=lambda: torch._functorch.config.patch(activation_memory_budget=share))
    rivals["compiled checkpoints"] = Compiled(name, checkpoints=True)
    rivals["eager checkpoints"] = Compiled(name, lambda model: model, checkpoints=True)
    return rivals


def _eager_reprise(name, peaks):
    """At the peaks of the compiled steps, where it can keep to them."""
    found = {}
    steps = {key: Step(name, MODELS) for key in peaks}  # all of them are live while one runs
    for key, step in steps.items():
        budget = reprise.MemoryBudget(reprise.live_bytes() + peaks[key])
        try:
            settle(budget, step)
        except reprise.BudgetError:
            continue
        found[IN_BYTES_OF + key] = under(budget, step)
    return found


def peak(figures, quick):
    """The measured peak by the budget, and the predicted by the measured; budgets below the least are refused."""
    for name in ["BERT"] if quick else SMALL:
        torch._dynamo.reset()
        plain = peak_of(Compiled(name, torch_compile, SMALL))
        before, refused = None, []
        for share in (60,) if quick else range(55, 100, 5):
            torch._dynamo.reset()
            try:
                step = Compiled(name, within(f"{share}%"), SMALL)
            except reprise.BudgetError:
                refused.append(f"{share}%")
                continue
            measured = peak_of(step)
            case = f"{name}: {share}%"
            figures.add("python_compiled_peak", f"{case}: measured", [measured / (plain * share / 100)], "x budget", bar=1.0)
            off = abs(step.planned_peak() / measured - 1)
            figures.add("python_compiled_peak", f"{case}: predicted, off by", [off], "x measured", bar=0.02)
            if before is not None:
                figures.add("python_compiled_peak", f"{case}: peak of the next smaller budget", [before / measured], "x", bar=1.0)
            before = measured
        figures.add("python_compiled_peak", f"{name}: refused: {', '.join(refused) or 'none'}", [len(refused)], "budgets")


def least(figures, quick):
    """The least peak, beside those of torch's checkpoint of each block, compiled and eager."""
    for name in ["BERT"] if quick else MODELS:
        models = SMALL if quick else MODELS
        torch._dynamo.reset()
        peak = peak_of(smallest(name, models)) / 1e6
        for rival, compiler in {"compiled": torch_compile, "eager": lambda model: model}.items():
            theirs = peak_of(Compiled(name, compiler, models, checkpoints=True)) / 1e6
            figures.add("python_compiled_least", f"{name}: beside {rival} checkpoints", [peak], "MB", theirs, 1.0)


def planning(figures, quick):
    """Seconds that the first plan of a model takes, with inductor's schedules."""
    bars = {4: None, 12: 10, 24: None, 48: 30}
    for layers in (2,) if quick else bars:
        torch._dynamo.reset()
        call = reprise.compile(_deep(layers), memory_budget="60%")
        call(torch.randn(8, 64, 128))
        spent = sum(each.planning_seconds for each in call.memory_budget.report())
        figures.add("python_compiled_planning", f"{layers} layers", [spent], "s", bar=bars.get(layers))


def _deep(layers):
    torch.manual_seed(1)
    layer = torch.nn.TransformerEncoderLayer(128, 4, 512, batch_first=True)
    return torch.nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)


BENCHES = {"python_compiled_frontier": frontier, "python_compiled_peak": peak, "python_compiled_least": least,
           "python_compiled_planning": planning}
