"""Halves that compute as the compiler's own do, whatever a plan hands over.

Inductor decides by what reads a result whether it gets memory, and in which layout. Under another plan these may be others, and
sums are then added up in another order: by loops, and in libraries of linear algebra.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from ._joint import Joint
from ._kinds import Kind, name_of

# Their loops go through memory in parts.
_OF_PARTS = frozenset("cat slice select slice_scatter select_scatter".split())


def compute_as_default(forward: fx.GraphModule, backward: fx.GraphModule, joint: Joint) -> None:
    """Changes the halves of a plan. Forward has in memory what it has there under the compiler's own plan, and hands over
    copies of other results. Backward makes again what the compiler's own plan hands over in the layout that it has there, as
    far as it gets memory or sums read it."""
    if joint.layouts is None:
        return
    _keep_loops(forward, joint)
    strides = joint.layouts.strides
    for node in list(backward.graph.nodes):
        if node.name not in strides or not _is_loop(node, joint, views=True):
            continue
        value, at = node.meta["val"], joint.named[node.name]
        is_as_graph = value.stride() == strides[node.name]
        if _is_read_by(Kind.CALL, joint, at) or not is_as_graph and _is_read_by(Kind.REDUCTION, joint, at):
            _replace(node, _lay_out(node, strides[node.name]))


def strides_of(joint: Joint, saved: list[int]) -> dict[str, tuple[int, ...]]:
    """As the graph has them."""
    values = {joint.nodes[at].name: joint.nodes[at].meta["val"] for at in saved}
    return {name: value.stride() for name, value in values.items()
            if isinstance(value, torch.Tensor) and all(isinstance(each, int) for each in value.stride())}


def laid_out(node: Any) -> Any:
    """What `compute_as_default` has put that node after, or the node."""
    return node.args[0] if isinstance(node, fx.Node) and node.target is _prim() else node


def _prim() -> Any:
    from torch._inductor import inductor_prims

    return inductor_prims.force_stride_order


def _keep_loops(forward: fx.GraphModule, joint: Joint) -> None:
    assert joint.layouts is not None
    (output,) = forward.graph.find_nodes(op="output")
    results = list(output.args[0])
    handed_over = results[joint.outputs_of_forward:]
    for node in list(forward.graph.nodes):
        if not _is_loop(node, joint) or not isinstance(node.meta["val"], torch.Tensor):
            continue
        strides = node.meta["val"].stride()
        if not all(isinstance(each, int) for each in strides) or _is_plain(joint, joint.named[node.name]):
            continue  # sizes vary, or loops read it from memory as they compute it again
        if node in handed_over and node.name not in joint.layouts.in_memory:
            copy = _lay_out(node, strides)
            results = [copy if each is node and at >= joint.outputs_of_forward else each for at, each in enumerate(results)]
        elif node.name in joint.layouts.strides and node not in results:
            _replace(node, _lay_out(node, joint.layouts.strides[node.name]))
    output.args = (tuple(results),)


def _is_plain(joint: Joint, at: int) -> bool:
    """Whether the value is computed element by element from contiguous memory, so that loops over it go through memory in the
    same order whether it is stored or computed again inside."""
    seen, unseen = {at}, [at]
    while unseen:
        each = unseen.pop()
        value, kind = joint.nodes[each].meta.get("val"), joint.kinds[each]
        if isinstance(value, torch.Tensor) and not value.is_contiguous() or name_of(joint.nodes[each]) in _OF_PARTS:
            return False
        if kind in (Kind.LOOP, Kind.VIEW):
            new = set(joint.inputs[each]) - seen
            seen |= new
            unseen += new
    return True


def _is_loop(node: fx.Node, joint: Joint, views: bool = False) -> bool:
    at = joint.named.get(node.name)
    return node.op == "call_function" and at is not None and (joint.kinds[at] is Kind.LOOP or views and joint.kinds[at] is Kind.VIEW)


def _lay_out(node: fx.Node, strides: tuple[int, ...]) -> fx.Node:
    with node.graph.inserting_after(node):
        result = node.graph.call_function(_prim(), (node, strides))
    result.meta = {**node.meta, "val": node.meta["val"].as_strided(node.meta["val"].shape, strides)}
    return result


def _replace(node: fx.Node, by: fx.Node) -> None:
    node.replace_all_uses_with(by, delete_user_cb=lambda user: user is not by)


def _is_read_by(kind: Kind, joint: Joint, at: int) -> bool:
    """Whether an operator of backward of that kind reads the value: itself, through views, or, a sum, through loops."""
    through = (Kind.VIEW,) if kind is Kind.CALL else (Kind.VIEW, Kind.ITEM, Kind.LOOP)
    seen, unseen = {at}, [at]
    while unseen:
        for user in joint.users[unseen.pop()]:
            if joint.kinds[user] is kind and not joint.in_forward[user]:
                return True
            if joint.kinds[user] in through and user not in seen:
                seen.add(user)
                unseen.append(user)
    return False
