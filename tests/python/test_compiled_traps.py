"""What torch.compile does behind a plan's back: each test is of one such thing. Most run operators as they are
(aot_eager)."""

import contextlib
import functools
import json
import re
import warnings

import pytest
import torch
from test_compiled import BATCH, LENGTH, WIDTH, WORDS, Language, batch, fresh, is_same, steps  # noqa: F401
from torch import fx, nn
from torch.nn import functional as F

import reprise
from reprise import compiled
from reprise.compiled import _cost_cache
from reprise.compiled._again import Cut
from reprise.compiled._budget import PlannedGraph
from reprise.compiled._costs import Costs
from reprise.compiled._kinds import is_repeatable


class Outside(nn.Module):
    """The loss is not part of it."""

    def __init__(self):
        super().__init__()
        self.body = Language(layers=2)
        self.out = nn.Linear(WIDTH, 4 * WORDS)

    def forward(self, words):
        x = self.body.words(words)
        for block in self.body.blocks:
            x = block(x)
        return self.out(x), x


def loss_outside(call):
    return lambda words: F.cross_entropy(call(words)[0].flatten(0, 1), words.flatten())


def quietly(call, model, count=4, words=None):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return steps(call, model, count, words)


def test_outputs_that_nobody_holds_and_gradients_that_come_in_are_predicted():
    """Autograd holds the latter until backward has ended."""
    plain, model = Outside(), Outside()
    expected, default = quietly(loss_outside(torch.compile(plain, backend="aot_eager", dynamic=False)), plain)
    torch._dynamo.reset()
    call = reprise.compile(model, memory_budget="75%", backend="aot_eager")
    found, peak = quietly(loss_outside(call), model)
    assert is_same(found, expected)
    (report,) = call.memory_budget.report()
    limit = 0.75 * report.default_peak
    assert peak <= limit
    assert report.predicted_peak == pytest.approx(peak, rel=0.02) and report.predicted_peak > 0.8 * limit


def test_a_loss_that_is_compiled_apart_is_a_graph_of_the_same_step():
    found = []
    for within in (1.0, 0.75):
        torch._dynamo.reset()
        model = Outside()
        with compiled.budget(f"+{int(within * found[0][1])}") if found else contextlib.nullcontext() as limits:
            call = torch.compile(model, backend="aot_eager", dynamic=False)
            loss = torch.compile(lambda out, words: F.cross_entropy(out.flatten(0, 1), words.flatten()), backend="aot_eager", dynamic=False)
            found.append(quietly(lambda words: loss(call(words)[0], words), model))
    assert is_same(found[1][0], found[0][0])
    assert found[1][1] <= within * found[0][1] and len(limits.report()) == 2


def test_outputs_that_somebody_holds_are_counted():
    model = Outside()
    call = reprise.compile(model, memory_budget="80%", backend="aot_eager")
    for _ in range(4):
        with reprise.PeakScope() as scope:
            outputs = call(batch())
            (outputs[0].square().mean() + outputs[1].square().mean()).backward()
        del outputs
        model.zero_grad()
    (report,) = call.memory_budget.report()
    assert scope.peak_above_start <= 0.8 * report.default_peak
    assert 0.98 * scope.peak_above_start <= report.predicted_peak <= 1.05 * scope.peak_above_start


def in_blocks(model, blocks):
    def call(words):
        x = model.words(words)
        for block in blocks:
            x = block(x)
        return F.cross_entropy(model.out(x).flatten(0, 1), words.flatten())
    return call


@pytest.mark.parametrize("share", [0.75, 0.5])
def test_blocks_compiled_one_by_one_share_the_bytes_of_their_step(share):
    """The calls of one graph have one plan. The first step does not know how many calls come, and keeps to the bytes, too."""
    plain, model = Language(layers=6), Language(layers=6)
    each = [torch.compile(block, backend="aot_eager", dynamic=False) for block in plain.blocks]
    expected, default = quietly(in_blocks(plain, each), plain, count=1)
    torch._dynamo.reset()
    live = reprise.live_bytes()
    with compiled.budget(f"+{int(share * default)}") as limits, warnings.catch_warnings():
        warnings.filterwarnings("error", message="reprise")
        each = [torch.compile(block, backend="aot_eager", dynamic=False) for block in model.blocks]
        found = [steps(in_blocks(model, each), model, count=1) for _ in range(4)]
    assert all(is_same(values, expected) for values, _ in found)
    assert limits.peaks[0] <= live + share * default + 8192  # without what planning takes
    assert max(peak for _, peak in found[1:]) <= share * default and found[-1][1] > 0.75 * share * default


@pytest.mark.parametrize("backend, share, shape", [
    *(("aot_eager", share, shape) for share in (0.9, 0.65) for shape in ((256, 64), (4, 64, 64))), ("inductor", 0.65, (256, 64))])
def test_blocks_hand_over_less_where_each_by_itself_would_take_more(backend, share, shape):
    """In three dimensions a block keeps a view of what the block before it made, and nobody has the whole. Inductor writes results in
    place, so that a block takes less than the planner expects."""
    x = torch.randn(shape)

    def run():
        torch.manual_seed(1)
        torch._dynamo.reset()
        model = nn.ModuleList(nn.Sequential(nn.Linear(64, 256), nn.Tanh(), nn.Linear(256, 64)) for _ in range(6))
        blocks = [torch.compile(block, backend=backend, dynamic=False) for block in model]
        return quietly(lambda x: functools.reduce(lambda y, block: block(y), blocks, x).square().mean(), model, words=x)

    expected, default = run()
    with compiled.budget(f"{share:.0%}"):
        found, peak = run()
    assert is_same(found, expected) and peak <= share * default


def test_parts_of_a_model_hand_over_little_until_all_are_known():
    class Parts(Language):
        def forward(self, words):
            x = self.words(words)
            for block in self.blocks:
                x = block(x)
                torch._dynamo.graph_break()  # in a loop: torch compiles the blocks one by one
            return F.cross_entropy(self.out(x).flatten(0, 1), words.flatten())

    model = Parts(layers=6)
    call = reprise.compile(model, memory_budget="50%", backend="aot_eager", dynamic=False)
    call(batch())
    assert all(each.chosen.halves.between < each.chosen.default.between for each in call.memory_budget.graphs)


def test_a_graph_compiled_without_a_budget_or_with_another_is_not_taken():
    model = Language(layers=2)
    default = steps(torch.compile(model, backend="aot_eager", dynamic=False), model)[1]
    peaks = [steps(reprise.compile(model, memory_budget=share, backend="aot_eager"), model)[1] for share in ("90%", "75%")]
    assert peaks[0] <= 0.9 * default and peaks[1] <= 0.75 * default
    assert steps(torch.compile(model, backend="aot_eager", dynamic=False), model)[1] == pytest.approx(default, rel=0.001)


def test_torch_s_cache_of_graphs_is_off_while_a_budget_plans():
    before = torch._functorch.config.enable_autograd_cache
    with compiled.budget("90%"):
        assert not torch._functorch.config.enable_autograd_cache
    assert torch._functorch.config.enable_autograd_cache == before


def test_an_operator_with_several_results_hands_over_tensors_alone():
    model = Language(layers=2)
    call = reprise.compile(model, memory_budget="85%", backend="aot_eager")
    steps(call, model, count=1)
    for graph in call.memory_budget.graphs:
        nodes = [graph.planner.joint.nodes[at] for at in graph.chosen.cut.saved]
        assert nodes and all(isinstance(node.meta["val"], torch.Tensor) for node in nodes)


@pytest.mark.parametrize("dropout, is_function", [(0.0, True), (0.1, False)])
def test_attention_may_run_again_where_it_draws_nothing(dropout, is_function):
    graph = fx.Graph()
    inputs = [graph.placeholder(name) for name in "qkv"]
    attention = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
    assert torch.Tag.nondeterministic_seeded in attention.tags
    assert is_repeatable(graph.call_function(attention, (*inputs, dropout))) == is_function


def test_constants_that_layers_share_hide_no_cut():
    """torch merges equal constants, so that every layer reads the same one."""
    class Biased(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(3)
            self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(6))

        def forward(self, x):
            for layer in self.layers:
                x = x + torch.tanh(layer(x) + torch.arange(WIDTH) / WIDTH) * torch.full((LENGTH, WIDTH), 0.5)
            return x.square().mean()

    x = torch.linspace(-1, 1, BATCH * LENGTH * WIDTH).view(BATCH, LENGTH, WIDTH)
    plain, model = Biased(), Biased()
    expected, default = steps(torch.compile(plain, backend="aot_eager", dynamic=False), plain, words=x)
    torch._dynamo.reset()
    call = reprise.compile(model, memory_budget="70%", backend="aot_eager")
    found, peak = steps(call, model, words=x)
    (report,) = call.memory_budget.report()
    assert report.default_peak == pytest.approx(default, rel=0.1)
    assert is_same(found, expected) and peak <= 0.7 * report.default_peak


def test_the_same_graph_has_the_same_plan():
    handed = []
    for _ in range(2):
        torch._dynamo.reset()
        model = Language(layers=2)
        call = reprise.compile(model, memory_budget="75%", backend="aot_eager")
        steps(call, model, count=1)
        handed.append([graph.chosen.cut.saved for graph in call.memory_budget.graphs])
    assert handed[0] == handed[1]


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_what_was_made_of_an_input_that_the_model_writes_is_not_made_again(backend, monkeypatch):
    """torch writes the input after forward, and backward would read what was written."""
    class Writes(nn.Module):
        def forward(self, x):
            x.add_(1)
            return x.sin().cos().sum()

    def gradient(call):
        leaf = torch.linspace(-1, 1, 4096, requires_grad=True)
        call(leaf * 2).backward()
        return leaf.grad

    def keep_least(graph, joint, default):
        choose(graph, joint, default)
        return Cut(joint.saved_for(set()))

    expected = gradient(torch.compile(Writes(), backend=backend, dynamic=False))
    torch._dynamo.reset()
    choose = PlannedGraph.choose
    monkeypatch.setattr(PlannedGraph, "choose", keep_least)
    assert torch.equal(gradient(reprise.compile(Writes(), memory_budget="1GiB", backend=backend)), expected)


@pytest.fixture
def cache(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return _cost_cache.path()


def product():
    graph = fx.Graph()
    node = graph.call_function(torch.ops.aten.mm.default, (graph.placeholder("a"), graph.placeholder("b")))
    for each in graph.nodes:
        each.meta["val"] = torch.ones(8, 8)
    return node


def test_operators_are_timed_once_a_machine(cache):
    first = Costs()
    expected = first.call(product())
    first.save()
    table = json.loads(cache.read_text())
    assert len(table) == 1
    cache.write_text(json.dumps({key: [expected[0] + 1, 7] for key in table}))
    assert Costs().call(product()) == (expected[0] + 1, 7)


@pytest.mark.parametrize("text", ["", "{", "[1]", '{"a": 1}', '{"a": ["b"]}'])
def test_a_file_of_timings_that_cannot_be_read_is_written_anew(cache, text):
    cache.parent.mkdir()
    cache.write_text(text)
    costs = Costs()
    costs.call(product())
    costs.save()
    assert len(json.loads(cache.read_text())) == 1 and list(cache.parent.iterdir()) == [cache]


def test_timings_that_cannot_be_written_are_taken_again(cache):
    cache.parent.write_text("a file where the folder would be")
    costs = Costs()
    costs.call(product())
    costs.save()
    assert not cache.exists()


def test_the_smallest_values_of_the_default_are_kept():
    """To make a few bytes again changes the loops around them, and inductor's last bits with these."""
    model = Language()
    call = reprise.compile(model, memory_budget="60%", backend="aot_eager")
    steps(call, model)
    (graph,) = call.memory_budget.graphs
    small = graph.planner.joint.must_keep
    assert small and small <= set(graph.chosen.cut.saved) & set(graph.planner.default_saved)


@pytest.mark.parametrize("backend, model", [
    ("aot_eager", nn.LSTM(4, 4)), ("eager", nn.Linear(4, 4)), ("aot_eager", torch.func.grad(lambda x: x.sin().sum()))])
def test_a_call_of_which_nothing_is_planned_warns_that_the_budget_binds_nothing(backend, model):
    call = reprise.compile(model, memory_budget="60%", backend=backend)
    with pytest.warns(UserWarning, match="memory_budget binds nothing"):
        call(torch.ones(2, 3, 4))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        call(torch.ones(2, 3, 4))


def test_a_budget_of_another_device_than_the_graph_s_is_refused_by_name():
    model = reprise.compile(nn.Linear(4, 4), memory_budget="1GiB", backend="aot_eager")
    assert model.memory_budget.device == torch.device("cpu")
    model(torch.randn(2, 4, requires_grad=True)).sum().backward()
    (graph,) = model.memory_budget.graphs
    with pytest.raises(reprise.UsageError, match="is of the bytes of cuda:1, and the graph's tensors are on cpu; give device="):
        graph.planner.joint.require_device(torch.device("cuda:1"))


def test_models_of_one_step_share_a_budget_and_an_error_says_so():
    def train(calls, models):
        for seed in range(2):
            torch.manual_seed(seed)
            sum(call(batch()) for call in calls).backward()
        found = [each.grad.clone() for model in models for each in model.parameters()]
        for model in models:
            model.zero_grad()
        return found

    models = [Language(layers=2), Language(layers=1)]
    expected = train([torch.compile(each, backend="aot_eager") for each in models], models)
    torch._dynamo.reset()
    with pytest.raises(reprise.BudgetError, match=r"If other models train in the same step, give all one budget: reprise\.compiled\.budget\(\)"):
        train([reprise.compile(each, memory_budget="70%", backend="aot_eager") for each in models], models)
    torch._dynamo.reset()
    for model in models:
        model.zero_grad()
    with compiled.budget("70%") as limits:
        assert is_same(train([torch.compile(each, backend="aot_eager") for each in models], models), expected)
    assert limits.peaks and all(each.recomputed for each in limits.report())


@torch.library.custom_op("reprise_test::counted", mutates_args=())
def counted(x: torch.Tensor) -> torch.Tensor:
    counted.calls += 1
    return x.sin()


counted.calls = 0
counted.register_fake(torch.empty_like)
torch.library.register_autograd("reprise_test::counted", lambda context, gradient: counted(gradient))


def test_planning_calls_no_operator_of_another_library():
    """It may send, print or write."""
    layer, x = nn.Linear(32, 32), torch.ones(512, 32)

    def step(x):
        return counted(layer(x).relu().cos().relu().cos()).relu().cos().sum()

    compiled.frontier(step, x, backend="aot_eager")
    assert counted.calls == 0
    with compiled.budget("90%") as limits:
        call = torch.compile(step, backend="aot_eager")
        for _ in range(2):
            call(x).backward()
    assert counted.calls == 4 and limits.report()[0].recomputed


def test_cuda_graphs_are_refused_wherever_they_are_switched_on():
    model, x = nn.Linear(4, 4), torch.ones(2, 4)
    with pytest.raises(reprise.UsageError, match="leave torch._inductor.config.triton.cudagraphs off"), compiled.budget("1GiB"):
        torch.compile(model, mode="reduce-overhead")(x)
    with torch._inductor.config.patch({"triton.cudagraphs": True}), pytest.raises(reprise.UsageError, match="CUDA graphs"):
        reprise.compile(model, memory_budget="1GiB")(x)


def test_compiled_autograd_is_refused_whenever_it_is_switched_on():
    model, x = nn.Linear(4, 4), torch.ones(2, 4)
    call = reprise.compile(model, memory_budget="1GiB", backend="aot_eager")
    with torch._dynamo.config.patch(compiled_autograd=True), pytest.raises(reprise.UsageError, match="compiled autograd"):
        call(x)
    call(x).sum().backward()
    with torch._dynamo.compiled_autograd._enable(torch.compile(backend="aot_eager")), \
            pytest.raises(reprise.UsageError, match="compiled autograd"):
        call(x)
    with pytest.raises(reprise.UsageError, match="compiled autograd"), compiled.budget("1GiB"), \
            torch._dynamo.config.patch(compiled_autograd=True):
        torch.compile(nn.Linear(4, 4), backend="aot_eager")(x)


def test_an_error_names_what_is_handed_over_as_well_with_the_modules():
    model = Language()
    with pytest.raises(reprise.BudgetError) as raised:
        steps(reprise.compile(model, memory_budget="+100KB", backend="aot_eager"), model)
    held = re.search(r"it holds (.*)\. Raise", str(raised.value))[1]
    value = r"\w+( of [\w. ]+)? \([\d.]+ [KM]?B\)"
    assert re.fullmatch(rf"({value}, ){{5}}and \d+ others \([\d.]+ [KM]?B\)", held), held
    assert "of blocks." in held
