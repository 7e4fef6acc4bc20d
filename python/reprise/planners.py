"""Planners: what a training step keeps and what it recomputes, so that it fits in a number of bytes.

    plan = reprise.planners.hindsight(trace, "4GB")
    plan.slowdown, plan.bound       # 1.075, and no plan is below 1.071

Planners for recorded steps (reprise.StepTrace) decide for each operator. Any thread may plan.
"""

from __future__ import annotations

from ._reprise import StepPlan, has_ilp, hindsight, ilp

__all__ = ["StepPlan", "has_ilp", "hindsight", "ilp"]
