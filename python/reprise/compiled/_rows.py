"""Whether forward may compute otherwise where it hands over something else than by default.

It may where loops go through memory in another order than that in which it lies, for inductor puts dimensions in order by all that it
merges. Where only rows are in another order, as after a transposition of sequence and batch, each row is computed alike in all of them.
"""

from __future__ import annotations

import enum
from typing import Any

import torch
from torch import fx

from ._joint import Joint
from ._kinds import Kind, name_of
from ._layouts import EXACT, MERGED, OTHERWISE, SAME, has_convolution, is_contiguous, is_loop, operands_of, plain_loops, sum_or_kind_of

# Elements of the widest vector of a CPU. Rows of so many have no rest that is computed one by one.
_WHOLE = 64


class _Order(enum.Enum):
    AS_IN_MEMORY = enum.auto()
    BY_ROWS = enum.auto()  # the last dimension as in memory, the others in any order
    ONE_A_ROW = enum.auto()  # what rows have been added up to
    OTHER = enum.auto()


def reads_out_of_order(forward: fx.GraphModule, joint: Joint) -> bool:
    """Whether it has to be known what the compiler's own forward has in memory, which takes long."""
    operands = operands_of(forward)
    known = plain_loops(forward, {}) | operands
    # Of 16 bits, what gets memory is rounded.
    exact = EXACT if joint.has_16_bits else SAME
    inexact: set[fx.Node] = set()  # and what may be computed again inside
    for node in reversed(forward.graph.nodes):
        kind = sum_or_kind_of(node)
        if kind is Kind.REDUCTION or kind is Kind.LOOP and name_of(node) not in exact:
            inexact.update(node.all_input_nodes, (node,))
        elif kind in MERGED and node in inexact and node not in operands:
            inexact.update(node.all_input_nodes)
    unknown = {node for node in inexact if is_loop(node, joint) and node not in known}
    is_known_anyway = joint.has_16_bits or has_convolution(forward)
    return bool(unknown) and (is_known_anyway or not unknown <= _loops_by_rows(forward))


def _loops_by_rows(half: fx.GraphModule) -> set[fx.Node]:
    """Loops over rows, if all loops and sums that may compute them again inside go along rows as well, or in the order of memory."""
    nodes, operands = list(half.graph.nodes), operands_of(half)
    kinds = {node: sum_or_kind_of(node) for node in nodes}
    orders: dict[fx.Node, _Order] = {}
    others: set[fx.Node] = set()  # loops and sums in other orders, and what may be a part of these
    for node in nodes:
        order = orders[node] = _order_of(node, kinds[node], orders)
        if order is _Order.OTHER and kinds[node] in (Kind.LOOP, Kind.REDUCTION):
            others.add(node)
            if node in operands and is_contiguous(node.meta.get("val")):
                orders[node] = _Order.AS_IN_MEMORY  # for what reads it from there
    for node in reversed(nodes):
        if any(kinds[user] in MERGED and user in others for user in node.users):
            others.add(node)
    return {node for node in nodes if kinds[node] is Kind.LOOP and node not in others}


def _order_of(node: fx.Node, kind: Kind, orders: dict[fx.Node, _Order]) -> _Order:
    """The order of the loop that computes the node, by those of its inputs."""
    value, inputs = node.meta.get("val"), node.all_input_nodes
    found = {orders[each] for each in inputs}
    is_stored = kind not in MERGED and kind is not Kind.ITEM  # whatever the order of its inputs
    if name_of(node) in OTHERWISE or _Order.OTHER in found and not is_stored:
        return _Order.OTHER
    if is_contiguous(value) and (is_stored or found <= {_Order.AS_IN_MEMORY}):
        return _Order.AS_IN_MEMORY
    if is_stored:
        return _Order.BY_ROWS if _row_of(value) else _Order.OTHER
    if kind is Kind.REDUCTION:
        return _Order.ONE_A_ROW if len(inputs) == 1 and _adds_up_rows(node) else _Order.OTHER
    is_still_one = kind is not Kind.LOOP and _Order.ONE_A_ROW in found
    if not is_still_one and _row_of(value) and all(_fits(each, orders[each], _row_of(value)) for each in inputs):
        return _Order.BY_ROWS
    is_of_rows = found <= {_Order.AS_IN_MEMORY, _Order.ONE_A_ROW} and (kind is not Kind.LOOP or name_of(node) in SAME)
    return _Order.ONE_A_ROW if is_of_rows and is_contiguous(value) else _Order.OTHER


def _row_of(value: Any) -> int:
    """How many elements a row has, if these fill whole vectors; else 0."""
    if not isinstance(value, torch.Tensor) or not value.dim():
        return 0
    size, stride = value.shape[-1], value.stride(-1)
    return size if isinstance(size, int) and isinstance(stride, int) and size % _WHOLE == 0 and stride == 1 else 0


def _fits(read: fx.Node, order: _Order, size: int) -> bool:
    """Whether a loop along rows of that size reads a row of the same, or one number for all of a row."""
    value = read.meta.get("val")
    if not isinstance(value, torch.Tensor) or not value.dim() or value.shape[-1] == 1 or value.stride(-1) == 0:
        return True
    return order is not _Order.ONE_A_ROW and value.shape[-1] == size and value.stride(-1) == 1


def _adds_up_rows(node: fx.Node) -> bool:
    """Whether a sum, or the like, is along the last dimension alone."""
    value = node.all_input_nodes[0].meta["val"]
    along = node.args[1] if len(node.args) > 1 else None
    along = along if isinstance(along, (list, tuple)) else [along]
    return _row_of(value) > 0 and len(along) == 1 and along[0] in (-1, value.dim() - 1)
