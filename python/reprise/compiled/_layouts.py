"""Halves that compute as the compiler's own do, whatever a plan hands over.

Inductor decides by what reads a result whether it gets memory, and in which layout. Under another plan these may be others, and
sums are then added up in another order: by loops, and in libraries of linear algebra.
"""

from __future__ import annotations

import contextlib
import types
from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import torch
from torch import _prims_common, fx

from ._again import original_name
from ._joint import InMemory, Joint
from ._kinds import Kind, is_scatter, kind_of, name_of
from ._torch import stored_apart
from ._vectors import add_up_by

# Their loops go through memory in parts, or their layout is not the graph's.
OTHERWISE = frozenset(
    "cat slice select slice_scatter select_scatter diagonal_scatter convolution constant_pad_nd repeat rev gather index index_select "
    "_unsafe_index _unsafe_masked_index _adaptive_avg_pool2d adaptive_max_pool2d avg_pool2d avg_pool3d _low_memory_max_pool_with_offsets "
    "max_pool2d_with_indices max_pool3d_with_indices upsample_nearest1d upsample_nearest2d upsample_nearest3d _upsample_nearest_exact1d "
    "_upsample_nearest_exact2d _upsample_nearest_exact3d".split())
# The same with and without vector code.
EXACT = frozenset("add sub mul div neg abs clone convert_element_type where relu iota full".split())
# More of them.
SAME = EXACT | frozenset(
    "arange full_like zeros_like ones_like rsqrt sqrt reciprocal eq ne lt le gt ge logical_and logical_or logical_not "
    "bitwise_and bitwise_or bitwise_not maximum minimum clamp clamp_min clamp_max gather index embedding cat "
    "constant_pad_nd slice_scatter select_scatter copy repeat sign floor ceil round trunc fma tril triu inductor_random "
    "inductor_lookup_seed inductor_force_stride_order".split())
MERGED = (Kind.LOOP, Kind.VIEW, Kind.REDUCTION)
# These read by places in memory.
_BY_PLACE = (torch.ops.aten.as_strided.default, torch.ops.aten.as_strided_scatter.default)
_CONVOLUTION = torch.ops.aten.convolution.default
_CONVOLUTIONS = (_CONVOLUTION, torch.ops.aten.convolution_backward.default)
# In the `meta` of a node that is laid out as if its half had no convolution.
_WITHOUT = "reprise_without_convolution"


def compute_as_default(forward: fx.GraphModule, backward: fx.GraphModule, joint: Joint, in_memory: list[int]) -> None:
    """Changes the halves of a plan. Forward has in memory what it has there under the compiler's own plan, and hands over
    copies of other results. Backward makes again what the compiler's own plan hands over in the layout that it has there, as
    far as it gets memory, or loops that read it go through memory in another order and could compute it otherwise. `in_memory`: what
    gets memory in backward besides."""
    if joint.layouts is None:
        return
    by_place = [node for half in (forward, backward) for node in half.graph.nodes if node.target in _BY_PLACE]
    values = [node.args[0].meta["val"] for node in by_place]
    add_up_by(forward, joint.layouts.elements_of_forward or {})
    add_up_by(backward, joint.layouts.elements)
    _keep_loops(forward, joint)
    layouts = joint.layouts
    strides, plain = layouts.strides, plain_loops(backward, {})
    operands = {name: layouts.copied.get(name) or layouts.operands.get(name) for name in (joint.nodes[at].name for at in in_memory)}
    for node in list(backward.graph.nodes):
        name = original_name(node)
        if name in operands and node.op == "call_function" and isinstance(node.meta["val"], torch.Tensor):
            _replace(node, _lay_out(node, operands[name] or node.meta["val"].stride()))
            continue
        if name not in strides or not is_loop(node, joint, views=True):
            continue
        value, at = node.meta["val"], joint.named[name]
        computed = _of_views(node)
        is_part = kind_of(computed) is Kind.LOOP and computed not in plain  # of loops that go through memory in another order
        is_plain = value.stride() == strides[name] and is_contiguous(value) and not is_part
        if (_is_read_by(Kind.CALL, joint, at) or not is_plain and _is_read_by(Kind.REDUCTION, joint, at) or
                is_part and not _is_exact(computed)):
            _replace(node, _lay_out(node, strides[name]))
    _without_convolutions(backward, joint)
    _hand_over_inputs(forward, backward, joint)
    for node, value in zip(by_place, values):
        node.replace_input_with(node.args[0], _as_in_graph(node.args[0], value))
    _keep_results(forward, joint)


def changes_layouts(half: fx.GraphModule) -> bool:
    """Whether `compute_as_default` has laid out something otherwise than the graph, so that what is computed from it may have other strides."""
    laid_out_nodes = half.graph.find_nodes(op="call_function", target=_prim())
    return any(each.meta["val"].stride() != each.args[0].meta["val"].stride() for each in laid_out_nodes)


def _keep_results(forward: fx.GraphModule, joint: Joint) -> None:
    """The caller gets results in the graph's layout, even where a result is computed from something in another one."""
    if not changes_layouts(forward):
        return
    (output,) = forward.graph.find_nodes(op="output")
    results = list(output.args[0])
    for at in joint.visible:
        node, value = results[at], results[at].meta.get("val")
        is_tensor = node.op == "call_function" and isinstance(value, torch.Tensor)
        if is_tensor and all(isinstance(each, int) for each in (*value.shape, *value.stride())) and (
                _prims_common.is_non_overlapping_and_dense_or_false(value)):
            new = _lay_out(node, value.stride())
            results = [new if each is node else each for each in results]
    output.args = (tuple(results),)


def _without_convolutions(backward: fx.GraphModule, joint: Joint) -> None:
    """Backward's own nodes are laid out as if no convolution of forward ran again. What such a convolution computes is in another layout
    than the graph says, so operators of backward get their images in the layout that they have by default."""
    assert joint.layouts is not None
    if any(node.target is _CONVOLUTION and joint.after_tangents[at] for at, node in enumerate(joint.nodes)):
        return
    if not has_convolution(backward):
        return
    for node in list(backward.graph.nodes):
        if not joint.after_tangents[joint.named.get(original_name(node), 0)]:
            continue
        node.meta[_WITHOUT] = True
        for read in node.all_input_nodes if kind_of(node) is Kind.CALL else ():
            strides = joint.layouts.operands.get(original_name(laid_out(read)))
            if strides and len(strides) == 4 and read.op == "call_function":
                node.replace_input_with(read, _lay_out(read, strides))


def _hand_over_inputs(forward: fx.GraphModule, backward: fx.GraphModule, joint: Joint) -> None:
    """By default forward hands over copies of weights and images in the layout that convolutions read. Under a plan it hands over the
    weights and images themselves, and backward copies each just before a convolution's backward reads it."""
    assert joint.layouts is not None
    copied = {name: strides for name, strides in joint.layouts.operands.items() if strides and _is_copied(joint, joint.named[name], strides)}
    for node in forward.graph.find_nodes(op="placeholder"):
        if node.name in copied:
            node.meta = {**node.meta, _WITHOUT: True}  # of its own: until now it was the joint graph's
    for node in backward.graph.find_nodes(op="placeholder"):
        for user in [each for each in node.users if node.name in copied and each.target is not _CONVOLUTION]:
            with backward.graph.inserting_before(user):
                user.replace_input_with(node, _in_layout(node, copied[node.name]))


def _is_copied(joint: Joint, at: int, strides: tuple[int, ...]) -> bool:
    """Whether the value is an input that only convolutions read, and of which forward hands over a copy with these strides by default."""
    assert joint.layouts is not None
    node, readers = joint.nodes[at], {joint.nodes[each].target for each in joint.users[at]}
    return (node.op == "placeholder" and len(strides) == 4 and joint.layouts.strides.get(node.name) == strides != node.meta["val"].stride()
            and readers <= set(_CONVOLUTIONS))


@contextlib.contextmanager
def laid_out_as_default(half: fx.GraphModule) -> Iterator[None]:
    """Inductor, which compiles that half inside, does not lay out for convolutions what is marked so: backward's own results, and what
    forward hands over under a plan alone."""
    from torch._inductor import graph

    if not any(_WITHOUT in node.meta for node in half.graph.nodes):
        yield
        return
    lowering: Any = graph.GraphLowering
    find, run = lowering.find_nodes_prefer_channels_last, lowering.run_node

    def find_others(self: Any) -> Any:
        found = find(self)
        return type(found)(node for node in found if _WITHOUT not in node.meta)

    def run_without(self: Any, node: fx.Node) -> Any:
        is_set = self.layout_opt
        self.layout_opt = is_set and _WITHOUT not in node.meta
        try:
            return run(self, node)
        finally:
            self.layout_opt = is_set

    with (patch.object(lowering, "find_nodes_prefer_channels_last", find_others), patch.object(lowering, "run_node", run_without),
          stored_apart("laid out, by reprise", "")):
        yield


def strides_of(joint: Joint, saved: list[int]) -> dict[str, tuple[int, ...]]:
    """As the graph has them."""
    values = {joint.nodes[at].name: joint.nodes[at].meta["val"] for at in saved}
    return {name: value.stride() for name, value in values.items()
            if isinstance(value, torch.Tensor) and all(isinstance(each, int) for each in value.stride())}


def strides_laid_out(forward: fx.GraphModule) -> dict[str, tuple[int, ...]]:
    """Of the results that `compute_as_default` has laid out, by name."""
    (output,) = forward.graph.find_nodes(op="output")
    return {laid_out(each).name: each.meta["val"].stride() for each in output.args[0] if laid_out(each) is not each}


def laid_out(node: Any) -> Any:
    """What `compute_as_default` has put that node after, or the node."""
    return node.args[0] if isinstance(node, fx.Node) and node.target is _prim() else node


def _prim() -> Any:
    from torch._inductor import inductor_prims

    return inductor_prims.force_stride_order


def _keep_loops(forward: fx.GraphModule, joint: Joint) -> None:
    assert joint.layouts is not None
    in_memory, strides_of_default = joint.layouts.in_memory or {}, joint.layouts.strides
    (output,) = forward.graph.find_nodes(op="output")
    results = list(output.args[0])
    handed_over = results[joint.outputs_of_forward:]
    plain, operands = plain_loops(forward, in_memory), operands_of(forward)

    def replace_handed_over(node: fx.Node, by: fx.Node) -> None:
        for at in range(joint.outputs_of_forward, len(results)):
            results[at] = by if results[at] is node else results[at]

    for node in list(forward.graph.nodes):
        if not is_loop(node, joint) or not isinstance(node.meta["val"], torch.Tensor):
            continue
        strides = node.meta["val"].stride()
        if not all(isinstance(each, int) for each in strides) or node in plain:
            continue  # sizes vary, or loops read it from memory as they compute it again
        of_default = in_memory.get(node.name) or strides_of_default.get(node.name)
        if node in handed_over and node not in operands and node.name not in in_memory and not of_default:
            replace_handed_over(node, _lay_out(node, strides))
        elif of_default and (node not in results or node in handed_over):
            new = _lay_out(node, of_default)
            _replace(node, new)
            replace_handed_over(node, new)
    by_default, images = {joint.nodes[at].name for at in joint.layouts.saved}, _images(forward)
    for node in results[joint.outputs_of_forward:]:
        if node in images and original_name(laid_out(node)) not in by_default:
            # Inductor would lay out this result for a later convolution, and what else reads it would get it in that layout.
            new = node if node is not laid_out(node) else _lay_out(node, node.meta["val"].stride())
            new.meta[_WITHOUT] = True
            replace_handed_over(node, new)
    output.args = (tuple(results),)


def _images(half: fx.GraphModule) -> set[fx.Node]:
    """What inductor has in channels-last layout because of convolutions before or after it, but for their own results."""
    from torch._inductor import graph

    lowering: Any = graph.GraphLowering
    found = lowering.find_nodes_prefer_channels_last(types.SimpleNamespace(module=half)) if has_convolution(half) else ()
    return {node for node in found if node.op == "call_function" and node.target is not _CONVOLUTION
            and isinstance(node.meta.get("val"), torch.Tensor) and node.meta["val"].dim() == 4
            and all(isinstance(each, int) for each in node.meta["val"].stride())}


def has_convolution(half: fx.GraphModule) -> bool:
    return bool(half.graph.find_nodes(op="call_function", target=_CONVOLUTION))


def plain_loops(half: fx.GraphModule, in_memory: InMemory) -> set[fx.Node]:
    """Loops over contiguous memory, if all loops and sums that may compute them again inside are over such memory too. These go
    through memory in the same order, with the same vector code, whether the loop's result is stored or not.
    `in_memory`: under the compiler's own plan."""
    nodes = list(half.graph.nodes)
    kinds, operands = {node: sum_or_kind_of(node) for node in nodes}, operands_of(half)
    in_order: set[fx.Node] = set()  # as operands of a loop
    out_of_order: set[fx.Node] = set()  # their own loops
    for node in nodes:
        is_dense = is_contiguous(node.meta.get("val"), in_memory.get(node.name))
        is_whole = is_dense and name_of(node.all_input_nodes[0] if kinds[node] is Kind.ITEM else node) not in OTHERWISE
        merges = kinds[node] in MERGED and not in_order.issuperset(node.all_input_nodes)  # what is out of order
        if kinds[node] is not Kind.VIEW and (merges or not is_whole):
            out_of_order.add(node)
        # Others have in memory as well what they would compute in another order.
        is_kept = node in operands or node.name in in_memory
        is_stored = kinds[node] is Kind.REDUCTION or merges and kinds[node] is Kind.LOOP and is_kept
        if is_dense and is_stored or is_whole and not merges:
            in_order.add(node)
    part_of: set[fx.Node] = set()
    for node in reversed(nodes):
        if any(kinds[user] in MERGED and (user in out_of_order or user in part_of and user.name not in in_memory) for user in node.users):
            part_of.add(node)
    others = out_of_order | part_of
    return {node for node in nodes if kinds[node] is Kind.LOOP and node not in others}


def sum_or_kind_of(node: fx.Node) -> Kind:
    return Kind.REDUCTION if is_scatter(node) else kind_of(node)


def operands_of(half: fx.GraphModule) -> set[fx.Node]:
    """What operators that run by themselves read, so that it is in memory under every plan. Of what they read a part of, that part may
    be all that is in memory."""
    found: set[fx.Node] = set()
    for node in reversed(half.graph.nodes):
        if node.op == "call_function" and (sum_or_kind_of(node) is Kind.CALL or kind_of(node) is Kind.VIEW and node in found and _is_whole(node)):
            found.update(node.all_input_nodes)
    return found


def _is_whole(view: fx.Node) -> bool:
    """Whether it has as many elements as what it is a view of. True where sizes vary."""
    counts = [each.meta["val"].numel() for each in (view, view.all_input_nodes[0]) if isinstance(each.meta.get("val"), torch.Tensor)]
    return not all(isinstance(each, int) for each in counts) or len(set(counts)) == 1


def is_contiguous(value: Any, strides: tuple[int, ...] | None = None) -> bool:
    """But for dimensions along which it is the same. True where sizes vary. `strides`: instead of the value's own."""
    expected = 1
    for size, stride in reversed(list(zip(value.shape, strides or value.stride()))) if isinstance(value, torch.Tensor) else ():
        if not isinstance(size, int) or not isinstance(stride, int):
            return True
        if stride != 0 and size != 1:
            if stride != expected:
                return False
            expected *= size
    return True


def is_loop(node: fx.Node, joint: Joint, views: bool = False) -> bool:
    at = joint.named.get(original_name(node))
    return node.op == "call_function" and at is not None and (joint.kinds[at] is Kind.LOOP or views and joint.kinds[at] is Kind.VIEW)


def _lay_out(node: fx.Node, strides: tuple[int, ...]) -> fx.Node:
    with node.graph.inserting_after(node):
        return _in_layout(node, strides)


def _in_layout(node: fx.Node, strides: tuple[int, ...]) -> fx.Node:
    result = node.graph.call_function(_prim(), (node, strides))
    result.meta = {**node.meta, "val": _prim()(node.meta["val"], strides)}
    return result


def _as_in_graph(node: fx.Node, value: torch.Tensor) -> fx.Node:
    """The node's result in the graph's layout, for what reads by places in memory. Inductor does not see to that. `value`: the node's
    in the graph."""
    if all(isinstance(each, int) for each in value.stride()):
        return _lay_out(node, value.stride())
    if not _prims_common.is_contiguous_or_false(value):
        return node
    with node.graph.inserting_after(node):
        result = node.graph.call_function(torch.ops.aten.clone.default, (node,), {"memory_format": torch.contiguous_format})
    result.meta = {**node.meta, "val": value}
    return result


def _replace(node: fx.Node, by: fx.Node) -> None:
    node.replace_all_uses_with(by, delete_user_cb=lambda user: user is not by)


def _of_views(node: fx.Node) -> fx.Node:
    """What has the memory of a view."""
    while kind_of(node) is Kind.VIEW:
        node = node.all_input_nodes[0]
    return node


def _is_exact(node: fx.Node) -> bool:
    """Whether a loop, with those that it merges, has the same bits with and without vector code."""
    seen, unseen = {node}, [node]
    while unseen:
        each = unseen.pop()
        if kind_of(each) is Kind.LOOP and name_of(each) not in EXACT:
            return False
        if kind_of(each) in (Kind.LOOP, Kind.VIEW):
            unseen += [read for read in each.all_input_nodes if read not in seen]
            seen.update(each.all_input_nodes)
    return True


def _is_read_by(kind: Kind, joint: Joint, at: int) -> bool:
    """Whether an operator of backward of that kind reads the value: itself, through views, or, a sum, through loops."""
    through = (Kind.VIEW,) if kind is Kind.CALL else (Kind.VIEW, Kind.ITEM, Kind.LOOP)
    seen, unseen = {at}, [at]
    while unseen:
        for user in joint.users[unseen.pop()]:
            if sum_or_kind_of(joint.nodes[user]) is kind and not joint.in_forward[user]:
                return True
            if joint.kinds[user] in through and user not in seen:
                seen.add(user)
                unseen.append(user)
    return False
