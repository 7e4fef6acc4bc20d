"""Chains of modules that are measured before they run: each module is called as the plain chain calls it."""

import dataclasses
import functools
import types

import pytest
import torch
from torch import nn

import reprise
from reprise._layers import _token


class Mean(nn.Module):
    """Each forward gives its buffers new tensors."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(16))
        self.register_buffer("calls", torch.tensor(0))

    def forward(self, x):
        if self.training:
            self.calls = self.calls + 1
            self.mean = 0.9 * self.mean + 0.1 * x.detach().mean(0)
        return x - self.mean


class Rotary(nn.Module):
    """Its buffer grows with what comes in, and an attribute remembers how far."""

    def __init__(self):
        super().__init__()
        self.rows = 4
        self.register_buffer("table", torch.ones(4, 1))
        self.register_buffer("scale", None)
        self.is_ready = False

    def forward(self, x):
        if len(x) > self.rows:
            self.rows = len(x)
            self.table = torch.linspace(0, 1, self.rows)[:, None]
        if not self.is_ready:
            self.is_ready = True
            self.scale = torch.full((16,), 2.0)
            self.register_buffer("shift", torch.full((16,), 0.5), persistent=False)
        return x * self.table[: len(x)] * self.scale + self.shift


def with_a_growing_buffer():
    return nn.Sequential(nn.Linear(16, 16), Rotary(), nn.Linear(16, 16), nn.Tanh())


def with_a_module_twice():
    act = nn.Tanh()
    return nn.Sequential(nn.Linear(16, 16), act, nn.Linear(16, 16), act)


def with_new_buffers():
    return nn.Sequential(nn.Linear(16, 16), Mean(), nn.Linear(16, 16), Mean())


def with_sparse_gradients():
    return nn.Sequential(nn.Embedding(32, 16, sparse=True), nn.Linear(16, 16), nn.GELU(), nn.Linear(16, 16))


def step(model, run, x):
    """Loss, gradients and buffers."""
    loss = run(x).square().mean()
    loss.backward()
    gradients = [each.grad.to_dense() if each.grad.is_sparse else each.grad for each in model.parameters()]
    return [loss.detach(), *gradients, *model.buffers()]


def made(build):
    torch.manual_seed(4)
    model = build()
    x = torch.arange(64) % 32 if build is with_sparse_gradients else torch.randn(64, 16)
    return model, x


def plain(build):
    model, x = made(build)
    return step(model, model, x)


def is_same(found, expected):
    return len(found) == len(expected) and all(map(torch.equal, found, expected))


BUILDS = [with_a_module_twice, with_new_buffers, with_a_growing_buffer, with_sparse_gradients]


@pytest.mark.parametrize("build", BUILDS)
def test_a_chain_within_bytes_is_the_plain_chain(build):
    model, x = made(build)
    assert is_same(step(model, lambda x: reprise.checkpoint_sequential(model, "400MB", x), x), plain(build))


def test_segments_call_a_module_as_often_as_it_is_there():
    model, x = made(with_a_module_twice)
    found = step(model, lambda x: reprise.checkpoint_sequential(model, 2, x, use_reentrant=False), x)
    assert is_same(found, plain(with_a_module_twice))


@pytest.mark.parametrize("build", BUILDS)
def test_a_chain_that_was_profiled_is_as_before_and_runs_by_its_schedule(build):
    model, x = made(build)
    before = [(dict(vars(each)), dict(each._buffers)) for each in model.modules()]
    chain = reprise.profile_chain(model, x, repetitions=2)
    assert all(vars(each).keys() == attributes.keys() and each._buffers.keys() == buffers.keys()
               and all(each._buffers[name] is buffers[name] for name in buffers)
               for each, (attributes, buffers) in zip(model.modules(), before))
    assert sum(stage.layers for stage in chain.stages) == 4
    schedule = reprise.planners.every_stage(chain)
    found = step(model, lambda x: reprise.checkpoint_sequential(model, schedule, x), x)
    expected = plain(build)
    if build is with_new_buffers:  # a region runs its function again, which counts twice, as with torch
        found, expected = found[:5], expected[:5]
    assert is_same(found, expected)


@pytest.mark.parametrize("build", BUILDS)
@pytest.mark.parametrize("options", [{}, {"bytes": "400MB"}])
def test_a_pipeline_of_one_micro_batch_is_the_plain_chain(build, options):
    model, x = made(build)
    pipe = reprise.Pipeline(model, balance=[2, 2], chunks=1, checkpoint="never", **options)
    assert is_same(step(model, pipe, x), plain(build))


@pytest.mark.parametrize("build", BUILDS)
def test_balances_are_of_all_layers_and_leave_the_model_as_it_was(build):
    model, x = made(build)
    for balance in (reprise.balance_by_time(model, x, 2), reprise.balance_by_bytes(model, x, 2)):
        assert len(balance) == 2 and sum(balance) == 4
    model.zero_grad()
    assert is_same(step(model, model, x), plain(build))


@dataclasses.dataclass
class Scale:  # equal to others of its kind, so that it has no hash
    by: float

    def __call__(self, x):
        return x * self.by

    def halved(self, x):
        return x * self.by / 2


@pytest.mark.parametrize("second", [
    Scale(2.0), Scale(3.0), Scale(2.0).halved, types.MethodType(functools.partial(Scale.halved), Scale(1.0))])
def test_layers_are_told_apart_by_what_they_are(second):
    first = Scale(2.0)
    assert len({id(_token(each)) for each in (first, first.halved, second)}) == 3 and _token(first.halved) is _token(first.halved)
    x = torch.randn(64, 16, requires_grad=True)
    for layers in ([first, torch.sin], [second, torch.sin], [first.halved, second]):
        expected = x
        for layer in layers:
            expected = layer(expected)
        y = reprise.checkpoint_sequential(layers, "400MB", x)
        assert torch.equal(y, expected)
        assert torch.equal(*(torch.autograd.grad(each.sum(), x)[0] for each in (y, expected)))
