"""What was planned for a graph, and what is computed again."""

from __future__ import annotations

import collections
import dataclasses
import re

from ._again import Cut
from ._call import Shown
from ._joint import Joint
from ._kinds import Kind, module_of
from ._plan import Chosen, GraphPlanner


@dataclasses.dataclass(frozen=True)
class GraphReport:
    """One compiled graph. Bytes are above those live before its forward; what a plan predicts is for the largest sizes.

    What is measured is of its last call with a backward. It is None before there was one in which nothing was compiled, and
    seconds are None on an accelerator."""

    graph: str
    backend: str
    default_peak: int  # of the compiler's own choice
    predicted_peak: int  # of the plan
    measured_peak: int | None
    handed_over: int  # from forward to backward, inputs and parameters apart
    kept: dict[str, int]  # bytes of these, by the module that makes them
    recomputed: dict[str, int]  # operators that run again, by module
    recomputed_lines: dict[str, int]  # the same by "file:line"
    recompute_seconds: float  # predicted
    predicted_seconds: float | None  # of both halves; None where nothing had to be planned, so that nothing was timed
    measured_seconds: float | None
    planning_seconds: float
    sizes: dict[str, int]  # those that vary, such as "words.size(1)": the largest ones, for which all bytes above are


def report_of(name: str, backend: str, planner: GraphPlanner, chosen: Chosen, shown: Shown | None) -> GraphReport:
    joint = planner.joint
    again = _operators_again(joint, chosen.cut)
    return GraphReport(
        graph=name, backend=backend, default_peak=chosen.default.peak, predicted_peak=chosen.halves.peak,
        measured_peak=shown.peak if shown else None, handed_over=chosen.halves.saved, kept=_kept(joint, chosen),
        recomputed=dict(collections.Counter(module_of(joint.nodes[at]) for at in again)),
        recomputed_lines=dict(collections.Counter(_line_of(joint, at) for at in again)),
        recompute_seconds=chosen.recompute_seconds, predicted_seconds=chosen.seconds, measured_seconds=shown.seconds if shown else None,
        planning_seconds=chosen.planning_seconds, sizes=joint.sizes.named)


def _operators_again(joint: Joint, cut: Cut) -> list[int]:
    handed = set(cut.saved)
    needed = joint.closure([*joint.backward_order, *joint.backward_outputs], lambda at: at in handed)
    again = [at for at in sorted(needed - handed)
             if joint.in_forward[at] and joint.is_operator(at) and joint.kinds[at] is not Kind.VIEW]
    further = {at: len(runs) - (at in needed - handed) for at, runs in cut.runs.items()}
    return again + [at for at, count in further.items() for _ in range(count)]


def _kept(joint: Joint, chosen: Chosen) -> dict[str, int]:
    counts = {"copies in other layouts": chosen.halves.copies} if chosen.halves.copies else {}
    for at in sorted(joint.memories(chosen.cut.saved)):
        if joint.bytes[at]:
            name = module_of(joint.nodes[at])
            counts[name] = counts.get(name, 0) + joint.bytes[at]
    return counts


def _line_of(joint: Joint, at: int) -> str:
    """The innermost line of the model's code."""
    lines = re.findall(r'File "(.+)", line (\d+)', joint.nodes[at].meta.get("stack_trace") or "")
    return ":".join(lines[-1]) if lines else "unknown"
