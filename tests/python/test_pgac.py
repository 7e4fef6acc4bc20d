"""PGAC and influence from Python: scores are those of their formula, and masks leave gradients bitwise the same."""

import gc
import json
import weakref

import pytest
import torch
from torch import nn

import reprise


class Training:
    """A chain of six blocks, its plain steps, and the same steps through a Pgac."""

    def __init__(self):
        torch.manual_seed(3)
        self.layers = [nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Dropout(0.2), nn.Linear(64, 32)) for _ in range(6)]
        self.parameters = [parameter for layer in self.layers for parameter in layer.parameters()]
        self.inputs = torch.randn(4, 128, 32)

    def gradients(self, run, step):
        torch.manual_seed(step)
        for parameter in self.parameters:
            parameter.grad = None
        loss = run(self.inputs[step]).square().sum()
        loss.backward()
        return [loss.detach()] + [parameter.grad for parameter in self.parameters]

    def plain(self, x):
        for layer in self.layers:
            x = layer(x)
        return x

    def check(self, pgac, steps=4):
        for step in range(steps):
            expected = self.gradients(self.plain, step)
            found = self.gradients(lambda x: pgac.run(self.layers, x), step)
            assert all(map(torch.equal, expected, found))
            pgac.observe(step)


@pytest.fixture(scope="module")
def training():
    return Training()


OPTIONS = [{}, {"alpha": 0.0, "quantile": 1.0, "gamma": 2.0}, {"budget": "1GiB", "fill_budget": True},
           {"budget": "440KB", "ranking": "influence_times_cost"}, {"gamma": ("linear", 1.0, 0.5), "steps": 4, "stride": 2},
           {"budget": "440KB", "gamma": ("learned", 1.0), "steps": 4}, {"start": "zero", "hysteresis": 0.1}]


@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: "-".join(options) or "plain")
def test_gradients_are_bitwise_those_of_the_plain_step_under_every_mask(training, options):
    pgac = reprise.Pgac(**options)
    training.check(pgac)
    report = pgac.report()
    assert report.step == 3 and len(report.mask) == len(report.scores) == len(pgac.layers) == 6
    assert all(score > 0 for score in report.scores)
    assert report.routes == ["kept" if kept else "recomputed" for kept in report.mask]


def test_scores_are_those_of_the_formula(training):
    pgac, meter = reprise.Pgac(), reprise.InfluenceMeter()
    training.gradients(lambda x: pgac.run(training.layers, x), 0)
    pgac.observe(0)

    def watched(x):
        for number, layer in enumerate(training.layers):
            x = layer(x)
            x.retain_grad()
            kept.append(x)
            meter.watch(number, x)
        return x

    kept = []
    training.gradients(watched, 0)
    scores = meter.take()
    exact = [(x.grad.double() * x.detach().double()).norm().item() for x in kept]
    assert [score.layer for score in scores] == list(range(6)) and all(score.gradients == 1 for score in scores)
    assert [score.value for score in scores] == pytest.approx(exact, rel=1e-5)
    assert pgac.report().scores == [score.value for score in scores]
    assert reprise.influence_of(kept[0].grad, kept[0].detach()) == scores[0].value
    assert meter.take() == []


def test_a_mask_is_set_and_a_step_forgotten(training):
    pgac = reprise.Pgac()
    with pytest.raises(reprise.UsageError, match="run"):
        pgac.set_mask([True] * 6)
    training.check(pgac, steps=1)
    pgac.set_mask([False, True, False, True, False, True])
    expected = training.gradients(training.plain, 1)
    assert all(map(torch.equal, expected, training.gradients(lambda x: pgac.run(training.layers, x), 1)))
    assert pgac.report().mask == [False, True, False, True, False, True]
    pgac.discard_step()
    with pytest.raises(reprise.UsageError, match="5|mask"):
        pgac.set_mask([True] * 5)
    assert pgac.layers[2].first == 2 and pgac.layers[2].count == 1


def test_a_training_is_resumed_with_its_averages(training):
    pgac = reprise.Pgac(quantile=0.3)
    training.check(pgac, steps=2)
    again = reprise.Pgac(quantile=0.3)
    again.restore(pgac.state())
    for each in pgac, again:
        training.gradients(lambda x: each.run(training.layers, x), 2)
        each.observe(2)
    assert again.report().averages == pgac.report().averages and again.report().wanted == pgac.report().wanted
    with pytest.raises(reprise.UsageError, match="mine:1: "):
        again.restore("{", "mine")


def test_averages_of_several_processes_are_combined(training):
    seen = []

    def combine(averages):
        seen.append(averages)
        return [float(number) for number in range(6)]

    pgac = reprise.Pgac(combine=combine)
    training.check(pgac, steps=1)
    assert len(seen) == 1 and len(seen[0]) == 6 and pgac.report().threshold == 2.5
    assert pgac.report().wanted == [False] * 3 + [True] * 3


def test_the_lossy_tier_audits_before_it_changes_anything(training):
    pgac = reprise.Pgac(lossy=reprise.LossyOptions(gradient_error=0.05, min_bytes="1KiB", audit_every=1))
    training.check(pgac)
    report = pgac.report()
    assert report.audits > 0 and report.compressed_to == 0 and "gradient_error=0.05" in repr(
        reprise.LossyOptions(gradient_error=0.05))
    json.loads(pgac.state())


def test_a_layer_s_exception_is_python_s_own_and_the_training_goes_on(training):
    class Fails(nn.Module):
        fails = True

        def forward(self, x):
            if self.fails:
                raise KeyError("mine")
            return x * 2

    pgac, layer = reprise.Pgac(), Fails()
    layers = [*training.layers, layer]
    with pytest.raises(KeyError, match="mine"):
        pgac.run(layers, training.inputs[0])
    layer.fails = False
    pgac.run(layers, training.inputs[0]).sum().backward()
    pgac.observe(0)
    assert len(pgac.report().scores) == 7


@pytest.mark.parametrize("options, error, text", [
    ({"alpha": 1.0}, reprise.UsageError, "alpha"), ({"quantile": 2.0}, reprise.UsageError, "quantile"),
    ({"ranking": "best"}, reprise.UsageError, "ranking is 'best'; it is one of 'influence', 'cost'"),
    ({"gamma": ("linear",)}, reprise.UsageError, "give a number, or a tuple"),
    ({"gamma": ("square", 1.0)}, reprise.UsageError, "'square'"), ({"budget": "-1MB"}, reprise.UsageError, "budget"),
    ({"budgets": 1}, TypeError, "unexpected keyword argument 'budgets'")])
def test_options_out_of_range_are_refused(options, error, text):
    with pytest.raises(error, match=text):
        reprise.Pgac(**options)


def test_layers_are_given_to_run():
    with pytest.raises(reprise.UsageError, match="the layers to run"):
        reprise.Pgac([torch.nn.Linear(2, 2)])


def test_a_budget_that_no_mask_fits_names_the_least(training):
    with pytest.raises(reprise.BudgetError, match="least|at least"):
        reprise.Pgac(budget=1000).run(training.layers, training.inputs[0]).sum().backward()
        training.check(reprise.Pgac(budget=1000))


def test_modules_and_a_combining_function_die_without_the_collector():
    gc.disable()
    try:
        layers = [nn.Linear(16, 16) for _ in range(3)]

        def combine(averages):
            return averages

        pgac = reprise.Pgac(combine=combine)
        for step in range(2):
            pgac.run(layers, torch.randn(8, 16)).sum().backward()
            pgac.observe(step)
        gone = weakref.ref(layers[0]), weakref.ref(combine)
        del layers, pgac, combine
        assert [each() for each in gone] == [None, None]
    finally:
        gc.enable()
