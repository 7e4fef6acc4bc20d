"""Planners: what a training step keeps and what it recomputes, so that it fits in a number of bytes.

    chain = reprise.profile_chain(model, x)
    schedule = reprise.planners.rotor(chain, "400MB")
    y = reprise.checkpoint_sequential(model, schedule, x)

    plan = reprise.planners.hindsight(trace, "4GB")
    plan.slowdown, plan.bound       # 1.075, and no plan is below 1.071

Planners for chains (reprise.Chain) decide for each stage, and planners for recorded steps (reprise.StepTrace) for each
operator. `budget` is an int of bytes or a str; for a chain it may be left out, for no limit, and counts activations,
temporaries and gradients, but neither the chain's input nor parameters. A planner for chains raises BudgetError, with the
least bytes that it can plan for, if each of its schedules needs more. Any thread may plan, and others run meanwhile.
"""

from __future__ import annotations

import dataclasses
import html
from typing import SupportsIndex

from ._reprise import (
    BudgetError, Chain, Rotor, StepPlan, StepTrace, evaluate, every_stage, format_bytes, has_ilp, hindsight, ilp, keep_all,
    parse_bytes, picture, picture_svg, revolve, rotor, sqrt, uniform)

__all__ = [
    "Frontier", "Rotor", "StepPlan", "evaluate", "every_stage", "frontier", "has_ilp", "hindsight", "ilp", "keep_all", "picture",
    "picture_svg", "revolve", "rotor", "sqrt", "uniform",
]


@dataclasses.dataclass(frozen=True)
class Frontier:
    """Time of a step against its bytes: lists with an entry for each budget, from the smallest on.

    budgets: bytes.
    peaks: bytes that the plan takes; 0 where nothing was found.
    slowdowns: the step's time with recomputation divided by the time without; infinite where nothing was found.
    """

    budgets: list[int]
    peaks: list[int]
    slowdowns: list[float]

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><td>{html.escape(format_bytes(budget))}</td><td>{html.escape(format_bytes(peak))}</td>"
            f"<td>{slowdown:.3f}</td></tr>"
            for budget, peak, slowdown in zip(self.budgets, self.peaks, self.slowdowns))
        return (f"<table><caption>Frontier</caption><tr><th>budget</th><th>peak</th><th>slowdown</th></tr>{rows}</table>"
                + self._picture())

    def _picture(self) -> str:
        """The points that fit, as an SVG of 320 by 160."""
        points = [(budget, slowdown) for budget, slowdown in zip(self.budgets, self.slowdowns) if slowdown < float("inf")]
        if len(points) < 2:
            return ""
        low, high, most = points[0][0], points[-1][0], max(slowdown for _, slowdown in points)
        places = " ".join(
            f"{10 + 300 * (budget - low) / max(high - low, 1):.1f},{150 - 140 * (slowdown - 1) / max(most - 1, 1e-9):.1f}"
            for budget, slowdown in points)
        return (f'<svg width="320" height="160" role="img"><polyline points="{places}" fill="none" stroke="currentColor"/>'
                "</svg>")


def frontier(
    step: Chain | StepTrace, budgets: list[str | SupportsIndex] | None = None, *, time_limit: float = 1.0, moves: int = 0
) -> Frontier:
    """The least time of a step in each of several budgets: by rotor() for a chain, by hindsight() for a trace.

    budgets: ints of bytes, or texts; None: ten from the least on to the plain step's peak.
    time_limit, moves: of hindsight()'s search for each budget; a chain is solved once and needs neither.

    Raises UsageError for budgets that are none.
    """
    if isinstance(step, Chain):
        return _of_chain(step, budgets)
    asked = _bytes_of(budgets, step.floor, step.plain_peak)
    plans = [hindsight(step, budget, time_limit=time_limit, moves=moves) for budget in asked]
    return Frontier(asked, [plan.peak if plan.fits else 0 for plan in plans],
                    [plan.slowdown if plan.fits else float("inf") for plan in plans])


def _of_chain(chain: Chain, budgets: list[str | SupportsIndex] | None) -> Frontier:
    plain = evaluate(chain, keep_all(chain))
    solved = Rotor(chain, plain.peak)
    asked = _bytes_of(budgets, solved.least, plain.peak)
    peaks, slowdowns = [], []
    for budget in asked:
        try:
            cost = evaluate(chain, solved.plan(budget))
            peaks.append(cost.peak)
            slowdowns.append(cost.time / plain.time)
        except BudgetError:
            peaks.append(0)
            slowdowns.append(float("inf"))
    return Frontier(asked, peaks, slowdowns)


def _bytes_of(budgets: list[str | SupportsIndex] | None, least: int, most: int) -> list[int]:
    if budgets is None:
        return [least + (most - least) * part // 9 for part in range(10)]
    return sorted(parse_bytes(budget) if isinstance(budget, str) else budget.__index__() for budget in budgets)
