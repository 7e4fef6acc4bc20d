"""reprise.estimate(): a step's bytes before anything is allocated, of the module that is then trained."""

import contextlib
import gc
import weakref

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.checkpoint import checkpoint as torch_checkpoint

import reprise


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.wide, self.narrow = nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.register_buffer("scale", torch.ones(width))

    def forward(self, x):
        return x + self.narrow(nn.functional.gelu(self.wide(self.norm(x)))) * self.scale


class Model(nn.Module):
    def __init__(self, width=64, blocks=3, region=None):
        super().__init__()
        self.blocks = nn.ModuleList(Block(width) for _ in range(blocks))
        self.head = nn.Linear(width, 10)
        self.region = region

    def forward(self, x):
        for block in self.blocks:
            x = block(x) if self.region is None else self.region(block, x, use_reentrant=False)
        return self.head(x)


def loss_of(result):
    return result.square().mean()


def peak_of(model, x):
    """Of a step whose gradients are made anew, in bytes above nothing."""
    gc.collect()  # What earlier tests left is freed before the step, not in it.
    for _ in range(2):
        model.zero_grad()
        with reprise.PeakScope() as scope:
            loss_of(model(x)).backward()
    state = sum(tensor.nbytes for tensor in [*model.parameters(), *model.buffers(), x])
    return scope.peak_above_start + state


@pytest.mark.parametrize("region", [None, reprise.checkpoint, torch_checkpoint], ids=["plain", "reprise", "torch"])
def test_the_estimated_peak_is_the_measured_one_within_a_hundredth(region):
    model, x = Model(region=region), torch.randn(256, 64)
    found = reprise.estimate(model, x, loss=loss_of)
    assert abs(found.peak / peak_of(model, x) - 1) < 0.01
    assert (found.recomputed_flops > 0) == (region is reprise.checkpoint)


def test_the_module_and_the_generators_are_as_before_and_gradients_bitwise_the_plain_step_s():
    torch.manual_seed(0)
    model, x = Model(), torch.randn(32, 64)
    loss_of(model(x)).backward()
    expected = [parameter.grad.clone() for parameter in model.parameters()]
    before = [(tensor.data_ptr(), tensor.clone()) for tensor in [*model.parameters(), *model.buffers()]]
    generator = torch.get_rng_state()
    reprise.estimate(model, x, loss=lambda result: nn.functional.dropout(result).mean())
    assert torch.equal(torch.get_rng_state(), generator)
    for (place, value), tensor in zip(before, [*model.parameters(), *model.buffers()]):
        assert tensor.data_ptr() == place and torch.equal(tensor, value)
    assert all(map(torch.equal, expected, (parameter.grad for parameter in model.parameters())))
    model.zero_grad()
    loss_of(model(x)).backward()
    assert all(map(torch.equal, expected, (parameter.grad for parameter in model.parameters())))


def test_a_model_that_was_never_allocated_is_estimated_from_inputs_without_memory():
    with torch.device("meta"):
        model = Model(width=8192, blocks=40)
    with reprise.PeakScope() as scope:
        found = reprise.estimate(model, torch.empty(4096, 8192, device="meta"), loss=loss_of, optimizer="adamw", device="cuda")
    assert scope.peak_above_start < 1 << 20
    assert found.parameter_count == sum(parameter.numel() for parameter in model.parameters()) > 2e10
    assert found.parameters == pytest.approx(4 * found.parameter_count, rel=1e-4)
    assert found.optimizer_state == 2 * found.parameters
    assert found.peak > found.state + found.activations > 2e11


@pytest.mark.parametrize("is_under_its_mode", [False, True])
def test_fake_inputs_count_as_those_with_memory(is_under_its_mode):
    class OfDict(Model):
        def forward(self, given, *, mask):
            return super().forward(given["x"].t()) * mask

    model, x, mask = OfDict(), torch.randn(64, 256), torch.ones(256, 1)
    expected = reprise.estimate(model, {"x": x}, mask=mask, loss=loss_of)
    mode = FakeTensorMode()
    x, mask = mode.from_tensor(x), mode.from_tensor(mask)
    with mode if is_under_its_mode else contextlib.nullcontext():
        found = reprise.estimate(model, {"x": x}, mask=mask, loss=loss_of)
    assert repr(found) == repr(expected) and found.kept == expected.kept


def test_kinds_have_the_paths_of_modules_without_numbers():
    found = reprise.estimate(Model(), torch.randn(256, 64), loss=loss_of)
    kinds = dict(found.kept)
    assert kinds["blocks.wide/linear"] >= 3 * 256 * 4 * 64 * 4 and sum(kinds.values()) == found.activations
    assert "blocks/gelu" in kinds and found.kept == sorted(found.kept, key=lambda item: -item[1])
    assert reprise.current_path() == ""


def test_the_trace_of_an_estimate_is_planned():
    found = reprise.estimate(Model(blocks=6), torch.randn(256, 64), loss=loss_of)
    budget = (found.trace.floor + found.trace.plain_peak) // 2
    plan = reprise.planners.hindsight(found.trace, budget, moves=500)
    assert plan.fits and plan.peak <= budget and 1 < plan.slowdown < 2


class WithLoss:
    def __init__(self, loss):
        self.loss = loss


@pytest.mark.parametrize("forward", [
    lambda x: x.sum(), lambda x: WithLoss(x.sum()), lambda x: x], ids=["number", "loss", "tensor"])
def test_the_loss_is_found_in_what_the_module_returns(forward):
    class Short(nn.Linear):
        def forward(self, x, *, by=1):
            return forward(super().forward(x) * by)

    found = reprise.estimate(Short(8, 8), torch.randn(4, 8), by=2)
    assert found.gradients == found.parameters == (8 * 8 * 4 + 8) + (8 * 4 + 8)  # as malloc hands them out
    assert found.inputs == 4 * 8 * 4 + 8


def test_the_report_is_shown_with_its_figures():
    found = reprise.estimate(nn.Linear(250, 1000), torch.randn(4, 250), optimizer="sgd", shards=2)
    assert repr(found).startswith("Estimate(peak=") and "parameter_count=251000" in repr(found)
    assert "<tr><th>parameter_count</th><td>251000</td></tr>" in found._repr_html_()


def test_rates_are_read_and_written_and_make_the_seconds():
    slow = reprise.Machine(flops=1e6, bandwidth=1e12, overhead=0.0)
    found = reprise.estimate(nn.Linear(100, 100), torch.randn(100, 100), machine=reprise.Machine.parse(slow.json()))
    assert found.seconds == pytest.approx(found.flops / 1e6, rel=0.01)
    assert reprise.calibrate(0.05).flops > 1e6
    with pytest.raises(reprise.UsageError, match="mine:1: "):
        reprise.Machine.parse("{", "mine")
    with pytest.raises(reprise.UsageError, match="above zero|above 0"):
        reprise.calibrate(0)


class Reads(nn.Linear):
    def forward(self, x):
        return super().forward(x) if x.sum().item() > 0 else x


class Registers(nn.Linear):
    def forward(self, x):
        self.inner = nn.ParameterDict({"late": nn.Parameter(torch.ones(8))})
        return super().forward(x) * self.inner["late"]


class Fails(nn.Linear):
    def forward(self, x):
        raise KeyError("mine")


@pytest.mark.parametrize("model, options, error, text", [
    (Reads(8, 8), {}, reprise.UsageError, "the step reads a value, and tensors of an estimate have none"), (Registers(8, 8), {}, reprise.UsageError, '"inner.late"'),
    (Fails(8, 8), {}, KeyError, "mine"), (nn.LazyLinear(8), {}, reprise.UsageError, '"weight" has no shape yet'),
    (nn.Linear(8, 8), {"optimizer": "lion"}, reprise.UsageError, "'lion'; it is None, 'sgd'"),
    (nn.Linear(8, 8), {"device": "mps"}, reprise.UsageError, "the device is mps"),
    (nn.Linear(8, 8), {"shards": 0}, reprise.UsageError, "shards is 0"),
    (nn.Linear(8, 8), {"loss": lambda result: 1.0}, reprise.UsageError, "the loss is a float"),
    (nn.Linear(8, 8), {"loss": lambda result: result}, reprise.UsageError, "it gave 32 numbers"),
    (nn.Linear(8, 8), {"machine": reprise.Machine(flops=0.0)}, reprise.UsageError, "flops|rate")])
def test_what_cannot_be_estimated_is_refused_and_the_module_stays(model, options, error, text):
    before = [name for name, _ in model.named_parameters()]
    with pytest.raises(error, match=text):
        reprise.estimate(model, torch.randn(4, 8), **options)
    assert all(not parameter.is_meta for name, parameter in model.named_parameters() if name in before)
    assert reprise.current_path() == ""


def test_nothing_of_a_module_stays_alive_without_the_collector():
    gc.disable()
    try:
        model, x = Model(region=reprise.checkpoint), torch.randn(8, 64)
        found = reprise.estimate(model, x, loss=loss_of)
        gone = weakref.ref(model), weakref.ref(x)
        del model, x
        assert [each() for each in gone] == [None, None] and found.trace.operators > 0
    finally:
        gc.enable()
