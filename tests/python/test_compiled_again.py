"""Operators of forward that backward runs any number of times, and layers that a model uses as often."""

import bisect
import random

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import reprise
from reprise.compiled._again import Cut, repeating
from reprise.compiled._budget import PlannedGraph
from reprise.compiled._step import Step
from conftest import long
from test_compiled import fresh, is_same, steps  # noqa: F401


def mixed(x, w, v):
    """Views, operators with several results, and some that need no gradient and stand among those of backward."""
    a = F.layer_norm(x @ w, (8,), v)
    q, k = (a.sin() @ w).relu().split(4, 1)
    c = torch.cat([q.exp(), k.tanh()], 1) @ w
    values, _ = torch.sort(c, 1)
    d = (values.cos() * a.tanh()) @ w
    most, _ = torch.max(d * c, 1)
    e = F.scaled_dot_product_attention(*(each[None, None] for each in (d, c, a)))[0, 0] + most[:, None]
    return ((e @ w).sin() * d.tanh() * a).sum()


def random_cut(joint, draw):
    """Of any operators, each run up to three times: what is read before it has run again is handed over."""
    step = Step(joint)
    forward, backward = ([at for at, _ in part] for part in (step.operators[:step.half], step.operators[step.half:]))
    runs = {}
    for at in forward:
        if not any(joint.is_once(each) or each in joint.must_keep or each in joint.outputs_in_backward(step._others)
                   for each in joint.items(at) or (at,)):
            runs[at] = tuple(sorted(draw.sample([-1, *backward], draw.choice([0, 1, 1, 2, 3]))))
    runs = {at: slots for at, slots in runs.items() if slots}
    kept = {each for at in forward for each in joint.items(at) or (at,) if at not in runs or draw.random() < 0.2}
    for at in (*backward, *runs):
        for slot in runs.get(at, (at,)):
            kept |= {each for each in step._memory.sources[at] if bisect.bisect_right(runs.get(joint.operator_of(each), ()), slot) == 0}
    return Cut(joint.saved_for(kept, runs), runs)


@pytest.mark.parametrize("backend, count", [("aot_eager", 12), pytest.param("inductor", 1, marks=long)])
def test_gradients_are_the_same_however_often_operators_run(monkeypatch, backend, count):
    choose, draw = PlannedGraph.choose, random.Random(7)
    repeats = []

    def choose_at_random(graph, joint, default):
        choose(graph, joint, default)
        cut = random_cut(joint, draw)
        assert Cut.read(cut.written()) == cut and cut.fits(joint)
        before = str(joint.module.graph)
        with repeating(joint, cut):
            repeats.append(str(joint.module.graph) != before)
        assert str(joint.module.graph) == before
        return cut

    def gradients(compile):
        torch._dynamo.reset()
        torch.manual_seed(0)
        leaves = [torch.randn(size, requires_grad=True) for size in ((8, 8), (8, 8), (8,))]
        compile(mixed)(*leaves).backward()
        return [each.grad for each in leaves]

    expected = gradients(lambda step: torch.compile(step, backend=backend))
    monkeypatch.setattr(PlannedGraph, "choose", choose_at_random)
    for _ in range(count):
        with reprise.compiled.budget("1GiB"):
            found = gradients(lambda step: torch.compile(step, backend=backend))
        if backend == "aot_eager":
            assert all(map(torch.equal, found, expected))
        else:  # a sum may be in another loop
            torch.testing.assert_close(found, expected)
    assert len(repeats) == count and all(repeats)


def test_a_cut_of_another_graph_does_not_fit(monkeypatch):
    choose, fits = PlannedGraph.choose, []

    def look(graph, joint, default):
        chosen = choose(graph, joint, default)
        (once,) = (at for at, node in enumerate(joint.nodes) if node.target is torch.ops.aten.native_dropout.default)
        wrong = (Cut(chosen.saved, {10**6: (0,)}), Cut(chosen.saved, {once: (-1,)}), Cut(chosen.saved, {joint.tangents[0]: (-1,)}),
                 Cut([*chosen.saved, 10**6]), Cut(chosen.saved[1:]))
        fits.extend(each.fits(joint) for each in (chosen, *wrong))
        return chosen

    monkeypatch.setattr(PlannedGraph, "choose", look)
    x = torch.ones(8, 8, requires_grad=True)
    reprise.compile(lambda x: F.dropout(x.sin(), 0.5).exp(), memory_budget="1GiB", backend="aot_eager")(x).sum().backward()
    assert fits == [True, False, False, False, False, False]


class UsedAgain(nn.Module):
    """One layer, many times."""

    def __init__(self, layer, size):
        super().__init__()
        self.layer, self.x = layer, torch.linspace(-1, 1, 32 * 128).sin().view(size)

    def forward(self, _):
        x = self.x
        for _ in range(8):
            x = x + F.gelu(self.layer(x))
        return x.square().mean()


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell, self.x = nn.LSTMCell(32, 32), torch.linspace(-1, 1, 12 * 64 * 32).sin().view(12, 64, 32)

    def forward(self, _):
        state, loss = None, 0
        for each in self.x:
            state = self.cell(each, state)
            loss = loss + state[0].square().mean()
        return loss


def of_linear_layers():
    return UsedAgain(nn.Sequential(nn.LayerNorm(128), nn.Linear(128, 128)), (32, 128))


def of_convolutions():
    return UsedAgain(nn.Sequential(nn.GroupNorm(2, 16), nn.Conv2d(16, 16, 3, padding=1)), (4, 16, 8, 8))


@pytest.mark.parametrize("make, share", [(of_linear_layers, 60), (of_convolutions, 60), (Recurrent, 65)])
def test_parts_of_a_gradient_are_added_up_one_by_one(make, share):
    """torch.compile adds up the parts of a norm's or a bias's gradient in one loop, and holds what they are made of until then."""
    torch.manual_seed(2)
    model = make()
    expected, default = steps(torch.compile(model, dynamic=False), model)
    torch._dynamo.reset()
    found, peak = steps(reprise.compile(model, memory_budget=f"{share}%"), model)
    assert is_same(found, expected)
    assert peak <= share / 100 * default
