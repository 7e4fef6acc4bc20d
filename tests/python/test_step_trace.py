"""Recorded steps: budgets are tried on them, and planned, without their tensors."""

import gzip
import json

import pytest

import reprise
from reprise import planners

MB = 10**6


def chain_of(length):
    """A forward chain whose values backward reads in reverse order, as JSON."""
    operators = [{"name": f"f{i}", "seconds": 1.0, "inputs": [i], "outputs": [{"bytes": MB}]} for i in range(length)]
    gradient = length
    for i in reversed(range(length)):
        operators.append({"name": f"b{i}", "seconds": 1.0, "inputs": [gradient, i], "outputs": [{"bytes": MB}]})
        gradient = len(operators)
    return json.dumps({"format": "reprise step", "version": 1, "constants": [{"bytes": MB}], "operators": operators,
                       "results": [gradient]})


@pytest.fixture(scope="module")
def trace():
    return reprise.StepTrace.parse(chain_of(12))


def test_a_trace_tells_its_figures_and_gives_its_document_again(trace):
    assert (trace.operators, trace.base, trace.constants) == (24, 24.0, MB)
    assert trace.plain_peak == 14 * MB and trace.floor == 4 * MB
    again = reprise.StepTrace.parse(trace.json())
    assert again.json() == trace.json()
    assert repr(trace) == "StepTrace(operators=24, base=24.0, plain_peak=14000000, floor=4000000, constants=1000000)"
    assert "<tr><th>plain_peak</th><td>14.0 MB</td></tr>" in trace._repr_html_()


def test_a_trace_is_read_from_a_file_and_from_bytes_plain_or_compressed(trace, tmp_path):
    file = tmp_path / "step.json.gz"
    file.write_bytes(gzip.compress(chain_of(12).encode()))
    assert reprise.StepTrace.read(file).json() == trace.json()
    assert reprise.StepTrace.parse(chain_of(12).encode()).json() == trace.json()
    with pytest.raises(reprise.UsageError, match="mine:1: "):
        reprise.StepTrace.parse("{", "mine")


def test_a_simulated_step_recomputes_more_in_fewer_bytes(trace):
    whole, half, none = trace.simulate("1GB"), trace.simulate(8 * MB, heuristic="h_up"), trace.simulate("1MB")
    assert (whole.outcome, whole.slowdown, whole.evictions, whole.peak) == ("fits", 1.0, 0, 14 * MB)
    assert half.outcome == "fits" and half.peak <= 8 * MB
    assert half.slowdown == 1 + half.recompute / trace.base and half.recomputations == half.recompute
    assert none.outcome == "out of memory"
    assert trace.simulate(6 * MB, slowdown_limit=1.01).outcome == "too slow"
    assert "<tr><th>outcome</th><td>fits</td></tr>" in half._repr_html_() and "outcome='fits'" in repr(half)


@pytest.mark.parametrize("options, text", [
    ({"budget": -1}, "-1 B"), ({"budget": 1.5}, r"simulate\(\): the budget is 1.5; give an int"), ({"heuristic": "best"}, "h_dtr"),
    ({"slowdown_limit": 0.5}, "0.5"), ({"time_limit": -1}, "-1")])
def test_options_of_a_simulation_out_of_range_are_refused(trace, options, text):
    with pytest.raises(reprise.UsageError, match=text):
        trace.simulate(**{"budget": MB, **options})


def test_a_plan_by_hindsight_fits_and_its_runs_are_those_of_its_seconds(trace):
    plan = planners.hindsight(trace, 8 * MB, moves=2000)
    assert plan.fits and plan.peak <= 8 * MB and 1 < plan.bound <= plan.slowdown == 1 + plan.recompute / trace.base
    assert len(plan.runs) == plan.recompute and all(op < before and not loads for op, before, loads in plan.runs)
    assert planners.hindsight(trace, 8 * MB, moves=2000).runs == plan.runs
    assert not planners.hindsight(trace, MB, moves=10).fits
    assert plan.slowdown <= trace.simulate(8 * MB).slowdown


def test_a_store_is_taken_where_it_is_faster_than_a_replay(trace):
    plan = planners.hindsight(trace, 8 * MB, moves=2000, store_rate=1e9)
    assert plan.transfer > 0 and any(loads for _, _, loads in plan.runs)
    assert plan.slowdown < planners.hindsight(trace, 8 * MB, moves=2000).bound


@pytest.mark.parametrize("options, text", [
    ({"time_limit": 0}, "time"), ({"moves": -1}, "-1"), ({"store_rate": -1}, "-1"), ({"budget": "8GoB"}, "GoB")])
def test_options_of_a_planner_out_of_range_are_refused(trace, options, text):
    with pytest.raises(reprise.UsageError, match=text):
        planners.hindsight(trace, **{"budget": MB, **options})


@pytest.mark.skipif(not planners.has_ilp(), reason="the build has no HiGHS")
def test_the_integer_program_is_no_worse_than_hindsight():
    trace = reprise.StepTrace.parse(chain_of(5))
    best = planners.ilp(trace, 5 * MB)
    assert best.fits and best.bound <= best.slowdown <= planners.hindsight(trace, 5 * MB, moves=2000).slowdown
