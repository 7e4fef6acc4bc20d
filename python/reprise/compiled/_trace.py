"""A joint graph as a recorded step, so that all planners and simulations of the library can be tried on it."""

from __future__ import annotations

import json
from typing import Any

from .._reprise import StepTrace
from ._joint import Joint
from ._step import Step


def trace_of(step: Step) -> StepTrace:
    """Forward and backward without recomputation. Operators are those from memory to memory: loops that a compiler merges
    belong to their readers. Inputs and parameters are there from the beginning, gradients to the end."""
    joint = step.joint
    lines: list[dict[str, Any]] = []
    for at, node in enumerate(joint.nodes):
        if node.op in ("placeholder", "get_attr") and joint.roots[at] == at:
            lines += [{"INSTRUCTION": "CONSTANT", "NAME": node.name}, _memory(node.name, joint.bytes[at])]
    calls = [(at, is_backward, _reads(joint, at, reads), _makes(joint, at, is_backward))
             for (at, is_backward), reads in zip(step.operators, step.reads)]
    last = {name: slot for slot, (_, _, reads, makes) in enumerate(calls) for name in (*reads, *(each for each, _ in makes))}
    stays = {joint.nodes[joint.roots[at]].name for at in joint.backward_outputs} | {each["NAME"] for each in lines}
    ends: list[list[str]] = [[] for _ in calls]
    for name, slot in last.items():
        if name not in stays:
            ends[slot].append(name)
    for slot, (at, _, reads, makes) in enumerate(calls):
        nanoseconds, _ = step.cost(at)
        lines.append({"INSTRUCTION": "CALL", "NAME": str(joint.nodes[at].target), "ARGS": reads, "RESULT": [name for name, _ in makes],
                      "TIME": nanoseconds})
        for name, count in makes:
            lines += [_memory(name, count), {"INSTRUCTION": "ALIAS", "NAME": name, "ALIAS": -1}]
        lines += [{"INSTRUCTION": "RELEASE", "NAME": name} for name in ends[slot]]
    return StepTrace.parse("".join(json.dumps(each) + "\n" for each in lines), "a joint graph")


def _memory(name: str, count: int) -> dict[str, Any]:
    return {"INSTRUCTION": "MEMORY", "NAME": name, "MEMORY": count}


def _reads(joint: Joint, at: int, reads: list[tuple[int, bool]]) -> list[str]:
    inputs = [joint.roots[each] for each in joint.inputs[at] if joint.nodes[joint.roots[each]].op in ("placeholder", "get_attr")]
    return list(dict.fromkeys(_name(joint, *each) for each in (*((each, False) for each in inputs), *reads)))


def _makes(joint: Joint, at: int, is_backward: bool) -> list[tuple[str, int]]:
    return [(_name(joint, each, is_backward), joint.bytes[each]) for each in joint.items(at) or (at,)]


def _name(joint: Joint, at: int, is_backward: bool) -> str:
    """Regions run their operators once more in backward."""
    name: str = joint.nodes[at].name
    return name + "'" if is_backward and joint.in_forward[at] else name
