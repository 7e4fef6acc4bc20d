"""The bytes that a half of a joint graph will take, from the order in which its backend will run it.

Inductor is asked for its schedule, after it has merged loops and put them in order, and stopped before it generates code. A
buffer that lives within one merged loop gets no memory, and a loop that is the last to read a buffer may write into it.
"""

from __future__ import annotations

import copy
from contextlib import suppress
from typing import Any
from unittest.mock import patch

from torch import fx
from torch._guards import detect_fake_mode

from ._costs import COSTS, loops
from ._joint import Joint, Others
from ._kinds import Kind, is_size, kind_of
from ._sizes import Sizes, bytes_of, rounded
from ._torch import partitioners


class Halves:
    """Bytes above those live before the graph runs: while forward runs, while others do, and while backward does."""

    def __init__(self, joint: Joint, saved: list[int], others: Others = Others()) -> None:
        forward, backward = _split(joint, saved)
        self.hand_over(joint, saved)
        self.saved = sum(joint.bytes[at] for at in self._roots)
        handed = {joint.nodes[at].name: joint.roots[at] for at in saved}
        # Gradients that nobody else has are freed alike.
        freed = {joint.nodes[at].name: joint.roots[at] for at in joint.freed(others)}
        handed |= freed
        sizes = {root: joint.bytes[root] for root in handed.values()}
        kept = self._kept(others)
        self.others = others
        self.gradients = sum(joint.bytes[at] for at in {joint.roots[at] for at in joint.backward_outputs})
        self.between = self.saved + self.held(Others())
        in_forward, in_backward = _eager_peak(forward, {}, {}, set()), _eager_peak(backward, handed, sizes, kept)
        self.forward, self._in_backward = in_forward, in_backward
        if joint.fuses:
            self._in_backward = _scheduled_peak(
                backward, joint.sizes, handed, sizes, kept, set(freed), is_backward=True) or in_backward
            self.forward = min(in_forward, _eager_peak(forward, {}, {}, set(), merges=True))
            # What is no more than other peaks need not be known better.
            if self.forward > max(self.between, self.backward):
                self.forward = _scheduled_peak(forward, joint.sizes, {}, {}, set(), set(), is_backward=False) or in_forward

    def hand_over(self, joint: Joint, saved: list[int]) -> None:
        self._joint, self._handed_over, self._roots = joint, saved, {joint.roots[at] for at in saved}

    def beside(self, others: Others) -> Halves:
        """The same halves, beside those others."""
        if self._joint.freed(others) != self._joint.freed(self.others) or self._kept(others) != self._kept(self.others):
            return Halves(self._joint, self._handed_over, others)
        result = copy.copy(self)
        result.others = others
        return result

    def _kept(self, others: Others) -> set[int]:
        """What is handed over and an output as well, so that somebody has it until backward ends."""
        return self._roots & self._joint.outputs_in_backward(others)

    def held(self, others: Others) -> int:
        return sum(self._joint.bytes[at] for at in self._joint.outputs_in_backward(others) - self._roots)

    def between_with(self, sizes: dict[str, int], others: Others) -> int:
        """What is handed over and held in a call with these sizes."""
        return sum(self._joint.bytes_with(at, sizes) for at in self._roots | self._joint.outputs_in_backward(others))

    @property
    def late(self) -> int:
        """What is handed over and held while backward of later graphs runs."""
        return sum(self._joint.bytes[at] for at in self._roots | self._joint.outputs_in_later_backward(self.others))

    @property
    def at_backward(self) -> int:
        """When backward begins."""
        return self.saved + self.held(self.others) + self._joint.bytes_beside_backward(self.others)

    @property
    def backward(self) -> int:
        return self._in_backward + self.at_backward - self.saved

    @property
    def peak(self) -> int:
        return max(self.early_peak, self.late_peak)

    @property
    def early_peak(self) -> int:
        """Until the first backward of the step begins."""
        return max(self.forward, self.between + self.others.between)

    @property
    def late_peak(self) -> int:
        return max(self.late + self.others.late, self.backward)


def _split(joint: Joint, saved: list[int]) -> tuple[fx.GraphModule, fx.GraphModule]:
    """As torch will split the graph when it is handed `saved`."""
    nodes = [*joint.info.inputs, *(joint.nodes[at] for at in saved)]
    values, sizes = [each for each in nodes if not is_size(each)], [each for each in nodes if is_size(each)]
    forward, backward = partitioners._extract_fwd_bwd_modules(
        joint.module, values, saved_sym_nodes=sizes, num_fwd_outputs=joint.outputs_of_forward,
        static_lifetime_input_nodes=joint.info.static_lifetime_input_nodes)
    backward = partitioners.reordering_to_mimic_autograd_engine(backward)
    return partitioners.raise_getitems(forward), partitioners.raise_getitems(backward)


def _eager_peak(module: fx.GraphModule, handed: dict[str, int], sizes: dict[int, int], kept: set[int], *, merges: bool = False) -> int:
    """Operators one after another; a result is freed after the last operator that reads it or a view of it. `handed`: what
    forward hands over, by the name of the input, and on which memory, whose bytes are in `sizes`; that of `kept` is not
    freed. `merges`: an estimate for a compiler that merges loops, each into the only one that reads it, and runs those that
    only the caller reads as soon as it can."""
    nodes = list(module.graph.nodes)
    kinds = {node: kind_of(node) for node in nodes}
    if merges:
        nodes = _with_early_loops(nodes, kinds)
    on: dict[fx.Node, frozenset[fx.Node]] = {}  # the memory that is read with it
    last: dict[fx.Node, int] = {}
    first_on: dict[int, fx.Node] = {}
    for at, node in enumerate(nodes):
        inputs = node.all_input_nodes
        if inputs and (kinds[node] is Kind.VIEW or kinds[node] is Kind.ITEM and kinds[inputs[0]] is Kind.VIEW):
            on[node] = on[inputs[0]]
        elif merges and kinds[node] is Kind.LOOP and _is_merged(node, kinds):
            on[node] = frozenset().union(*(on[each] for each in inputs))
        else:
            on[node] = frozenset((node,))
        if node.op == "placeholder" and node.name in handed:
            on[node] = frozenset((first_on.setdefault(handed[node.name], node),))
        for each in (node, *inputs):
            last.update(dict.fromkeys(on[each], at))
    freed: dict[int, list[fx.Node]] = {}
    for node, at in last.items():
        freed.setdefault(at, []).append(node)
    live = peak = 0
    size: dict[fx.Node, int] = {}
    for at, node in enumerate(nodes):
        is_own = node in on[node]
        if node.op == "placeholder":
            size[node] = sizes.get(handed.get(node.name, -1), 0) if is_own else 0
        elif node.op == "call_function" and is_own:
            size[node] = bytes_of(node)
            several = [user for user in node.users if kinds[user] is Kind.ITEM] if not size[node] else []
            workspace = COSTS.call(node)[1] if kinds[node] not in (Kind.ITEM, Kind.INPUT) else 0
            peak = max(peak, live + size[node] + workspace + sum(bytes_of(each) for each in several))
        live += size.get(node, 0)
        peak = max(peak, live)
        if node.op != "placeholder":
            live -= sum(size.get(each, 0) for each in freed.get(at, ()) if handed.get(each.name) not in kept)
    return peak


def _with_early_loops(nodes: list[fx.Node], kinds: dict[fx.Node, Kind]) -> list[fx.Node]:
    slot: dict[fx.Node, int] = {}
    for at, node in enumerate(nodes):
        is_early = loops(kinds[node]) and node.all_input_nodes and all(user.op == "output" for user in node.users)
        slot[node] = max(slot[each] for each in node.all_input_nodes) if is_early else at
    return sorted(nodes, key=slot.__getitem__)


def _is_merged(node: fx.Node, kinds: dict[fx.Node, Kind]) -> bool:
    readers = list(node.users)
    while len(readers) == 1 and kinds[readers[0]] is Kind.VIEW:
        readers = list(readers[0].users)
    return len(readers) == 1 and loops(kinds[readers[0]])


class _Scheduled(BaseException):
    """Ends inductor's compilation; no `except Exception` on the way may stop it."""


def _scheduled_peak(module: fx.GraphModule, symbols: Sizes, handed: dict[str, int], sizes: dict[int, int], kept: set[int],
                    freed: set[str], *, is_backward: bool) -> int | None:
    """None where there is nothing to put in order. `freed`: names of gradients that are handed over too; the others are those
    of `_eager_peak`."""
    from torch._dynamo.repro import after_aot
    from torch._inductor import compile_fx, config
    from torch._inductor import memory as inductor_memory

    placeholders = module.graph.find_nodes(op="placeholder")
    for node in placeholders:
        node.meta = dict(node.meta)  # else it is the joint graph's, and inductor writes to it
    logged: Any = module
    logged.print_readable = lambda *args, **options: ""  # texts for logs take long to make
    workspaces = {node.name: COSTS.call(node)[1] for node in module.graph.nodes
                  if node.op == "call_function" and kind_of(node) is Kind.CALL}
    found: list[int] = []
    memory: Any = inductor_memory
    compiler: Any = compile_fx
    ordered, is_held, propagate = memory.reorder_for_peak_memory, memory.is_nonfreeable_buffers, compiler.fake_tensor_prop

    def look(nodes: list[Any], *rest: Any) -> Any:
        result = ordered(nodes, *rest)
        _, inputs = memory.prepare_planning_info(result, *rest)
        estimate, while_run = memory.estimate_peak_memory(result, inputs, rest[3])
        # Inductor does not know which gradients are, so that its order and its estimate are as if none were.
        with patch.object(memory, "is_nonfreeable_buffers", lambda read: read.name not in freed and is_held(read)):
            found.append(_peak_of_schedule(result, rest, workspaces, symbols, _Reuse(estimate, while_run), handed, sizes, kept))
        raise _Scheduled

    def known(module: fx.GraphModule, inputs: list[Any], *rest: Any) -> Any:
        """The nodes have their fake tensors already, as the joint graph's."""
        return detect_fake_mode(inputs) or propagate(module, inputs, *rest)

    inputs = [node.meta["val"] for node in placeholders]
    with (patch.object(memory, "reorder_for_peak_memory", look), patch.object(compiler, "fake_tensor_prop", known),
          patch.object(after_aot, "save_graph_repro", lambda *args, **options: None),
          config.patch(fx_graph_cache=False, fx_graph_remote_cache=False), symbols.without_guards(), suppress(_Scheduled)):
        compiler.compile_fx_inner(module, inputs, static_input_idxs=(), is_backward=is_backward)
    return found[0] if found else None


class _Reuse:
    """A buffer that is freed, and taken again for a later one of its form: its memory is never given back between the two.
    Inductor does so where its own estimate of the peak stays as it is."""

    def __init__(self, estimate: int, while_run: list[int]) -> None:
        """Inductor's estimates of the peak, and of the bytes while each operator runs."""
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
        self.held.append((since.pop() + 1, at, rounded(size)))


def _peak_of_schedule(nodes: list[Any], rest: tuple[Any, ...], workspaces: dict[str, int], symbols: Sizes, reuse: _Reuse,
                      handed: dict[str, int], sizes: dict[int, int], kept: set[int]) -> int:
    from torch._inductor import memory
    from torch._inductor.virtualized import V

    if symbols.upper:
        # The order is of the sizes that are there, and so is the code; bytes are of the upper end. Nothing comes after.
        V.graph.dep_size_hint_cache.clear()
        known: Any = V.graph.sizevars
        replaced = known.remove_precomputed_replacements
        known.optimization_hint = lambda size, fallback=None: symbols.most(size if isinstance(size, int) else replaced(size))
    _, inputs = memory.prepare_planning_info(nodes, *rest)
    outputs = rest[3]
    buffers, _, _ = memory.compute_memory_timeline(nodes, inputs, outputs)
    count = len(nodes)
    made: list[dict[str, int]] = [{} for _ in range(count + 1)]
    freed: list[dict[str, int]] = [{} for _ in range(count + 1)]
    forms: dict[str, Any] = {}
    live = sum(sizes.values())
    last_read: dict[int, int] = {}
    for each in buffers:
        end = each.end_step if each.end_step >= 0 else count
        if isinstance(each.buffer, memory.FreeableInputBuffer):
            # A view that is handed over keeps all of the memory that it is in.
            root = handed.get(each.buffer.name)
            if root is not None:
                last_read[root] = max(last_read.get(root, 0), end)
            continue
        first = nodes[each.start_step]
        name = each.buffer.get_name()
        if not first.is_extern() and end == each.start_step and name not in outputs:
            continue
        made[each.start_step][name] = rounded(each.size_alloc)
        freed[end][name] = rounded(each.size_free)
        if each.size_alloc and each.size_alloc == each.size_free:
            forms[name] = each.buffer.node.get_device(), each.buffer.node.get_dtype(), each.size_alloc
    for root in last_read.keys() - kept:
        freed[last_read[root]][f"memory {root}"] = sizes[root]
    during: list[int] = []
    waiting: list[tuple[str, int]] = []
    for at in range(count):
        in_place = {} if nodes[at].is_extern() else _in_place(nodes[at], made[at], freed[at])
        for name in (each for each in made[at] if each in forms and each not in in_place):
            reuse.take(forms[name], forms[name][2], at)
        live += sum(size for name, size in made[at].items() if name not in in_place)
        during.append(live + _workspace(nodes[at], workspaces))
        waiting += [(name, size) for name, size in freed[at].items() if name not in in_place.values()]
        if at + 1 < count and _are_one_kernel(nodes[at], nodes[at + 1]):
            continue
        for name, size in waiting:
            live -= size
            if name in forms:
                reuse.free(forms[name], at)
        waiting.clear()
    for first, end, size in reuse.held:
        for at in range(first, end):
            during[at] += size
    return max(during, default=live)


def _are_one_kernel(node: Any, following: Any) -> bool:
    """For a CPU, loops one after another are one function of C++, after which buffers are freed."""
    return not node.is_extern() and not following.is_extern() and all(
        each.get_device() is not None and each.get_device().type == "cpu" for each in (node, following))


def _in_place(node: Any, made: dict[str, int], freed: dict[str, int]) -> dict[str, str]:
    """The results of merged loops that go into buffers that are read for the last time, and those, as inductor decides it."""
    scheduler = node.scheduler
    inside = {each.get_name() for each in node.get_nodes()}
    taken: dict[str, str] = {}
    for each in node.get_nodes():
        for result in (output.get_name() for output in each.get_outputs()):
            size = made.get(result)
            for name in (read.name for read in each.read_writes.reads if size and freed.get(read.name) == size):
                buffer = scheduler.name_to_buf.get(name)
                users = [user for user in buffer.users if user.node.get_name() in inside - each.ancestors] if buffer else []
                if name not in taken.values() and len(users) == 1 and users[0].node is each and users[0].can_inplace:
                    taken[result] = name
                    break
    return taken


def _workspace(node: Any, workspaces: dict[str, int]) -> int:
    if not node.is_extern() or node.node is None:
        return 0
    return max((workspaces.get(each.name, 0) for each in node.node.origins), default=0)


