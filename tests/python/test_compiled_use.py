"""A planned module in the hands of a training script: copied, stored, compiled once more, and called for losses that are kept."""

import copy
import io
import pickle
import warnings

import pytest
import torch
from test_compiled import Language, fresh, is_same, steps  # noqa: F401
from torch import nn
from torch.nn import functional as F

import reprise
from reprise.compiled._budget import _MOST_LATER
from reprise.compiled._call import Call
from reprise.compiled._plan import GraphPlanner

EAGER = {"backend": "aot_eager", "dynamic": False}


class Gelus(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        torch.manual_seed(2)
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(3))

    def forward(self, x):
        for layer in self.layers:
            x = F.gelu(layer(x).sin())
        return x


def test_a_copy_shares_the_budget_and_has_parameters_of_its_own():
    model = reprise.compile(Language(), memory_budget="70%", **EAGER)
    expected, _ = steps(model, model)
    for twin in (copy.deepcopy(model), copy.copy(model)):
        assert twin.memory_budget is model.memory_budget
        found, _ = steps(twin, twin)
        assert is_same(found, expected)
    deep = copy.deepcopy(model)
    assert all(one is not other for one, other in zip(model.parameters(), deep.parameters()))


def test_a_copy_raises_the_errors_of_its_budget():
    twin = copy.deepcopy(reprise.compile(Gelus(), memory_budget="+1KB", **EAGER))
    with pytest.raises(reprise.BudgetError, match="memory_budget '\\+1KB' is .* needs at least"):
        twin(torch.ones(256, 32))


def test_a_stored_model_leads_to_one_budget_where_lightning_adds_what_torch_compile_was_given():
    model = reprise.compile(Language(), memory_budget="70%", **EAGER)
    model._compile_kwargs = {"backend": model._backend}
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    assert loaded._compile_kwargs["backend"].limits is loaded.memory_budget is not model.memory_budget


def test_a_model_that_is_loaded_has_a_budget_on_its_own_device():
    model = reprise.compile(Language(), memory_budget="70%", **EAGER)
    model.memory_budget.device = torch.device("cuda:0")  # as where it was stored
    loaded = pickle.loads(pickle.dumps(model))
    assert loaded.memory_budget.device == torch.device("cpu")
    model._arguments["device"] = "cuda:77"
    with pytest.raises(reprise.UsageError, match="device is 'cuda:77', whose bytes cannot be counted"):
        pickle.loads(pickle.dumps(model))


@pytest.mark.parametrize("is_trained", [False, True])
def test_a_stored_model_is_loaded_with_a_budget_of_the_same_arguments(is_trained):
    model = reprise.compile(Language(), memory_budget="70%", **EAGER)
    if is_trained:
        steps(model, model)
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    assert loaded.memory_budget is not model.memory_budget and loaded.memory_budget.asked.text == "70%"
    assert is_same(steps(loaded, loaded)[0], steps(model, model)[0])
    assert loaded.memory_budget.peaks


def test_a_torch_compile_around_it_leaves_its_plans_alone():
    """Inlined, its graph would be compiled without one."""
    inner = reprise.compile(Language(), memory_budget="70%", **EAGER)
    outer = torch.compile(lambda words: inner(words) * 2, backend="aot_eager")
    steps(outer, inner)
    (report,) = inner.memory_budget.report()
    assert inner.memory_budget.peaks and report.predicted_peak <= 0.7 * report.default_peak


def test_a_torch_compile_around_a_planned_function_leaves_its_plan_alone():
    model = Gelus()

    def planned(x):
        return F.gelu(model(x))

    call = reprise.compile(planned, memory_budget="8GiB", **EAGER)
    torch.compile(lambda x: call(x) * 2, backend="aot_eager")(torch.ones(256, 32)).sum().backward()
    assert any(each.graph.endswith("planned") for each in reprise.compiled.report())


def test_a_loss_that_is_kept_without_a_backward_holds_its_step_open_for_so_many_others():
    """Such as that of a validation, or what a policy said before it was trained."""
    model = reprise.compile(Gelus(), memory_budget="+20KB", **EAGER)
    kept = model(torch.ones(4, 32)).sum()
    with pytest.raises(reprise.BudgetError, match="needs at least"):
        for _ in range(_MOST_LATER + 3):
            model(torch.ones(1024, 32)).sum().backward()
    del kept


def test_a_backward_that_comes_after_many_others_ends_its_step():
    """As in adversarial training, where those others look for the worst input."""
    model = reprise.compile(Gelus(), memory_budget="8GiB", **EAGER)
    x = torch.ones(256, 32)
    for number in range(2):
        clean = model(x).sum()
        for _ in range(_MOST_LATER - 1):
            model(x).sum().backward()
        assert len(model.memory_budget.peaks) == number
        (clean + model(x).sum()).backward()
        assert len(model.memory_budget.peaks) == number + 1


def test_networks_of_one_class_that_alternate_have_whole_steps():
    with reprise.compiled.budget("8GiB") as limits:
        maker, judge = (torch.compile(Gelus(), **EAGER) for _ in range(2))
        for number in range(3):
            made = maker(torch.ones(256, 32))
            (judge(torch.ones(256, 32)) + judge(made.detach())).sum().backward()
            judge(made).sum().backward()
            assert len(limits.peaks) == number + 1


@torch.library.custom_op("reprise_tests::count_up", mutates_args=("total",))
def count_up(x: torch.Tensor, total: torch.Tensor) -> None:
    total.add_(x.mean())


@torch.library.custom_op("reprise_tests::sine", mutates_args=())
def sine(x: torch.Tensor) -> torch.Tensor:
    return x.sin()


@sine.register_fake
def _(x):
    return torch.empty_like(x)


sine.register_autograd(lambda ctx, gradient: gradient * ctx.saved_tensors[0].cos(),
                       setup_context=lambda ctx, inputs, output: ctx.save_for_backward(inputs[0]))


class Counting(Gelus):
    """Each layer reads a buffer that an operator of another library then writes."""

    def __init__(self):
        super().__init__(64)
        self.layers.append(nn.Linear(64, 64))
        self.register_buffer("total", torch.zeros(64))

    def forward(self, x):
        for layer in self.layers:
            x = F.gelu(sine(layer(x) + self.total))
            count_up(x.detach(), self.total)
        return x.square().mean()


def test_what_a_custom_operator_has_written_is_read_before_it_is_written_again():
    """Inductor has all of its results in the memory of the buffer. Without a budget it is right about these."""
    found = {}
    for name in ("eager", "70%"):
        model = Counting()
        call = model if name == "eager" else reprise.compile(model, memory_budget=name)
        torch.manual_seed(7)
        call(torch.randn(256, 64)).backward()
        if call is not model:
            (report,) = call.memory_budget.report()
            assert report.predicted_peak < report.default_peak and report.recomputed
        found[name] = [*(each.grad for each in model.parameters()), model.total]
    for one, other in zip(found["eager"], found["70%"]):
        assert torch.allclose(one, other, rtol=1e-4, atol=1e-6)


class Sampling(nn.Module):
    """Backward needs the parts of a pixel that a place is at, which are made of a sum and made again by inductor's own plan."""

    def __init__(self):
        super().__init__()
        self.turn = nn.Parameter(0.9 * torch.eye(2, 3)[None])

    def forward(self, x):
        grid = F.affine_grid(self.turn.expand(x.shape[0], 2, 3), [x.shape[0], 3, 12, 12], align_corners=False)
        return F.grid_sample(x.sin(), grid, align_corners=False).sin()


@pytest.mark.parametrize("budget", ["8GiB", "100%"])
def test_a_budget_that_binds_nothing_hands_over_what_torch_would(budget, monkeypatch):
    chosen = []
    begin = GraphPlanner.__init__

    def noted(self, joint, default, *rest):
        begin(self, joint, default, *rest)
        chosen.append(([joint.nodes[at] for at in self.default_saved], default))

    monkeypatch.setattr(GraphPlanner, "__init__", noted)
    call = reprise.compile(Sampling(), memory_budget=budget)
    call(torch.ones(4, 3, 16, 16)).sum().backward()
    ((saved, default),) = chosen
    assert set(saved) == {each for each in default if each.op == "call_function"}
    (report,) = call.memory_budget.report()
    assert report.predicted_peak == report.default_peak


@pytest.mark.parametrize("options, text", [
    ({"memory_budget": 0.6}, "memory_budget is 0.6, .* '60%'"),
    ({"mode": "default", "options": {"max_autotune": False}}, "mode='default' and options=.* one of the two"),
    ({"device": "tpu"}, "device is 'tpu'"),
    ({"device": ""}, "device is ''"),
])
def test_arguments_that_mean_nothing_are_refused(options, text):
    with pytest.raises(reprise.UsageError, match=text):
        reprise.compile(nn.Linear(2, 2), **{"memory_budget": "1GiB", **options})


def test_copies_use_up_none_of_torch_s_compilations():
    model = reprise.compile(Gelus(), memory_budget="8GiB", **EAGER)
    for _ in range(torch._dynamo.config.recompile_limit + 2):
        twin = copy.deepcopy(model)
        before = len(model.memory_budget.peaks)
        twin(torch.ones(8, 32)).sum().backward()
        assert len(model.memory_budget.peaks) == before + 1


def test_backends_that_bind_arguments_of_torch_s_min_cut_are_planned():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = Language(dropout=0.0)
        expected, _ = steps(torch.compile(model, backend="aot_eager_decomp_partition"), model)
        torch._dynamo.reset()
        call = reprise.compile(model, memory_budget="80%", backend="aot_eager_decomp_partition")
        found, _ = steps(call, model, count=2)
    assert is_same(found, expected)
    assert all(each.predicted_peak < each.default_peak for each in call.memory_budget.report())


@pytest.mark.parametrize("retain_graph", [False, True])
def test_a_backward_is_of_its_own_call(monkeypatch, retain_graph):
    places = []
    monkeypatch.setattr(Call, "measure", lambda self, *_: places.append(self.place))
    call = reprise.compile(nn.Linear(8, 8), memory_budget="100%", backend="aot_eager")
    one, other = call(torch.ones(4, 8)), call(torch.ones(4, 8))
    loss = one.sum()
    loss.backward(retain_graph=retain_graph)
    if retain_graph:
        loss.backward()
    other.sum().backward()
    assert places == [0, 1] and len(call.memory_budget.peaks) == 1


@torch.library.custom_op("reprise_use::twice", mutates_args=())
def twice(x: torch.Tensor) -> torch.Tensor:
    return 2 * x


twice.register_fake(torch.empty_like)
twice.register_autograd(lambda context, gradient: 2 * gradient)


class Custom(nn.Module):
    def forward(self, x, weight):
        for _ in range(3):
            x = twice(x @ weight).sigmoid().square()
        return x.mean()


def test_what_is_computed_of_a_custom_operator_s_result_may_run_again():
    x, weight = torch.randn(64, 64), torch.randn(64, 64, requires_grad=True)
    call = reprise.compile(Custom(), memory_budget="64GiB")
    call(x, weight).backward()
    (report,) = call.memory_budget.report()
    assert report.recomputed, "the compiler's own plan runs sigmoids again"


class WithOperator(Gelus):
    def __init__(self, operator):
        super().__init__()
        self.operator = operator

    def forward(self, x):
        x = super().forward(x)
        return super().forward(x + self.operator(x))


@pytest.mark.parametrize("operator", [
    lambda x: torch.frexp(x.sin())[0],
    lambda x: torch.diagonal_scatter(x.view(8, 4, 32).exp(), x[:8, :4] * 2, 0, 1, 2).view(32, 32)], ids=["frexp", "diagonal_scatter"])
def test_operators_of_several_results_or_that_write_a_part_are_planned(operator):
    model, x = WithOperator(operator), torch.randn(32, 32)
    found = []
    for compile in (torch.compile, lambda model: reprise.compile(model, memory_budget="90%")):
        torch._dynamo.reset()
        model.zero_grad()
        compile(model)(x).sum().backward()
        found.append([each.grad.clone() for each in model.parameters()])
    assert is_same(*found)


class Filled(nn.Module):
    """Zeros that gradients go through are constants in the graph."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.weight = nn.Parameter(torch.randn(64, 64) / 8)
        self.mask = torch.rand(5, 5) < 0.5

    def layer(self, x):
        return F.gelu(x @ self.weight)

    def forward(self, x, into, value):
        x = self.layer(self.layer(self.layer(x)))
        into, value = (each + F.pad(x.flatten()[:each.numel()] * 0, (0, 0)).view(each.shape) for each in (into, value))
        filled = torch.masked_fill(into, self.mask, value)
        x = self.layer(x + F.pad(filled.flatten(), (0, 2023)).view(32, 64).tanh())
        return self.layer(self.layer(self.layer(x))).square().sum()


def test_planning_lays_out_constants_as_the_code_that_runs():
    model, x = Filled(), torch.randn(32, 64)
    found = []
    for compile in (torch.compile, lambda model: reprise.compile(model, memory_budget="75%")):
        torch._dynamo.reset()
        inputs = [torch.ones(5, 5, requires_grad=True), torch.tensor(0.3, requires_grad=True)]
        loss = compile(model)(x, *inputs)
        found.append([loss.detach(), *torch.autograd.grad(loss, [model.weight, *inputs])])
    assert is_same(*found)


class Pools(nn.Module):
    """Backward of such windows, which do not overlap, adds up nothing."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.one, self.two = nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 32, 3, padding=1)
        self.norms = nn.ModuleList([nn.BatchNorm2d(16), nn.BatchNorm2d(32)])
        self.line = nn.Linear(32 * 16, 8)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.norms[0](self.one(x))), 2)
        x = F.max_pool2d(F.relu(self.norms[1](self.two(x))), 2)
        return self.line(x.flatten(1))


def test_calls_of_a_network_that_pools_hand_over_little():
    images = [torch.linspace(-k, 1, 8 * 3 * 16 * 16).view(8, 3, 16, 16) for k in range(1, 4)]

    def trained(compile):
        torch._dynamo.reset()
        model = Pools()
        call = compile(model)
        for _ in range(2):
            with reprise.PeakScope() as scope:
                loss = sum(call(x).square().mean() for x in images)
                found = torch.autograd.grad(loss, list(model.parameters()))
        return found, scope.peak_above_start

    expected, default = trained(torch.compile)
    found, peak = trained(lambda model: reprise.compile(model, memory_budget=f"+{default * 4 // 5}"))
    assert is_same(found, expected) and peak <= default * 4 // 5
