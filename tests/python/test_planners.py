"""Chains are measured, planned within bytes, and run by the plan: gradients are bitwise the plain chain's."""

import pytest
import torch
from torch import nn

import reprise
from reprise import planners
from test_written_stores import Copies


def chain_of(stages, output=1000, saved=3000):
    text = ", ".join(
        f'{{"name": "s{i}", "forward_seconds": 1, "backward_seconds": 2, "output_bytes": {output}, "saved_bytes": {saved}}}'
        for i in range(stages))
    return reprise.Chain.parse(f'{{"format": "reprise chain", "version": 1, "stages": [{text}]}}')


@pytest.fixture(scope="module")
def chain():
    return chain_of(8)


class Model:
    def __init__(self):
        torch.manual_seed(3)
        self.layers = nn.Sequential(*[
            nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Dropout(0.2)) for _ in range(6)])
        self.x = torch.randn(256, 64, requires_grad=True)
        self.expected = self.gradients(lambda: self.layers(self.x))

    def gradients(self, run):
        torch.manual_seed(1)
        loss = run().square().sum()
        return loss.item(), torch.autograd.grad(loss, [self.x, *self.layers.parameters()])

    def is_same(self, found):
        return found[0] == self.expected[0] and all(map(torch.equal, found[1], self.expected[1]))


def test_a_chain_and_a_schedule_give_their_figures_and_their_json_again(chain, tmp_path):
    file = tmp_path / "chain.json"
    file.write_text(chain.json())
    assert reprise.Chain.read(file) == chain and chain != chain_of(7)
    assert (chain.forward, chain.backward, len(chain.stages)) == (8.0, 16.0, 8)
    assert (chain.stages[2].name, chain.stages[2].saved, chain.stages[2].needs_input) == ("s2", 3000, True)
    plain = planners.keep_all(chain)
    assert plain.steps[:2] == [("keep", 0), ("keep", 1)] and plain.steps[-1] == ("backward", 0)
    assert reprise.Schedule.parse(plain.json()) == plain == reprise.Schedule(plain.steps, plain.layers)
    assert planners.picture(chain, plain).count("K") >= 8 and planners.picture_svg(chain, plain).startswith("<svg")
    with pytest.raises(reprise.UsageError, match="the operation is 'run'; it is keep"):
        reprise.Schedule([("run", 0)])
    with pytest.raises(reprise.UsageError, match="mine:1: "):
        reprise.Chain.parse("{", "mine")


@pytest.mark.parametrize("plan", [
    planners.every_stage, planners.sqrt, planners.revolve, planners.rotor, lambda chain: planners.uniform(chain, 2)])
def test_a_planner_s_schedule_is_valid_and_costs_what_it_recomputes(chain, plan):
    cost = planners.evaluate(chain, plan(chain))
    assert cost.time == chain.forward + chain.backward + cost.recompute and cost.peak > 0
    assert "<caption>ScheduleCost</caption>" in cost._repr_html_()


def test_rotor_is_the_fastest_within_a_budget_and_names_the_least(chain):
    plain = planners.evaluate(chain, planners.keep_all(chain))
    cost = planners.evaluate(chain, planners.rotor(chain, plain.peak // 2))
    assert cost.peak <= plain.peak // 2 and 0 < cost.recompute < chain.forward
    solved = planners.Rotor(chain, plain.peak)
    assert planners.evaluate(chain, solved.plan(plain.peak // 2)) is not None
    with pytest.raises(reprise.BudgetError, match="least|at least"):
        planners.rotor(chain, solved.least // 2)
    stored = planners.rotor(chain, plain.peak // 2, store_rate=1e6)
    assert planners.evaluate(chain, stored, store_rate=1e6).time < cost.time
    with pytest.raises(reprise.PlanError, match="store"):
        planners.evaluate(chain, stored)
    with pytest.raises(reprise.UsageError, match="segments"):
        planners.uniform(chain, 9)


def test_a_frontier_gets_no_slower_with_more_bytes(chain):
    found = planners.frontier(chain)
    assert len(found.budgets) == 10 and found.slowdowns[-1] == 1.0
    assert found.slowdowns == sorted(found.slowdowns, reverse=True)
    assert all(peak <= budget for budget, peak in zip(found.budgets, found.peaks))
    shown = found._repr_html_()
    assert shown.count("<tr>") == 11 and "<polyline" in shown
    assert planners.frontier(chain, [10]).slowdowns == [float("inf")]


def test_a_frontier_of_a_recorded_step():
    found = planners.frontier(
        reprise.estimate(nn.Sequential(*[nn.Linear(32, 32), nn.Tanh()] * 3), torch.randn(64, 32)).trace, moves=200)
    assert found.slowdowns[-1] == 1.0 and all(peak <= budget for budget, peak in zip(found.budgets, found.peaks))


@pytest.mark.parametrize("share", [0.4, 0.7])
def test_a_profiled_chain_runs_by_its_plan_with_the_plain_gradients(share):
    model = Model()
    before = torch.get_rng_state()
    chain = reprise.profile_chain(model.layers, model.x, repetitions=1)
    assert torch.equal(torch.get_rng_state(), before)
    assert [stage.name for stage in chain.stages] == ["Sequential"] * 6 and chain.stages[0].output == 256 * 64 * 4
    assert all(parameter.grad is None for parameter in model.layers.parameters())
    plain = planners.evaluate(chain, planners.keep_all(chain)).peak
    least = planners.Rotor(chain).least
    schedule = planners.rotor(chain, int(least + share * (plain - least)))
    assert any(operation == "checkpoint" for operation, _ in schedule.steps)
    assert model.is_same(model.gradients(lambda: reprise.checkpoint_sequential(model.layers, schedule, model.x)))


def test_a_schedule_with_offloads_takes_a_store(tmp_path):
    model = Model()
    chain = reprise.profile_chain(model.layers, model.x, repetitions=1)
    schedule = planners.rotor(chain, planners.Rotor(chain, store_rate=1e15).least, store_rate=1e15)
    assert any(operation == "offload" for operation, _ in schedule.steps)
    for store in reprise.disk_store(tmp_path, in_flight=0), Copies():
        run = lambda: reprise.checkpoint_sequential(model.layers, schedule, model.x, store=store)  # noqa: E731, B023
        assert model.is_same(model.gradients(run)) and store.statistics().read == store.statistics().written > 0
    with pytest.raises(reprise.UsageError, match="store"):
        reprise.checkpoint_sequential(model.layers, schedule, model.x)


@pytest.mark.parametrize("call, error, text", [
    (lambda model: reprise.profile_chain([], model.x), reprise.UsageError, "no layer|layer"),
    (lambda model: reprise.profile_chain(model.layers, model.x, repetitions=0), reprise.UsageError, "repetitions"),
    (lambda model: reprise.profile_chain([lambda x: (x, x)], model.x), reprise.UsageError, "returned tuple"),
    (lambda model: reprise.checkpoint_sequential(model.layers, planners.keep_all(chain_of(5)), model.x), reprise.PlanError, "5"),
    (lambda model: reprise.checkpoint_sequential(model.layers, 2, model.x, False, store=reprise.memory_store()),
     reprise.UsageError, "only a Schedule uses a store"),
    (lambda model: reprise.checkpoint_sequential(model.layers, planners.keep_all(chain_of(6)), model.x, True), ValueError,
     "with a schedule use_reentrant must be False")])
def test_what_cannot_be_profiled_or_run_is_refused(call, error, text):
    with pytest.raises(error, match=text):
        call(Model())
