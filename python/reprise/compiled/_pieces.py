"""A half of a joint graph, cut where little is live, so that the backend schedules a part of it alone.

The bytes at an operator are those that are live across its whole piece, and those that the piece takes by itself. Pieces of
repeated layers are alike and scheduled once; a piece in which operators one after another would take no more than what is
known already is not scheduled.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from ._costs import COSTS
from ._kinds import Kind, kind_of
from ._sizes import bytes_of

# A half of so many operators is scheduled whole.
_WHOLE = 600
# Operators in a piece; it ends where least is live.
_SHORTEST, _LONGEST = 200, 400

_Schedule = Callable[[fx.GraphModule], "int | None"]


class Half:
    """Operators one after another; a result is freed after the last operator that reads it or a view of it."""

    def __init__(self, module: fx.GraphModule, handed: dict[str, int], sizes: dict[int, int]) -> None:
        """`handed`: what forward hands over, by the name of the input, and on which memory, whose bytes are in `sizes`."""
        self._module = module
        self._nodes = list(module.graph.nodes)
        self._place = {node: at for at, node in enumerate(self._nodes)}
        self._kinds = [kind_of(node) for node in self._nodes]
        self._roots = list(range(len(self._nodes)))
        self._last = [0] * len(self._nodes)
        first_on: dict[int, int] = {}
        for at, node in enumerate(self._nodes):
            if self._is_view(at):
                self._roots[at] = self._roots[self._place[node.all_input_nodes[0]]]
            if node.op == "placeholder" and node.name in handed:
                self._roots[at] = first_on.setdefault(handed[node.name], at)
            for each in (at, *(self._place[each] for each in node.all_input_nodes)):
                self._last[self._roots[each]] = at
        self._size = [self._bytes_made(at, handed, sizes) for at in range(len(self._nodes))]
        self._live, self._while = self._count()

    @property
    def peak(self) -> int:
        return max(self._while, default=0)

    def _is_view(self, at: int) -> bool:
        inputs = self._nodes[at].all_input_nodes
        kind = self._kinds[at]
        return bool(inputs) and (kind is Kind.VIEW or kind is Kind.ITEM and self._kinds[self._place[inputs[0]]] is Kind.VIEW)

    def _bytes_made(self, at: int, handed: dict[str, int], sizes: dict[int, int]) -> int:
        node = self._nodes[at]
        if self._roots[at] != at:
            return 0
        if node.op == "placeholder":
            return sizes.get(handed.get(node.name, -1), 0)
        return bytes_of(node) if node.op == "call_function" else 0

    def _count(self) -> tuple[list[int], list[int]]:
        """Bytes before each node, and the most while it runs."""
        freed = [0] * len(self._nodes)
        for at, last in enumerate(self._last):
            if self._roots[at] == at and self._nodes[last].op != "placeholder":
                freed[last] += self._size[at]
        before, during, live = [], [], 0
        for at, node in enumerate(self._nodes):
            before.append(live)
            live += self._size[at]
            beside = 0
            if node.op == "call_function" and self._roots[at] == at and self._kinds[at] is not Kind.ITEM:
                beside = COSTS.call(node)[1]
                if not self._size[at]:
                    beside += sum(bytes_of(each) for each in node.users if kind_of(each) is Kind.ITEM)
            during.append(live + beside)
            live -= freed[at]
        return before, during

    # -- Pieces

    def scheduled_peak(self, schedule: _Schedule, known: int, seen: dict[Any, int | None]) -> int:
        """The peak under the backend's schedule, or no more than `known` where that is not less. `seen`: pieces of this and
        other halves that were scheduled before."""
        if self.peak <= known:
            return self.peak
        begin = next((at for at, node in enumerate(self._nodes) if node.op != "placeholder"), 0)
        if len(self._nodes) - begin <= _WHOLE:
            return schedule(self._module) or self.peak
        peak = 0
        pieces = self._pieces(begin)
        for most, first, end in sorted(((max(self._while[first:end]), first, end) for first, end in pieces), reverse=True):
            if most <= max(peak, known):
                return max(peak, most)
            held = sum(self._size[at] for at in range(first) if self._last[at] >= end)
            piece, key = self._cut(first, end)
            if key not in seen:
                seen[key] = schedule(piece)
            own = seen[key]
            peak = max(peak, most if own is None else held + own)
        return peak

    def _pieces(self, begin: int) -> list[tuple[int, int]]:
        end = len(self._nodes) - 1  # without the output
        passing = self._passing()
        result = []
        while end - begin > _LONGEST:
            # The first of those where least is live: alike in layers that are alike.
            cut = min((at for at in range(begin + _SHORTEST, begin + _LONGEST) if self._kinds[at] is not Kind.ITEM),
                      key=lambda at: (passing[at], at))
            result.append((begin, cut))
            begin = cut
        return [*result, (begin, end)]

    def _passing(self) -> list[int]:
        """Bytes that pass from before each node to later ones, without what is there from the beginning or to the end."""
        change = [0] * (len(self._nodes) + 1)
        for at, size in enumerate(self._size):
            if self._nodes[at].op == "call_function" and self._last[at] < len(self._nodes) - 1:
                change[at + 1] += size
                change[self._last[at] + 1] -= size
        result, live = [], 0
        for each in change:
            live += each
            result.append(live)
        return result

    def _cut(self, first: int, end: int) -> tuple[fx.GraphModule, Any]:
        """The nodes from `first` to before `end`, and what they have in common with others that are scheduled alike."""
        graph = fx.Graph()
        copies: dict[fx.Node, fx.Node] = {}
        numbers: dict[fx.Node, int] = {}
        key: list[Any] = []

        def note(node: fx.Node, copy: fx.Node, what: str) -> fx.Node:
            copies[node] = copy
            numbers[copy] = len(numbers)
            arguments = fx.map_arg((copy.args, copy.kwargs), lambda each: ("node", numbers[each]))  # type: ignore[arg-type,return-value]
            key.append((what, str(node.target) if node.op == "call_function" else node.op, repr(arguments),
                        _form_of(node.meta.get("val"))))
            return copy

        def copy_of(node: fx.Node) -> fx.Node:
            """Views and constants from before are made again: the backend gives them no memory."""
            if node in copies:
                return copies[node]
            at = self._place[node]
            if at >= first or self._is_view(at) or node.op != "placeholder" and not node.all_input_nodes:
                for each in node.all_input_nodes:
                    copy_of(each)
                return note(node, graph.node_copy(node, lambda each: copies[each]), "")
            # Inductor frees inputs by their names.
            is_freed = self._size[self._roots[at]] > 0 and self._last[self._roots[at]] < end
            copy = graph.create_node("placeholder", f"{'saved' if is_freed else 'primals'}_{len(inputs)}")
            copy.meta = dict(node.meta)
            inputs.append(copy)
            return note(node, copy, "freed" if is_freed else "held")

        inputs: list[fx.Node] = []
        for node in self._nodes[first:end]:
            copy_of(node)
        outputs = [copies[node] for at, node in enumerate(self._nodes[first:end], first)
                   if self._roots[at] == at and self._last[at] >= end and isinstance(node.meta.get("val"), torch.Tensor)]
        # Inputs come before all else.
        for each in reversed(inputs):
            graph._root.append(each)
        graph.output(tuple(outputs))
        key.append(tuple(numbers[each] for each in outputs))
        return fx.GraphModule(self._module, graph), tuple(key)


def _form_of(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return tuple(value.shape), value.stride(), value.dtype, value.device
    return tuple(_form_of(each) for each in value) if isinstance(value, (list, tuple)) else type(value)
