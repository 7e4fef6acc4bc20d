"""`reprise run` on scripts that compile: one budget over compiled graphs and all else, to the same bits."""

import gc
import json
import types

import pytest
import torch

from reprise.compiled._run import RunGraph, RunGraphs
from reprise.running.asked import Asked
from reprise.running.budgets import Refused, RunBudgets
from test_run import LINE, SCRIPTS, managed, plain

SCRIPT = SCRIPTS / "compiled.py"


@pytest.fixture(autouse=True)
def fresh():
    """What earlier tests left is freed before a step is measured, not in it."""
    torch._dynamo.reset()
    gc.collect()
    yield
    torch._dynamo.reset()


def trained(backend, budget, steps, report):
    """What the script prints alone and in a run, what reprise says, and the figures of the run."""
    expected = plain(SCRIPT, backend, steps)
    torch._dynamo.reset()
    compile = torch.compile
    out, errors, code = managed("--budget", budget, "--report", report, SCRIPT, backend, steps)
    assert (out, code) == (expected, 0), errors
    assert torch.compile is compile
    return errors, json.loads(report.read_text())


def test_graphs_of_kernels_and_the_rest_share_one_budget(tmp_path):
    errors, figures = trained("inductor", "50%", "5", tmp_path / "report.json")
    assert LINE.search(errors) and "; compiled graphs save " in errors, errors
    assert figures["peak"] <= figures["limit"] < figures["plain"]["peak"] and figures["dropped"] > 0
    (graph,) = figures["graphs"]
    assert graph["predicted_peak"] < graph["default_peak"] and sum(graph["recomputed"].values()) > 0
    assert 0 < graph["measured_peak"] < graph["default_peak"] and graph["measured_seconds"] > 0
    # The plain step's least, with the compiler's own choice, is above the budget that was kept.
    assert figures["limit"] < figures["plain"]["peak"] - 0.45 * (figures["plain"]["peak"] - figures["plain"]["live"])


def test_what_graphs_of_operators_keep_is_dropped_by_the_tape(tmp_path):
    errors, figures = trained("aot_eager", "50%", "4", tmp_path / "report.json")
    assert figures["graphs"] == [] and figures["dropped"] > 0 and figures["peak"] <= figures["limit"], errors


@pytest.fixture
def of_operators(monkeypatch):
    """Graphs of operators are planned as those of kernels are, which take long to compile."""
    monkeypatch.setattr(RunGraphs, "_begin_graph", lambda graphs, backend: RunGraph(graphs, backend))


def written(tmp_path, line, *, backward="call(x).backward()"):
    script = tmp_path / "script.py"
    script.write_text(
        "import torch\n"
        "x = torch.ones(64, 64, requires_grad=True)\n"
        f"call = torch.compile({line}, backend='aot_eager')\n"
        "for _ in range(4):\n"
        f"    {backward}\n"
        "print(x.grad.double().sum().item())\n")
    return script


def test_a_graph_that_cannot_be_planned_stays_as_it_is(of_operators, tmp_path):
    script = written(tmp_path, "lambda x: torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,)).sum()")
    expected = plain(script)
    torch._dynamo.reset()
    out, errors, code = managed("--budget", "1GiB", script)
    assert (out, code) == (expected, 0), errors
    assert errors.count("a compiled graph is not planned, and keeps what the compiler chose: the operator 'cond' runs a graph of its own") == 1, errors


def test_a_size_that_depends_on_data_stays_as_it_is(of_operators, tmp_path):
    script = written(tmp_path, "lambda x: x[x > 0].square().sum()",
                     backward="exec('with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True): call(x).backward()')")
    expected = plain(script)
    torch._dynamo.reset()
    out, errors, code = managed("--budget", "1GiB", script)
    assert (out, code) == (expected, 0) and errors.count("is not planned") == 1 and "the size 'u0' of '" in errors, errors


def test_sizes_that_vary_are_planned(of_operators, tmp_path):
    """torch makes a graph for all sizes when a second one comes."""
    script = written(tmp_path, "lambda x: ((x.sin() * x.cos()).exp() @ x.T).tanh().sum()",
                     backward="call(x[:32]).backward(); call(x[:40]).backward(); call(x).backward()")
    expected, report = plain(script), tmp_path / "report.json"
    torch._dynamo.reset()
    out, errors, code = managed("--budget", "8MB", "--report", report, script)
    figures = json.loads(report.read_text())
    assert (out, code) == (expected, 0) and "is not planned" not in errors and figures["peak"] <= figures["limit"], errors
    assert [max(each["sizes"].values(), default=0) for each in figures["graphs"]][-1] >= 64, figures["graphs"]


def test_blocks_hand_over_less_where_each_by_itself_would_take_more(of_operators, tmp_path):
    script = written(tmp_path, "lambda y, w=torch.linspace(-1, 1, 2**14).view(64, 256).requires_grad_(): (y @ w).tanh() @ w.T",
                     backward="call(call(call(call(call(call(x)))))).mean().backward()")
    expected, report = plain(script), tmp_path / "report.json"
    torch._dynamo.reset()
    out, errors, code = managed("--budget", "70%", "--report", report, script)
    assert (out, code) == (expected, 0), errors
    figures = json.loads(report.read_text())
    assert 0 < figures["peak"] <= figures["limit"], errors


@pytest.mark.parametrize("budget", ["80%", "least", "+150KB"])
def test_calls_of_one_graph_that_are_open_at_once_count_each(of_operators, tmp_path, budget):
    script = written(tmp_path, "lambda x: (x.sin() * x.cos()).exp()", backward="call(call(call(call(x)))).mean().backward()")
    expected, report = plain(script), tmp_path / "report.json"
    torch._dynamo.reset()
    out, errors, code = managed("--budget", budget, "--report", report, script)
    figures = json.loads(report.read_text())
    assert (out, code) == (expected, 0) and figures["peak"] <= figures["limit"], errors
    # A backward that torch traces ends no step: the plain step is a whole one, with four calls open.
    assert figures["plain"]["peak"] - figures["plain"]["live"] >= 4 * 64 * 64 * 4


class Graphs:
    """They can save 400 bytes; a step's least falls by what they save."""

    def __init__(self, saves=400):
        self.saving, self.saves, self.asked = None, saves, []

    def step_begins(self):
        pass

    def can_save(self):
        return 400

    def saved(self):
        return 0

    def plan_again(self, saving):
        self.saving = min(saving, 1.0)
        self.asked.append(saving)
        return True


def settled(budget, graphs, monkeypatch, more=(0,)):
    """Budgets whose plain step goes from 1000 bytes to 2000; the tape alone gets it to 1600, and the steps of each
    optimizer to so many `more`."""
    monkeypatch.setattr("reprise.running.budgets.live_bytes", lambda device: 1000)
    budgets = RunBudgets(Asked.parse(budget), "cpu")
    budgets._graphs = graphs
    for step in range(12):
        budgets.training()
        peak = 2000 if budgets.limit is None else budgets.limit
        budgets.trained(types.SimpleNamespace(
            least=int(1600 + more[step % len(more)] - graphs.saves * (graphs.saving or 0)),
            report=lambda: types.SimpleNamespace(peak=peak, dropped=0, packed=0, dropped_bytes=0)), rounds=(step + 1) // len(more))
        if budgets.found is not None:
            return budgets
    raise AssertionError("no limit was found")


def test_graphs_and_the_tape_save_the_same_part_of_what_each_can(monkeypatch, capsys):
    graphs = Graphs()
    budgets = settled("60%", graphs, monkeypatch)
    assert graphs.asked == [0.5]  # 400 bytes are to be saved, and both can save 400
    assert budgets.limit == 1600 and budgets.found.least == 1400
    assert settled("least", Graphs(), monkeypatch).limit == int(1200 * 1.02)
    # Plans that save less than predicted are corrected by what the step lacked, and at last save all they can.
    graphs = Graphs(saves=100)
    assert settled("52%", graphs, monkeypatch).found.least == 1500
    assert graphs.asked == [pytest.approx(0.6), pytest.approx(0.655), pytest.approx(0.6935), 1.0]
    # After each plan, all optimizers step before the next.
    graphs = Graphs(saves=300)
    assert settled("60%", graphs, monkeypatch, more=(0, 300)).found.least == 1600
    assert graphs.asked[0] == 0.8 and graphs.asked[-1] == 1
    with pytest.raises(Refused):
        settled("49%", Graphs(saves=100), monkeypatch)
    assert "a step needs at least 1.5 KB (1500 bytes)" in capsys.readouterr().err


def test_a_compiled_model_that_is_evaluated_between_steps_is_one_graph_as_without_a_run(tmp_path):
    script = tmp_path / "script.py"
    (tmp_path / "small.py").write_text((SCRIPTS / "small.py").read_text())
    script.write_text(
        "import torch\nfrom small import batch, network\n"
        "counters = torch._dynamo.utils.counters\n"
        "counters.clear()\n"
        "model = network(layers=2)\n"
        "optimizer = torch.optim.SGD(model.parameters(), 0.1)\n"
        "call = torch.compile(model, backend='aot_eager')\n"
        "for _ in range(6):\n"
        "    x, y = batch()\n"
        "    with torch.no_grad():\n"
        "        print(call(x).sum().item())\n"
        "    torch.nn.functional.mse_loss(call(x), y).backward()\n"
        "    optimizer.step()\n"
        "    optimizer.zero_grad()\n"
        "print(dict(counters['graph_break']), counters['stats']['unique_graphs'])\n")
    expected = plain(script)
    torch._dynamo.reset()
    out, errors, code = managed("--budget", "60%", script)
    assert (out, code) == (expected, 0) and out.endswith("{} 2\n"), errors
