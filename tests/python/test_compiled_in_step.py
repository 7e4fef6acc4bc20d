"""torch.compile inside a budget's step. Graphs of aot_eager call operators, which are recorded; inductor's kernels pass
them by."""

import gc
import warnings

import pytest
import torch
from torch import nn

import reprise
from reprise import _graphs

# Such kernels take the shortest time to compile.
OPTIONS = {"cpp.simdlen": 1, "compile_threads": 1, "cpp_cache_precompile_headers": False}


class Network:
    def __init__(self, layers, backend):
        torch.manual_seed(3)
        self.blocks = [nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 64), nn.Tanh()) for _ in range(layers)]
        self.compiled = [torch.compile(block, backend=backend) for block in self.blocks]
        self.x = torch.randn(512, 64)

    def gradients(self, run=None):
        y = self.x if run is None else run(self.compiled, self.x)
        if run is None:
            for block in self.compiled:
                y = block(y)
        return torch.autograd.grad(y.square().sum(), [p for block in self.blocks for p in block.parameters()])

    def plain(self):
        """Gradients, and the bytes that the step takes."""
        self.gradients()
        with reprise.PeakScope() as scope:
            found = self.gradients()
        return found, scope.peak_above_start


def same(found, expected):
    return all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


@pytest.fixture(scope="module")
def network():
    return Network(4, "aot_eager")


def test_what_graphs_of_operators_keep_is_dropped(network):
    expected, peak = network.plain()
    gc.collect()
    budget = reprise.MemoryBudget(reprise.live_bytes() + peak // 2)
    with budget.step():
        torch.zeros(1)
    of_others = budget.report().past_operators  # what earlier tests keep
    for _ in range(2):
        with budget.step():
            assert same(network.gradients(), expected)
    report = budget.report()
    assert report.dropped > 0 and report.peak <= budget.limit and report.past_operators - of_others < 100_000


def test_compiled_blocks_are_regions_inside_a_step(network):
    expected, peak = network.plain()

    def in_regions(blocks, x):
        return reprise.checkpoint_sequential(blocks, f"{peak * 13 // 20}", x)

    network.gradients(in_regions)  # measures the layers
    budget = reprise.MemoryBudget(reprise.live_bytes() + peak * 9 // 10)
    with budget.step():
        assert same(network.gradients(in_regions), expected)
    assert budget.report().dropped == 0


def test_graphs_of_kernels_get_their_inputs_and_what_they_keep_is_named(monkeypatch):
    monkeypatch.setattr(_graphs, "_is_said", False)
    network = Network(2, "inductor")
    graph = torch.compile(lambda y: y.sin() * y.cos(), options=OPTIONS)
    network.compiled = [network.blocks[0], graph, network.blocks[1]]  # operators around a graph
    expected, _ = network.plain()
    budget = reprise.MemoryBudget("4GiB", paranoid=True, min_bytes=0, verify=True)
    with pytest.warns(UserWarning, match=r"compiled graphs .* Make regions of compiled blocks"):
        with budget.step():
            assert same(network.gradients(), expected)
    assert budget.report().replayed > 0 and budget.report().past_operators >= network.x.nbytes
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with budget.step():
            network.gradients()
    with pytest.raises(reprise.BudgetError, match=r"KB allocated past operators, by compiled graphs \(torch.compile\)"):
        with reprise.MemoryBudget(reprise.live_bytes() + 1_500_000).step():
            y = graph(network.x)
            torch.empty(1 << 28)
            y.sum()


def test_the_least_of_a_step_has_room_for_what_graphs_of_kernels_take():
    torch._dynamo.reset()
    graph = torch.compile(lambda y: (y @ y.T).exp() @ y, options=OPTIONS)
    x = torch.randn(512, 64, requires_grad=True)
    budget = reprise.MemoryBudget("4GiB")
    for _ in range(3):
        with budget.step():
            graph(x).sum().backward()
    assert abs(budget.least - budget.report().peak) < 1000  # nothing can be dropped; scalars may be live


def test_a_planned_model_holds_its_own_budget_and_the_step_its_own():
    """The tape drops what operators around the graph keep; what the graph hands over is as planned."""
    torch._dynamo.reset()
    torch.manual_seed(3)
    around = [nn.Sequential(*(nn.Sequential(nn.Linear(64, 64), nn.GELU()) for _ in range(3))) for _ in range(2)]

    def inside(y):
        return (y.sin() * y.cos()).exp().tanh()

    parameters = [each for module in around for each in module.parameters()]
    x = torch.randn(512, 64)

    def gradients(call):
        y = around[0](x)
        for _ in range(3):
            y = call(y)
        return torch.autograd.grad(around[1](y).square().sum(), parameters)

    plain = torch.compile(inside, backend="aot_eager", dynamic=False)
    expected = gradients(plain)
    with reprise.PeakScope() as scope:
        gradients(plain)
    torch._dynamo.reset()
    planned = reprise.compile(inside, memory_budget=scope.live_at_start + scope.peak_above_start, backend="aot_eager")
    budget = reprise.MemoryBudget(scope.live_at_start + scope.peak_above_start * 2 // 3)
    for _ in range(2):
        with budget.step():
            found = gradients(planned)
        assert same(found, expected)
    report = budget.report()
    assert report.peak <= budget.limit and report.dropped > 0
    (planned_for,) = planned.memory_budget.report()
    assert planned_for.predicted_peak <= scope.peak_above_start


@pytest.mark.filterwarnings("error::UserWarning")
def test_compilers_see_torch_s_own_methods_after_a_step():
    def branch(x):
        return x.sin() if x.sum() > 0 else x.cos()

    with reprise.MemoryBudget("4GiB").step():
        torch.ones(3).exp().tolist()
    torch._dynamo.reset()
    graphs = []
    compiled = torch.compile(branch, backend=lambda graph, inputs: graphs.append(graph) or graph.forward)
    x = torch.ones(3)
    assert torch.equal(compiled(x), x.sin()) and len(graphs) == 2
