"""Compiled models within bytes: time, peaks and gradients beside torch.compile's own choice and its activation budgets."""

import contextlib
import statistics
import warnings

import torch

import reprise
from budgets import peak_of
from models import Step, same
from timing import race

# Shares of the default's peak above what is live.
SHARES = (0.85, 0.72, 0.6)
# torch's knob is a share of what it saves, and says nothing of the peak.
TORCH_BUDGETS = (0.7, 0.5, 0.3, 0.1)
NAMES = ("GPT-2", "BERT", "ViT", "Llama")


class Compiled(Step):
    """The model's forward is compiled when it first runs."""

    def __init__(self, name, compile, within=contextlib.nullcontext):
        super().__init__(name)
        self.whole, self.within = self.model, within
        self.model = compile(self.model)
        with within(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for _ in range(4):  # to compile, to divide bytes among graphs, to correct
                self()


def torch_compile(model):
    return torch.compile(model, dynamic=False)


def frontier(figures, quick):
    """The peak is at most the budget, and gradients are those of torch.compile's own plan."""
    for name in NAMES[:1] if quick else NAMES:
        torch._dynamo.reset()
        default = Compiled(name, torch_compile)
        expected, plain_peak = default.gradients(), peak_of(default)
        steps, peaks = {"default": default}, {"default": plain_peak}
        for share in SHARES:
            budget = f"{100 * share:.0f}%"
            steps[budget] = Compiled(name, lambda model: reprise.compile(model, memory_budget=budget))
            peaks[budget] = peak_of(steps[budget])
            if not same(steps[budget].gradients(), expected):
                raise SystemExit(f"python_compiled_frontier: {name}: gradients in {budget} are not those of torch.compile")
        for share in () if quick else TORCH_BUDGETS:
            torch._dynamo.reset_code_caches()
            key = f"torch's {share}"
            steps[key] = Compiled(name, torch_compile, lambda: torch._functorch.config.patch(activation_memory_budget=share))
            peaks[key] = peak_of(steps[key])
        seconds = race(steps, 3 if quick else 15)
        base = statistics.median(seconds["default"])
        for key in steps:
            figures.add("python_compiled_frontier", f"{name}: {key}: time", [each / base for each in seconds[key]], "x default")
            share = float(key[:-1]) / 100 if key.endswith("%") else None
            figures.add("python_compiled_frontier", f"{name}: {key}: peak", [peaks[key] / plain_peak], "x default", bar=share)


def planning(figures, quick):
    """Seconds that the plans of one model take, with inductor's schedules."""
    for layers in (2,) if quick else (4, 12):
        torch._dynamo.reset()
        call = reprise.compile(_deep(layers), memory_budget="60%")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            call(torch.randn(8, 64, 128)).square().mean().backward()
        spent = sum(each.planning_seconds for each in call.memory_budget.report())
        figures.add("python_compiled_planning", f"{layers} layers", [spent], "s")


def _deep(layers):
    torch.manual_seed(1)
    layer = torch.nn.TransformerEncoderLayer(128, 4, 512, batch_first=True)
    return torch.nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)


BENCHES = {"python_compiled_frontier": frontier, "python_compiled_planning": planning}
