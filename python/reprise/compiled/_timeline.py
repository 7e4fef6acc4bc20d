"""The bytes that the operators of a schedule hold while they run, one after another.

Inductor's schedule holds the whole graph. A timeline has all that counts of it in numbers, and tells the peak for whatever is
handed over, and whoever has it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import operator
from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

from torch import fx

from ._again import operator_with_results
from ._sizes import Sizes, rounded
from ._torch import stored_apart

_KNOWN = "reprise_bytes"


@dataclasses.dataclass(frozen=True)
class Handing:
    """What forward hands to backward."""

    # Of each input of backward that is handed over, by name; of gradients, and of copies of inputs, that are freed alike.
    memories: dict[str, int] = dataclasses.field(default_factory=dict)
    sizes: dict[int, int] = dataclasses.field(default_factory=dict)  # bytes of these memories
    kept: set[int] = dataclasses.field(default_factory=set)  # memories that somebody has until backward ends
    donated: frozenset[str] = frozenset()  # names of what may be written after its last use
    strides: dict[str, tuple[int, ...]] = dataclasses.field(default_factory=dict)  # of forward's results, where they may not be the graph's


@dataclasses.dataclass(frozen=True)
class _Operator:
    """Bytes of buffers, by name."""

    made: dict[str, int]
    freed: dict[str, int]  # after the last use
    workspace: int
    places: list[tuple[str, int, list[str]]]  # results of merged loops with their bytes, and where they may go in place
    is_one_kernel: bool  # with the next one


@dataclasses.dataclass(frozen=True)
class Timeline:
    """Buffers and inputs are known by name."""

    operators: list[_Operator]
    inputs: dict[str, int]  # the place of the operator that reads each last
    forms: dict[str, Any]  # of buffers whose memory may be taken again for one of the same form
    allocated: set[str]  # of these buffers; the memory of others comes from their operator
    unaligned: set[str]
    estimate: int  # of the peak, by inductor
    while_run: list[int]  # its estimates of the bytes while each operator runs

    def peak(self, handing: Handing, known: list[int] | None = None) -> int:
        """The most bytes at once, those handed over among them. `known`: the bytes while each operator runs, where inductor is told
        them."""
        reuse = _Reuse(self.estimate, list(self.while_run)) if known is None else _Reuse(max(known, default=0), list(known))
        during = self._bytes(handing, reuse)
        for first, end, size in reuse.held:
            for at in range(first, end):
                during[at] += size
        return max(during, default=sum(handing.sizes.values()))

    def while_each_runs(self, handing: Handing) -> list[int]:
        """Bytes by operator, if no buffer is held for a later one."""
        return self._bytes(handing, _Reuse(0, list(self.while_run)))

    def _bytes(self, handing: Handing, reuse: _Reuse) -> list[int]:
        """By operator, without those of buffers that are held to be reused: `reuse` is told what could be."""
        count = len(self.operators)
        last_read: dict[int, int] = {}
        for name, at in self.inputs.items():
            # A view that is handed over keeps all of the memory that it is in.
            root = handing.memories.get(name)
            if root is not None:
                last_read[root] = max(last_read.get(root, 0), at)
        handed: list[dict[str, int]] = [{} for _ in range(count + 1)]
        for root in last_read.keys() - handing.kept:
            handed[last_read[root]][f"memory {root}"] = handing.sizes[root]
        memories = {name: f"memory {root}" for name, root in handing.memories.items()}
        # An input of a CPU's graph may lie at any address, and so may what is written in its place. Such memory is not reused for others.
        unaligned = self.unaligned | {memories[name] for name in memories.keys() & self.unaligned}
        live = sum(handing.sizes.values())
        during: list[int] = []
        waiting: list[tuple[str, int]] = []
        for at, operator in enumerate(self.operators):
            freed = operator.freed | handed[at]
            in_place = _in_place(operator, freed, memories)
            unaligned.update(name for name, place in in_place.items() if place in unaligned)
            for name in (each for each in operator.made if each in self.forms and each not in in_place):
                if name in self.allocated:
                    reuse.take((*self.forms[name], name in unaligned), self.forms[name][2], at)
            live += sum(size for name, size in operator.made.items() if name not in in_place)
            during.append(live + operator.workspace)
            waiting += [(name, size) for name, size in freed.items() if name not in in_place.values()]
            if operator.is_one_kernel:
                continue
            for name, size in waiting:
                live -= size
                if name in self.forms:
                    reuse.free((*self.forms[name], name in unaligned), at)
            waiting.clear()
        return during


class _Reuse:
    """A buffer that is freed, and taken again for a later one of its form: its memory is never given back between the two.
    Inductor does so where the peak that it expects stays as it is."""

    def __init__(self, estimate: int, while_run: list[int]) -> None:
        """What inductor takes for the peak, and for the bytes while each operator runs."""
        self._estimate, self._while_run = estimate, while_run
        self._free: dict[Any, list[int]] = {}  # since which operator, by form
        self.held: list[tuple[int, int, int]] = []  # bytes after one operator and before another

    def free(self, form: Any, at: int) -> None:
        self._free.setdefault(form, []).append(at)

    def take(self, form: Any, size: int, at: int) -> None:
        """`size`: bytes as inductor counts them."""
        since = self._free.get(form)
        if not since:
            return
        between = range(since[-1] + 1, at)
        if between and size + max(self._while_run[each] for each in between) > self._estimate:
            return
        for each in between:
            self._while_run[each] += size
        self.held.append((since.pop() + 1, at, rounded(size, form[0])))


def tell_bytes(half: fx.GraphModule, known: list[int] | None) -> None:
    """Inductor is to take these for the bytes while each operator of that half runs; None: what it finds itself."""
    half.graph.find_nodes(op="output")[0].meta[_KNOWN] = known


@contextlib.contextmanager
def reused_within_bytes(half: fx.GraphModule) -> Iterator[None]:
    """Inductor, which compiles that half inside, does as `tell_bytes` has said. By itself it counts twice what is written in place. So it
    expects a higher peak than there is, and holds freed buffers for later ones until that peak is there."""
    from torch._inductor.codegen import wrapper
    from torch._inductor.codegen.segmented_tree import SegmentedTree
    from torch._inductor.graph import SubgraphLowering
    from torch._inductor.virtualized import V

    known = half.graph.find_nodes(op="output")[0].meta.get(_KNOWN)
    if known is None:
        yield
        return
    estimate: Any = wrapper.EfficientPeakEstimate

    def estimate_of_plan() -> Any:
        found = estimate()
        if len(V.graph.scheduler.nodes) == len(known) and not isinstance(V.graph, SubgraphLowering):
            found.overall_peak_memory = max(known, default=0)
            found.segmented_tree = SegmentedTree(known, operator.add, max, 0)
        return found

    with patch.object(wrapper, "EfficientPeakEstimate", estimate_of_plan), stored_apart("bytes, by reprise", repr(known)):
        yield


def timeline_of(nodes: list[Any], rest: tuple[Any, ...], workspaces: list[int], symbols: Sizes) -> Timeline:
    """Of inductor's schedule. `rest`: what inductor orders it by."""
    from torch._inductor import memory
    from torch._inductor.virtualized import V

    inductor_memory: Any = memory
    _, inputs = memory.prepare_planning_info(nodes, *rest)
    estimate, while_run = memory.estimate_peak_memory(nodes, inputs, rest[3])
    if symbols.upper:
        # The order is of the sizes that are there, and so is the code; bytes are of the upper end. Nothing comes after.
        V.graph.dep_size_hint_cache.clear()
        known: Any = V.graph.sizevars
        replaced = known.remove_precomputed_replacements
        known.optimization_hint = lambda size, fallback=None: symbols.most(size if isinstance(size, int) else replaced(size))
    # Inductor does not know which inputs are freed, so that its order and its estimate are as if some stayed.
    with patch.object(inductor_memory, "is_nonfreeable_buffers", lambda read: False):
        _, inputs = memory.prepare_planning_info(nodes, *rest)
    outputs = rest[3]
    buffers, _, _ = memory.compute_memory_timeline(nodes, inputs, outputs)
    count = len(nodes)
    made: list[dict[str, int]] = [{} for _ in range(count + 1)]
    freed: list[dict[str, int]] = [{} for _ in range(count + 1)]
    forms: dict[str, Any] = {}
    last_read: dict[str, int] = {}
    begins: dict[str, int] = {}
    ends: dict[str, int] = {}
    wholes: dict[str, Any] = {}
    # Of the results of an operator. All of them are there until then.
    last_taken = {operator_with_results(node.node): at for at, node in enumerate(nodes)}
    for each in buffers:
        end = each.end_step if each.end_step >= 0 else count
        if isinstance(each.buffer, memory.FreeableInputBuffer):
            last_read[each.buffer.name] = end
            continue
        operator = operator_with_results(each.buffer.node)
        end = max(end, last_taken.get(operator, 0)) if operator else end
        owner = _owner_of(each.buffer.node)
        begins[owner] = min(begins.get(owner, each.start_step), each.start_step)
        ends[owner] = max(ends.get(owner, 0), end)
        if owner == each.buffer.get_name():
            wholes[owner] = each
    sizes = {name: rounded(each.size_alloc, nodes[each.start_step].get_device()) for name, each in wholes.items()}
    for name, each in wholes.items():
        first = nodes[each.start_step]
        if not first.is_extern() and ends[name] == begins[name] and name not in outputs and not _is_loaded_again(first, name):
            continue
        made[begins[name]][name] = sizes[name]
        freed[ends[name]][name] = rounded(each.size_free, first.get_device())
        if each.size_free and each.size_alloc in (0, each.size_free):
            forms[name] = each.buffer.node.get_device(), each.buffer.node.get_dtype(), each.size_free
    allocated = {name for name in forms if wholes[name].buffer.node.should_allocate()}
    operators = [
        _Operator(made[at], freed[at], workspaces[at], [] if node.is_extern() else _places(node, sizes),
                  at + 1 < count and _are_one_kernel(node, nodes[at + 1])) for at, node in enumerate(nodes)]
    return Timeline(operators, last_read, forms, allocated, set(V.graph.unaligned_buffers), estimate, while_run)


def _owner_of(buffer: Any) -> str:
    """The name of the buffer whose memory it is in: the parts of a concatenation are written into the whole."""
    from torch._inductor import ir
    from torch._inductor.virtualized import V

    while isinstance(getattr(buffer, "layout", None), ir.NonOwningLayout):
        buffer = V.graph.get_buffer(buffer.layout.view.get_name())
    name: str = buffer.get_name()
    return name


def _is_loaded_again(node: Any, name: str) -> bool:
    """For a CPU, whether a merged loop stores the buffer for another one of its kernel, which runs after a sum."""
    if node.get_device().type != "cpu":
        return False
    inside = {each.get_name(): each for each in node.get_nodes()}
    (producer,) = (each for each in inside.values() if any(output.get_name() == name for output in each.get_outputs()))
    if producer.is_reduction() or _is_local(node, producer, name):
        return False
    for each in inside.values():
        if any(read.name == name for read in each.read_writes.reads):
            before = inside.keys() & (each.ancestors - producer.ancestors - {producer.get_name()})
            if any(inside[one].is_reduction() for one in before):
                return True
    return False


def _is_local(node: Any, producer: Any, name: str) -> bool:
    """Whether the kernel has a buffer of its own for a row of it: as inductor's try_outer_loop_fusion_with_local_buf() decides."""
    from torch._inductor.codegen import cpp

    def dimensions(outer: Any) -> int:
        _, (loops, reduced) = max(outer.get_nodes(), key=lambda each: int(each.is_reduction())).group
        return len(loops) + len(reduced)

    is_outer = isinstance(node, cpp.OuterLoopFusedSchedulerNode)
    whole: Any = node
    if not is_outer or any(dimensions(each) != whole.outer_loop_fusion_depth + 1 for each in whole.get_outer_nodes()):
        return False
    index, stride = 0, 1
    for variable, length in reversed(producer._body.var_ranges.items()):
        index, stride = index + stride * variable, stride * length
    users = producer.scheduler.name_to_buf[name].users
    if not all(each.node in node.get_nodes() for each in users):
        return False
    return bool(producer.node.get_layout().is_contiguous() and producer._body.get_write_expr(name) == index and
                all(each.node._body.get_read_expr(name) == index for each in users))


def _are_one_kernel(node: Any, following: Any) -> bool:
    """For a CPU, loops one after another are one function of C++, after which buffers are freed."""
    return not node.is_extern() and not following.is_extern() and all(
        each.get_device() is not None and each.get_device().type == "cpu" for each in (node, following))


def _places(node: Any, sizes: dict[str, int]) -> list[tuple[str, int, list[str]]]:
    """The results of merged loops with their bytes, and the buffers that inductor lets each be written into."""
    scheduler = node.scheduler
    inside = {each.get_name() for each in node.get_nodes()}
    found: list[tuple[str, int, list[str]]] = []
    for each in node.get_nodes():
        for result in (output.get_name() for output in each.get_outputs()):
            places: list[str] = []
            for name in (read.name for read in each.read_writes.reads if sizes.get(result)):
                buffer = scheduler.name_to_donated_buffer.get(name) or scheduler.name_to_buf.get(name)
                users = [user for user in buffer.users if user.node.get_name() in inside - each.ancestors] if buffer else []
                if len(users) == 1 and users[0].node is each and users[0].can_inplace:
                    places.append(name)
            if places:
                found.append((result, sizes[result], places))
    return found


def _in_place(operator: _Operator, freed: dict[str, int], memories: dict[str, str]) -> dict[str, str]:
    """The results of merged loops that go into buffers that are read for the last time, and those, as inductor decides it. Some are not
    `made` in the end, but a later one may go where they would be. `memories`: those of what is handed over, by name."""
    taken: dict[str, str] = {}
    for result, size, places in operator.places:
        for name in places:
            is_again = name in taken and (name not in operator.made or name in freed)
            memory = taken[name] if is_again else memories.get(name, name)
            if freed.get(memory) == size and (is_again or memory not in taken.values()):
                taken[result] = memory
                break
    return {result: memory for result, memory in taken.items() if result in operator.made}
