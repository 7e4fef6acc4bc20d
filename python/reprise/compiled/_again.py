"""When backward runs operators of forward again.

A plan may drop what backward has made again, and make it once more for a later reader. A node of a graph has one result, so that
each further run becomes a node of its own while a joint graph is split. And all that such operators read is there from the
beginning of backward, so that inductor would run them too soon, merged with others, if nothing held them back.
"""

from __future__ import annotations

import bisect
import contextlib
import dataclasses
import itertools
from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

from torch import fx

from ._held import Held
from ._joint import Joint
from ._torch import stored_apart

# In the `meta` of a further run: the name of the node that it repeats.
_ORIGINAL = "reprise_original"
# In the `meta` of each node that runs again, or makes a part of a gradient: the names of nodes that come before it in backward.
_AFTER = "reprise_after"


@dataclasses.dataclass(frozen=True)
class Cut:
    """How a plan splits a joint graph. Nodes are known by their place in it."""

    saved: list[int]  # what forward hands over, in order
    # Each of these operators of forward runs again before those operators of backward, in order. -1 is before all of backward.
    runs: dict[int, tuple[int, ...]] = dataclasses.field(default_factory=dict)
    in_memory: list[int] = dataclasses.field(default_factory=list)  # what gets memory in backward if it is computed there

    def repeats(self, joint: Joint) -> bool:
        """Whether backward runs an operator more than once, or one whose result forward hands over."""
        return any(len(runs) > 1 for runs in self.runs.values()) or any(joint.operator_of(at) in self.runs for at in self.saved)

    def is_default(self, joint: Joint, saved: list[int]) -> bool:
        """Whether the compiler, which hands `saved` over, splits the graph in this way by itself."""
        return self.saved == saved and not self.repeats(joint) and joint.added.keys().isdisjoint(self.in_memory)

    def fits(self, joint: Joint) -> bool:
        """Whether it can be of that graph."""
        nodes = range(len(joint.nodes))
        return all(at in nodes for at in self.in_memory) and joint.saved_for(set(self.saved), self.runs) == self.saved and all(
            at in nodes and joint.in_forward[at] and joint.is_operator(at) and not joint.is_once(at) and runs and
            all(each == -1 or each in nodes for each in runs) for at, runs in self.runs.items())

    def written(self) -> dict[str, Any]:
        """As JSON has it."""
        return {"saved": self.saved, "runs": [[at, list(runs)] for at, runs in self.runs.items()], "in_memory": self.in_memory}

    @staticmethod
    def read(written: dict[str, Any]) -> Cut:
        runs = {int(at): tuple(map(int, runs)) for at, runs in written["runs"]}
        return Cut(list(written["saved"]), runs, list(written["in_memory"]))


def original_name(node: fx.Node) -> str:
    """Of the joint graph's node that a further run repeats, or of the node itself."""
    name: str = node.meta.get(_ORIGINAL, node.name)
    return name


@contextlib.contextmanager
def repeating(joint: Joint, cut: Cut) -> Iterator[None]:
    """The joint graph has the further runs inside, and its nodes say when they run."""
    runs = _Runs(joint, cut)
    try:
        runs.add()
        yield
    finally:
        runs.remove()


@contextlib.contextmanager
def repeated_in_time(backward: fx.GraphModule) -> Iterator[None]:
    """Inductor, which compiles that backward inside, runs operators again no sooner than planned. Of an operator with several
    results, all are kept until the last one is taken out: inductor may do that at the end of backward, and here does so at once."""
    from torch._inductor import memory, scheduler
    from torch._inductor.virtualized import V

    after = {node.name: node.meta[_AFTER] for node in backward.graph.nodes if _AFTER in node.meta}
    if not after:
        yield
        return
    depend, order = scheduler.Scheduler.compute_dependencies, memory.reorder_for_peak_memory

    def depend_in_time(self: Any) -> Any:
        made: dict[str, str] = {}
        for node in self.nodes if V.graph.is_backward else ():
            origins = [origin.name for origin in node.node.origins] if node.node is not None else []
            before = sorted({name for origin in origins for name in after.get(origin, ())})
            V.graph.additional_buffer_deps[node.get_name()].update(made[name] for name in before if name in made)
            for name, buffer in itertools.product(origins, node.get_outputs()):
                made.setdefault(name, buffer.get_name())
        return depend(self)

    def order_with_results(nodes: Any, *rest: Any) -> list[Any]:
        ordered: list[Any] = order(nodes, *rest)
        if not V.graph.is_backward:
            return ordered
        items: dict[str, list[Any]] = {}
        for node in ordered:
            items.setdefault(operator_with_results(node.node), []).append(node)
        return [each for node in items.get("", ()) for each in _with_results(node, items)]

    # Nodes that inductor's own passes replace have other names, and do not wait.
    with (patch.object(scheduler.Scheduler, "compute_dependencies", depend_in_time),
          patch.object(memory, "reorder_for_peak_memory", order_with_results),
          stored_apart("run again in time, results at once, by reprise", repr(after))):
        yield


def operator_with_results(result: Any) -> str:
    """The buffer of the operator whose results `result` is one of; empty where it is not one of several."""
    from torch._inductor import ir

    is_taken: bool = isinstance(result, ir.MultiOutput)
    return str(result.inputs[0].get_name()) if is_taken else ""


def _with_results(node: Any, items: dict[str, list[Any]]) -> Iterator[Any]:
    yield node
    for output in node.get_outputs():
        for each in items.get(output.get_name(), ()):
            yield from _with_results(each, items)


class _Runs:
    def __init__(self, joint: Joint, cut: Cut) -> None:
        self._joint, self._cut, self._saved = joint, cut, set(cut.saved)
        self._added = joint.added.keys() & set(cut.in_memory)
        # By place and number of the run; what is computed on the way, by place and new arguments.
        self._made: dict[Any, fx.Node] = {}
        self._copies: list[fx.Node] = []
        self._is_moved = False
        self._before: list[tuple[fx.Node, Any, Any]] = []  # operators of backward with their arguments

    def add(self) -> None:
        for at in self._added:
            self._joint.nodes[self._joint.added[at]].meta[_AFTER] = [self._joint.nodes[at].name]
        if not self._cut.runs:
            return
        joint, self._memory = self._joint, Held(self._joint, self._saved)
        # In order of their places, as in `backward_order`. Others run inside of these.
        self._readers = [at for at in joint.backward_order
                         if joint.after_tangents[at] and (self._memory.held[at] or joint.items(at))]
        for at, runs in self._cut.runs.items():
            joint.nodes[at].meta[_AFTER] = self._before_slot(runs[0])
        if not self._cut.repeats(joint):
            return
        self._put_forward_first()
        runs_before: dict[int, list[tuple[int, int]]] = {}
        for at, runs in sorted(self._cut.runs.items()):
            for number, slot in enumerate(runs, 1):
                runs_before.setdefault(max(slot, self._readers[0]), []).append((at, number))
        for at in self._readers:
            node = joint.nodes[at]
            with node.graph.inserting_before(node):
                for operator, number in runs_before.get(at, ()):  # here, so that none is made from deep inside of another
                    for each in joint.items(operator) or (operator,):
                        self._run(each, operator, number)
                new = {each: self._read(each, at) for each in node.all_input_nodes}
            if not self._is_as_before(new):
                self._before.append((node, node.args, node.kwargs))
                node.args, node.kwargs = fx.map_arg(node.args, new.__getitem__), fx.map_arg(node.kwargs, new.__getitem__)

    def remove(self) -> None:
        for at in (*self._cut.runs, *(self._joint.added[each] for each in self._added)):
            self._joint.nodes[at].meta.pop(_AFTER, None)
        for node, args, kwargs in self._before:
            node.args, node.kwargs = args, kwargs
        for node in reversed(self._copies):
            node.graph.erase_node(node)
        for node, following in itertools.pairwise(self._joint.nodes if self._is_moved else ()):
            node.append(following)

    def _put_forward_first(self) -> None:
        """Some operators that need no gradient stand among those of backward. torch puts all that comes before these just before
        its first use."""
        self._is_moved = True
        joint = self._joint
        begin = next(at for at, node in enumerate(joint.nodes) if joint.after_tangents[at] and node.op == "call_function")
        for node, is_forward in zip(joint.nodes[begin:], joint.in_forward[begin:]):
            if is_forward:
                joint.nodes[begin].prepend(node)

    def _before_slot(self, slot: int) -> list[str]:
        """What that operator of backward reads of backward's own results; if it reads none, what the nearest one before reads. Where it is
        computed together with what it reads, it stays so, and what counts is what they read."""
        joint = self._joint
        kernels = joint.layouts.kernels if joint.layouts else {}
        own = kernels.get(joint.nodes[max(slot, 0)].name, -1)
        for at in reversed(self._readers[:bisect.bisect_right(self._readers, slot)]):
            found = [each for each in self._memory.sources[at]
                     if joint.after_tangents[each] and kernels.get(joint.nodes[each].name) != own]
            if found:
                return [joint.nodes[each].name for at in found for each in (at, joint.operator_of(at))]
        return []

    def _read(self, node: fx.Node, slot: int) -> fx.Node:
        """What an operator reads for the node if it runs before that operator of backward."""
        joint, at = self._joint, self._joint.place[node]
        if node.op != "call_function" or not any(joint.operator_of(each) in self._cut.runs for each in (at, *self._memory.sources[at])):
            return node
        operator = joint.operator_of(at)
        if operator in self._cut.runs:
            number = bisect.bisect_right(self._cut.runs[operator], slot)
            return self._run(at, operator, number) if number else node
        if self._memory.held[at] or at in self._saved:
            return node
        new = {each: self._read(each, slot) for each in node.all_input_nodes}
        key = (at, *new.values())
        if key not in self._made:
            self._made[key] = node if self._is_as_before(new) else self._copy(node, new)
        return self._made[key]

    def _run(self, at: int, operator: int, number: int) -> fx.Node:
        """The result of that run. The joint graph's own node is forward's result if that is handed over, or else the first run
        unless this reads other runs than forward did."""
        if (at, number) not in self._made:
            node, slot = self._joint.nodes[at], self._cut.runs[operator][number - 1]
            new = {each: self._run(self._joint.place[each], operator, number) if at != operator else self._read(each, slot)
                   for each in node.all_input_nodes}
            is_own = number == 1 and at not in self._saved and self._is_as_before(new)
            self._made[at, number] = node if is_own else self._copy(node, new)
            if not is_own:
                self._made[at, number].meta[_AFTER] = self._before_slot(slot)
        return self._made[at, number]

    def _is_as_before(self, inputs: dict[fx.Node, fx.Node]) -> bool:
        return all(each is by for each, by in inputs.items())

    def _copy(self, node: fx.Node, inputs: dict[fx.Node, fx.Node]) -> fx.Node:
        result = node.graph.node_copy(node, inputs.__getitem__)
        result.meta[_ORIGINAL] = node.name
        self._copies.append(result)
        return result
