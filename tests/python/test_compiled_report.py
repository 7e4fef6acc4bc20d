"""What reports of compiled graphs say of plans, and of the calls that followed."""

import re

import pytest
import torch
from torch import nn
from torch._inductor.codegen import wrapper
from torch.nn import functional as F

import reprise
import test_compiled
from reprise.compiled import _graph, _inductor, _schedule, _timeline
from test_compiled import Language, batch, fresh, steps  # noqa: F401


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_a_report_has_what_was_planned_beside_what_was_measured(backend):
    model = Language()
    call = reprise.compile(model, memory_budget="70%", backend=backend)
    steps(call, model)
    (report,) = call.memory_budget.report()
    assert report.measured_peak == pytest.approx(report.predicted_peak, rel=0.01)
    assert report.predicted_seconds > report.recompute_seconds > 0 and report.measured_seconds > 0
    assert sum(report.kept.values()) == report.handed_over
    assert sum(report.recomputed_lines.values()) == sum(report.recomputed.values())
    assert any(re.fullmatch(re.escape(test_compiled.__file__) + r":\d+", line) for line in report.recomputed_lines)


class Gated(nn.Module):
    def __init__(self, width=64, inner=192):
        super().__init__()
        self.norm = nn.RMSNorm(width)
        self.gate, self.up, self.down = (nn.Linear(*sizes, bias=False) for sizes in ((width, inner), (width, inner), (inner, width)))

    def forward(self, x):
        y = self.norm(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


def test_inductor_holds_freed_buffers_for_later_ones_only_below_the_plans_peak(monkeypatch, tmp_path):
    monkeypatch.setenv("REPRISE_PLAN_CACHE_DIR", str(tmp_path))
    decide, peaks = wrapper.AllocateLine.should_reuse_buffer, set()

    def note(line, *rest):
        peaks.add(line.wrapper.estimate_peak.overall_peak_memory)
        return decide(line, *rest)

    monkeypatch.setattr(wrapper.AllocateLine, "should_reuse_buffer", note)
    for _ in range(2):  # the second time with the plan on disk
        torch._dynamo.reset()
        peaks.clear()
        model, x = nn.Sequential(*(Gated() for _ in range(4))), torch.randn(1024, 64)
        call = reprise.compile(model, memory_budget="50%")
        with torch._inductor.config.patch(fx_graph_cache=False):
            for _ in range(4):
                model.zero_grad()
                call(x).square().sum().backward()
        [graph] = call.memory_budget.graphs
        assert max(graph.chosen.halves.known) in peaks
        [report] = call.memory_budget.report()
        assert report.measured_peak == pytest.approx(report.predicted_peak, rel=0.02)


def test_a_buffer_is_held_up_to_the_peak_that_inductor_expects():
    """The peak is 128 bytes, of the second operator. Where inductor expects 192, it holds 64 beside those."""
    forms = {name: (torch.device("cpu"), torch.uint8, 64) for name in ("early", "late")}
    made = [{"early": 64}, {"large": 128}, {"late": 64}]
    operators = [_timeline._Operator(each, each, 0, [], False) for each in made]
    timeline = _timeline.Timeline(operators, {}, forms, set(forms), set(), 192, [64, 128, 64])
    known = timeline.while_each_runs(_timeline.Handing())
    assert known == [64, 128, 64]
    assert timeline.peak(_timeline.Handing()) == 192 and timeline.peak(_timeline.Handing(), known) == 128


def test_the_reports_of_all_budgets_begin_with_the_oldest():
    torch._dynamo.reset()
    x = torch.ones(3, requires_grad=True)
    calls = [reprise.compile(call, memory_budget="1GiB", backend="aot_eager")
             for call in (torch.sin, torch.cos, torch.tan, torch.exp, torch.tanh, torch.sigmoid, torch.square, torch.abs)]
    for call in reversed(calls):
        call(x)
    reports = [report for call in calls for report in call.memory_budget.report()]
    assert len(reports) == len(calls) and reprise.compiled.report()[-len(calls):] == reports


def test_reports_name_what_was_compiled():
    """torch wraps its own functions and modules in a function of its own."""
    torch._dynamo.reset()
    names = []
    for model in (nn.Sequential(nn.Linear(4, 4), nn.Tanh()), torch.sin, Loss()):
        call = reprise.compile(model, memory_budget="1GiB", backend="aot_eager")
        call(torch.ones(64, 4 if isinstance(model, nn.Sequential) else 64, requires_grad=True))
        names += [report.graph.removeprefix("graph 0, of ") for report in call.memory_budget.report()]
    assert names[0] == "Sequential" and names[1].endswith("sin") and names[2].endswith("forward")


class Loss(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh())

    def forward(self, x):
        return self.body(x).square().mean()


def test_views_of_inputs_are_not_counted_as_handed_over():
    model = Loss()
    call = reprise.compile(model, memory_budget="1GiB", backend="aot_eager")
    steps(call, model, words=torch.randn(4, 64, 64))  # linear layers keep views of two dimensions
    (report,) = call.memory_budget.report()
    assert report.measured_peak == pytest.approx(report.predicted_peak, rel=0.01)
    assert report.handed_over == sum(report.kept.values()) == 2 * 4 * 64 * 64 * 4


def test_a_report_measures_calls_in_which_nothing_is_compiled():
    model = Language(breaks=True)
    call = reprise.compile(model, memory_budget="70%", backend="aot_eager")
    words = batch()
    call(words).backward()
    first, second = call.memory_budget.report()
    # The other half or the other graph was compiled meanwhile.
    assert all(each.measured_peak is None and each.measured_seconds is None for each in (first, second))
    for _ in range(2):
        call(words).backward()
    reports = call.memory_budget.report()
    assert all(each.measured_peak > 0 for each in reports)
    with torch.no_grad():
        call(words)
    call(words)  # without a backward
    assert call.memory_budget.report() == reports


def test_nothing_is_timed_where_the_default_fits():
    model = Language()
    call = reprise.compile(model, memory_budget="8GiB", backend="aot_eager")
    steps(call, model)
    (report,) = call.memory_budget.report()
    assert report.predicted_seconds is None and report.measured_seconds > 0 and not report.recomputed_lines


def test_a_backward_that_fails_is_not_what_a_call_took():
    model = Language()
    call = reprise.compile(model, memory_budget="70%", backend="aot_eager")
    steps(call, model)
    (report,) = call.memory_budget.report()
    loss = call(batch())

    def fail(*_):
        raise RuntimeError("stop")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_graph.Call, "measure", fail)
        with pytest.raises(RuntimeError, match="stop"):
            loss.backward()
    assert call.memory_budget.report() == [report]
    model.zero_grad()
    steps(call, model)
    (after,) = call.memory_budget.report()
    assert after.measured_peak == pytest.approx(report.measured_peak, rel=0.01)


class TwoOutputs(torch.nn.Module):
    """The second is handed to backward as well, and is so small that no other plan is made without it."""

    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(64, 64) for _ in range(6))

    def forward(self, x):
        for layer in self.layers:
            x = x + torch.nn.functional.gelu(layer(x)).tanh()
        return x.square().mean(), x.mean(0).exp()


def test_schedules_are_not_made_again_when_a_step_was_measured(monkeypatch):
    asked, made = [], []

    def counted(module, name, counts):
        original = getattr(module, name)

        def count(*arguments, **options):
            counts.append(name)
            return original(*arguments, **options)

        monkeypatch.setattr(module, name, count)

    counted(_schedule, "schedule_of", asked)
    counted(_inductor, "_make_schedule", made)
    call = reprise.compile(TwoOutputs(), memory_budget="60%")
    counts = []
    for _ in range(4):
        loss, mean = call(torch.randn(512, 64))
        counts.append((len(asked), len(made)))
        loss = loss + mean.sum()
        del mean  # the plan is for a step that holds it until backward has ended
        loss.backward()
        counts.append((len(asked), len(made)))
    planned, measured, *others = counts
    assert planned[1] > 0
    assert measured[0] > planned[0]  # of what the first step showed
    assert measured[1] == planned[1]
    assert others == [measured] * len(others)
