"""Budgets for compiled models in 16 bits. inductor computes in 32 bits and rounds where it stores, so what a plan stores
changes last bits, as it does with torch's own budgets."""

import torch

import reprise
from conftest import long
from test_compiled import Language, fresh, is_same, steps  # noqa: F401


def autocast(model):
    def call(words):
        with torch.autocast("cpu", torch.bfloat16):
            return model(words)
    return call


def test_operators_as_they_are_make_the_bits_of_the_default():
    model = Language(layers=2)
    expected, peak = steps(autocast(torch.compile(model, backend="aot_eager")), model)
    torch._dynamo.reset()
    found, within = steps(autocast(reprise.compile(model, memory_budget="70%", backend="aot_eager")), model, 3)
    assert is_same(found[:len(expected)], expected) and within <= 0.7 * peak


@long
def test_merged_loops_are_as_near_to_32_bits_as_the_default():
    model = Language(layers=1, dropout=0.0)
    exact, _ = steps(model, model, 1)
    default, peak = steps(autocast(torch.compile(model)), model, 1)
    torch._dynamo.reset()
    found, within = steps(autocast(reprise.compile(model, memory_budget="85%")), model, 3)
    found = found[-len(default):]

    def error(values):
        return sum(torch.linalg.vector_norm(one - other) for one, other in zip(values[1:], exact[1:]))
    assert within <= 0.85 * peak and any(each.recomputed for each in reprise.compiled.report())
    assert 0 < error(found) <= 1.1 * error(default), (error(found), error(default))
