"""Gradients that have many parts, as those of a weight that each step of a recurrent network uses.

A compiler that merges loops may add up all parts in one loop at the end, and hold until then what these are made of. Under a plan they
are added up one by one, as eager autograd does: what makes a part waits for the sum of those before. The bits are the same.
"""

from __future__ import annotations

import torch

from ._joint import Joint
from ._kinds import Kind, name_of

# In 16 bits a sum that is stored in between is rounded there.
_EXACT = (torch.float32, torch.float64)
# Of a step's peak. Parts may wait for the end that are made of less.
_SMALL = 0.001


def added_one_by_one(joint: Joint, peak: int) -> dict[int, int]:
    """The sums of all parts before one, with the operator that makes that one. `peak`: of the step."""
    found: dict[int, int] = {}
    sums: dict[int, tuple[int, int] | None] = {}  # with the sum before, if there is one, and the operator that makes the part
    for at in range(len(joint.nodes)):
        if not _is_sum(joint, at):
            continue
        roots = [joint.roots[each] for each in joint.inputs[at]]
        earlier = [each for each in roots if each in sums]
        makers = [joint.operator_of(each) for each in roots if each not in earlier]
        if makers and all(joint.kinds[each] in (Kind.CALL, Kind.REDUCTION) and not joint.in_forward[each] for each in makers):
            sums[at] = (earlier[0], makers[0]) if earlier else None
    for last in {joint.roots[each] for each in joint.backward_outputs}:
        while step := sums.get(last):
            before, maker = step
            size = max(joint.bytes[joint.roots[each]] for each in (last, *joint.inputs[maker]))
            is_elsewhere = joint.nodes[last].meta["val"].device.type != "cpu"
            if before < maker and size > _SMALL * peak and not (is_product(joint, maker) and is_elsewhere):
                found[before] = maker
            last = before
    return found


def is_product(joint: Joint, at: int) -> bool:
    """A matrix product. On a CPU inductor itself adds the next part to it."""
    return name_of(joint.nodes[at]) == "mm"


def _is_sum(joint: Joint, at: int) -> bool:
    """Of two tensors of one shape, in backward."""
    node = joint.nodes[at]
    if node.target is not torch.ops.aten.add.Tensor or joint.in_forward[at] or node.kwargs or len(joint.inputs[at]) != 2:
        return False
    values = [each.meta["val"] for each in (node, *node.all_input_nodes)]
    return all(isinstance(each, torch.Tensor) and each.dtype in _EXACT and each.shape == values[0].shape for each in values) and \
        all(isinstance(each, int) for each in values[0].stride())
