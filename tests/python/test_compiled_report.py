"""What reports of compiled graphs say of plans, and of the calls that followed."""

import re

import pytest
import torch

import reprise
import test_compiled
from reprise.compiled import _graph
from test_compiled import Language, batch, fresh, steps  # noqa: F401


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_a_report_has_what_was_planned_beside_what_was_measured(backend):
    model = Language()
    call = reprise.compile(model, memory_budget="70%", backend=backend)
    steps(call, model)
    (report,) = call.memory_budget.report()
    assert report.measured_peak == pytest.approx(report.predicted_peak, rel=0.01)
    assert report.predicted_seconds > report.recompute_seconds > 0 and report.measured_seconds > 0
    assert sum(report.kept.values()) == report.handed_over
    assert sum(report.recomputed_lines.values()) == sum(report.recomputed.values())
    assert any(re.fullmatch(re.escape(test_compiled.__file__) + r":\d+", line) for line in report.recomputed_lines)


def test_a_report_measures_calls_in_which_nothing_is_compiled():
    model = Language(breaks=True)
    call = reprise.compile(model, memory_budget="70%", backend="aot_eager")
    words = batch()
    call(words).backward()
    first, second = call.memory_budget.report()
    # The other half or the other graph was compiled meanwhile.
    assert all(each.measured_peak is None and each.measured_seconds is None for each in (first, second))
    for _ in range(2):
        call(words).backward()
    reports = call.memory_budget.report()
    assert all(each.measured_peak > 0 for each in reports)
    with torch.no_grad():
        call(words)
    call(words)  # without a backward
    assert call.memory_budget.report() == reports


def test_nothing_is_timed_where_the_default_fits():
    model = Language()
    call = reprise.compile(model, memory_budget="8GiB", backend="aot_eager")
    steps(call, model)
    (report,) = call.memory_budget.report()
    assert report.predicted_seconds is None and report.measured_seconds > 0 and not report.recomputed_lines


def test_a_backward_that_fails_is_not_what_a_call_took():
    model = Language()
    call = reprise.compile(model, memory_budget="70%", backend="aot_eager")
    steps(call, model)
    (report,) = call.memory_budget.report()
    loss = call(batch())

    def fail(*_):
        raise RuntimeError("stop")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_graph.Call, "measure", fail)
        with pytest.raises(RuntimeError, match="stop"):
            loss.backward()
    assert call.memory_budget.report() == [report]
    model.zero_grad()
    steps(call, model)
    (after,) = call.memory_budget.report()
    assert after.measured_peak == pytest.approx(report.measured_peak, rel=0.01)
