"""reprise.compiled.frontier: points of a step that never runs."""

import itertools
import json
import xml.dom.minidom

import pytest
import sympy
import torch
from torch import nn
from torch._inductor import config, ir, scheduler

import reprise
from reprise import compiled
from reprise.compiled import _frontier
from reprise.compiled._plan import GraphPlanner
from reprise.compiled._torch import comparing_numbers, merges_refused_early
from conftest import long
from test_compiled import is_same, steps


class Mixer(nn.Module):
    def __init__(self, layers=3):
        super().__init__()
        torch.manual_seed(3)
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Dropout(0.1), nn.Linear(64, 32)) for _ in range(layers))

    def forward(self, x):
        for layer in self.layers:
            x = x + layer(x)
        return x


class Deep(nn.Module):
    """What a layer keeps is no more than its input."""

    def __init__(self, layers=24):
        super().__init__()
        torch.manual_seed(3)
        self.layers = nn.ModuleList(nn.Linear(32, 32) for _ in range(layers))

    def forward(self, x):
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return x.square().sum()


@pytest.fixture(autouse=True, scope="module")
def fresh():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.fixture(scope="module")
def step():
    """A model, its input, and the frontier of its step."""
    model, x = Mixer(), torch.ones(256, 32)
    written = torch.get_rng_state()
    found = compiled.frontier(model, x, points=4, backend="aot_eager")
    assert torch.equal(torch.get_rng_state(), written) and all(each.grad is None for each in model.parameters())
    return model, x, found


def test_smaller_peaks_take_longer_and_the_last_point_recomputes_nothing(step):
    points = step[2].points
    assert len(points) >= 3
    for one, other in zip(points, points[1:]):
        assert one.peak < other.peak and one.seconds > other.seconds and one.peak <= one.budget
    assert points[-1].recomputed == 0 < points[0].recomputed < 1 and step[2].least == points[0].peak


def test_a_point_s_peak_is_that_of_the_step(step):
    model, x, found = step
    point = found.points[-2]
    call = torch.compile(lambda x: model(x).sum(), backend="aot_eager")
    with compiled.budget(f"+{point.peak + 8192}") as limits:
        for _ in range(2):  # the first step does not know that no other graph comes
            with reprise.PeakScope() as scope:
                call(x).backward()
            model.zero_grad()
    assert scope.peak_above_start <= point.peak + 8192
    assert limits.report()[0].predicted_peak == pytest.approx(point.peak, rel=0.1)


def test_a_frontier_is_text_picture_table_and_json(step):
    found = step[2]
    lines = str(found).splitlines()
    assert lines[0].split() == ["budget", "peak", "handed", "over", "recomputed", "seconds"] and len(lines) == 1 + len(found.points)
    assert "0.0%" in lines[-1]
    xml.dom.minidom.parseString(found.svg())
    assert found._repr_html_().count("<tr>") == 1 + len(found.points) and found.svg() in found._repr_html_()
    read = json.loads(found.json())["points"]
    assert [each["peak"] for each in read] == [each.peak for each in found.points] and read[0]["recomputed"] > 0


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_the_step_is_written_for_planners_and_simulations(backend, tmp_path):
    found = compiled.frontier(Mixer(), torch.ones(256, 32), points=2, backend=backend)
    found.write(tmp_path / "step.json")
    trace = reprise.StepTrace.read(tmp_path / "step.json")
    assert trace.json() == found.trace.json()
    # A few loops are merged, and a few results written in place.
    assert trace.plain_peak - trace.constants == pytest.approx(found.points[-1].peak, rel=0.15)
    assert trace.base == pytest.approx(found.points[-1].seconds, rel=0.01)
    budget = trace.constants + int(0.8 * found.points[-1].peak)
    plan = reprise.planners.hindsight(trace, budget, moves=1000)
    assert plan.fits and 1 < plan.slowdown <= trace.simulate(budget).slowdown


def test_the_loss_can_be_given_and_nothing_runs(monkeypatch):
    def forbidden(*_):
        raise AssertionError("an operator of the model ran")

    class Counts(torch.autograd.Function):
        @staticmethod
        def forward(context, x):
            return torch.ops.reprise_test_frontier.step(x)

        @staticmethod
        def backward(context, gradient):
            return gradient

    library = torch.library.Library("reprise_test_frontier", "DEF")
    library.define("step(Tensor x) -> Tensor")
    library.impl("step", forbidden, "CPU")
    library.impl("step", torch.empty_like, "Meta")
    x = torch.ones(64, 32, requires_grad=True)
    found = compiled.frontier(lambda x: {"y": Counts.apply(x.sin().exp())}, x, loss=lambda y: y["y"].square().sum(), points=2,
                              backend="aot_eager")
    assert found.least > 0


def test_the_least_is_that_of_operators_that_run_more_than_once(monkeypatch):
    model, x = Deep(), torch.ones(1024, 32)
    least = compiled.frontier(model, x, points=2, backend="aot_eager").least
    monkeypatch.setattr(GraphPlanner, "_may_repeat", lambda self: False)
    assert least < 0.9 * compiled.frontier(model, x, points=2, backend="aot_eager").least


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_backward_runs_operators_more_than_once(backend):
    torch._dynamo.reset()
    model, x = Deep(16), torch.ones(1024, 32)
    expected, _ = steps(torch.compile(model, backend=backend), model, words=x)
    least = compiled.frontier(model, x, points=2, backend=backend).least
    torch._dynamo.reset()
    call = reprise.compile(model, memory_budget=f"+{least + 16384}", backend=backend)
    found, peak = steps(call, model, words=x)
    assert is_same(found, expected) and peak <= least + 16384
    (graph,) = call.memory_budget.report()
    (planned,) = call.memory_budget.graphs
    runs = planned.chosen.cut.runs
    assert max(map(len, runs.values())) > 1 and sum(graph.recomputed.values()) > len(runs)


@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=long)])
def test_torch_s_own_share_bounds_what_is_handed_over_within_the_bytes(backend):
    handed, gradients, x = [], [], torch.ones(256, 32)
    for share in (0, 0.25, 0.5, 1):
        torch._dynamo.reset()
        model = Deep(8)
        with torch._functorch.config.patch(activation_memory_budget=share):
            call = reprise.compile(model, memory_budget="1GiB", backend=backend)
            gradients.append(torch.autograd.grad(call(x), list(model.parameters())))
            (point, *_) = compiled.frontier(model, x, points=2, backend=backend).points[::-1]
        (report,) = call.memory_budget.report()
        assert point.handed_over == report.handed_over
        handed.append(report.handed_over)
    assert all(is_same(each, gradients[-1]) for each in gradients)
    least, *others, most = handed
    assert least < most / 8
    with torch._functorch.config.patch(activation_memory_budget=0.5):
        planner = _frontier._planner_of(model, (x,), {}, backend)
    assert [planner.choose(1 << 30).halves.saved for _ in range(2)] == [others[1]] * 2
    assert all((share - 0.2) * most < each <= least + share * (most - least) for share, each in zip((0.25, 0.5), others))


def test_both_budgets_of_a_region_hold_or_are_named():
    if not hasattr(torch.autograd.graph, "region_activation_memory_budget"):
        pytest.skip("this torch has shares of whole graphs only")
    model, x = Deep(8), torch.ones(256, 32)

    def halved(x):
        with torch.autograd.graph.region_activation_memory_budget(0.5):
            return model(x)

    handed = []
    torch._dynamo.reset()
    for function in (halved, model):
        with compiled.budget("1GiB") as limits:
            torch.compile(function, backend="aot_eager")(x).backward()
        handed.append(limits.report()[0].handed_over)
    assert 0.25 * handed[1] < handed[0] <= 0.5 * handed[1] + x.nbytes

    def recomputed_at_once(x):
        with torch.autograd.graph.region_activation_memory_budget(0.0):
            return model(x)

    call = reprise.compile(recomputed_at_once, memory_budget="+100KB", backend="aot_eager")
    with pytest.raises(reprise.BudgetError, match="no more handed over than torch's activation_memory_budget of 0.0 allows"):
        call(x)


def test_what_cannot_be_planned_is_refused():
    x = torch.ones(8, 32)
    with pytest.raises(reprise.UsageError, match="points is 1; give at least 2"):
        compiled.frontier(Mixer(1), x, points=1)
    with pytest.raises(reprise.UsageError, match="backend is 'eager'; give"):
        compiled.frontier(Mixer(1), x, backend="eager")
    with pytest.raises(reprise.UsageError, match="has no backward"):
        compiled.frontier(lambda x: x.sum(), x, backend="aot_eager")
    with pytest.raises(torch._dynamo.exc.Unsupported, match="graph_break"):
        compiled.frontier(lambda x: torch._dynamo.graph_break() or x, x.requires_grad_(), backend="aot_eager")
    with pytest.raises(reprise.UsageError, match="on the meta device; give a model and inputs on the device that it is to train on"):
        compiled.frontier(Mixer(1).to("meta"), x.to("meta"), backend="aot_eager")


def test_sizes_are_compared_as_by_sympy():
    number, size = sympy.Integer(2), sympy.Symbol("s", integer=True)
    with comparing_numbers():
        quick = ir.sympy
        assert quick is not sympy
        for name, left, right in itertools.product(("Eq", "Ne", "Lt", "Le", "Gt", "Ge"), (1, number, size, 1.5), (2, number, size, True)):
            if name in ("Eq", "Ne") or right is not True:
                expected, found = (getattr(each, name)(left, right) for each in (sympy, quick))
                assert found == expected and type(found) is type(expected), (name, left, right)
        assert isinstance(sympy.Eq(size, 1), quick.Eq) and not isinstance(sympy.true, quick.Eq)
    assert ir.sympy is sympy


@config.patch(force_disable_caches=True)
def test_merges_are_refused_early_only_if_inductor_refuses_them(monkeypatch):
    """Loops of every layer read the seeds of dropout."""
    answers, asked = [], []
    own = scheduler.Scheduler.can_fuse
    monkeypatch.setattr(scheduler.Scheduler, "can_fuse", lambda *pair, **options: asked.append(pair) or own(*pair, **options))
    with merges_refused_early():
        early = scheduler.Scheduler.can_fuse

    def both(*pair, **options):
        expected = own(*pair, **options)
        assert early(*pair, **options) == expected
        answers.append(expected)
        return expected

    monkeypatch.setattr(scheduler.Scheduler, "can_fuse", both)
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    torch.compile(nn.TransformerEncoder(layer, 3, enable_nested_tensor=False))(torch.randn(2, 5, 16)).sum().backward()
    assert any(answers) and len(asked) < len(answers) / 2
