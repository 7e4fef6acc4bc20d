"""What was planned for a graph, and what is computed again."""

from __future__ import annotations

import collections
import dataclasses
import re

from ._joint import Joint
from ._kinds import Kind
from ._plan import Chosen, GraphPlanner


@dataclasses.dataclass(frozen=True)
class GraphReport:
    """One compiled graph. Bytes are above those live before the step; seconds are predicted."""

    graph: str
    backend: str
    default_peak: int  # of the compiler's own choice
    predicted_peak: int  # of the plan
    handed_over: int  # from forward to backward, inputs and parameters apart
    recompute_seconds: float
    planning_seconds: float
    recomputed: dict[str, int]  # operators that run again, by module
    sizes: dict[str, int]  # those that vary, such as "words.size(1)": the largest ones, for which all bytes above are


def report_of(name: str, backend: str, planner: GraphPlanner, chosen: Chosen) -> GraphReport:
    return GraphReport(graph=name, backend=backend, default_peak=chosen.default.peak, predicted_peak=chosen.halves.peak,
                       handed_over=chosen.halves.saved, recompute_seconds=chosen.recompute_seconds,
                       planning_seconds=chosen.planning_seconds, recomputed=recomputed_in(planner.joint, chosen.saved),
                       sizes=planner.joint.sizes.named)


def recomputed_in(joint: Joint, saved: list[int]) -> dict[str, int]:
    handed = set(saved)
    needed = joint.closure([*joint.backward_order, *joint.backward_outputs], lambda at: at in handed)
    counts: collections.Counter[str] = collections.Counter()
    for at in sorted(needed - handed):
        if joint.in_forward[at] and joint.is_operator(at) and joint.kinds[at] is not Kind.VIEW:
            counts[_module_of(joint, at)] += 1
    return dict(counts)


def _module_of(joint: Joint, at: int) -> str:
    stack = joint.nodes[at].meta.get("nn_module_stack") or {}
    names = [path for path, _ in stack.values() if path]
    return _plain(names[-1]) if names else "outside of modules"


def _plain(path: str) -> str:
    """"blocks.0.mlp" of "L['self'].blocks.0.mlp" and of "L['self']._modules['blocks']._modules['0']._modules['mlp']"."""
    below = re.sub(r"^L\['\w+'\]", "", path)
    return re.sub(r"\._modules\['(\w+)'\]", r".\1", below).lstrip(".") or "the model itself"
