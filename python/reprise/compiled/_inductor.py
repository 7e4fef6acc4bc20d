"""The bytes that a half of a joint graph will take under inductor.

Inductor is asked for its schedule, after it has merged loops and put them in order, and stopped before it generates code. A
buffer that lives within one merged loop gets no memory, and a loop that is the last to read a buffer may write into it.
"""

from __future__ import annotations

import dataclasses
import math
from contextlib import suppress
from typing import Any
from unittest.mock import patch

import torch
from torch import fx
from torch._guards import detect_fake_mode

from ._again import operator_with_results, repeated_in_time
from ._costs import COSTS
from ._draws import drawn_in_order, draws_in
from ._joint import InMemory, Joint, Loops, Vectors
from ._kinds import Kind, kind_of
from ._layouts import changes_layouts, laid_out, laid_out_as_default
from ._loops import calls_of, kernels_of, loops_of, vectors_of
from ._sizes import Sizes, bytes_of, numbers, rounded
from ._torch import comparing_numbers, merges_refused_early, results_updated_once, without_warnings_of_nodes, written_before_read
from ._vectors import added_up


class _Scheduled(BaseException):
    """Ends inductor's compilation; no `except Exception` on the way may stop it."""


@dataclasses.dataclass(frozen=True)
class Handing:
    """What forward hands to backward."""

    memories: dict[str, int] = dataclasses.field(default_factory=dict)  # of each input of backward that is handed over, by name
    sizes: dict[int, int] = dataclasses.field(default_factory=dict)  # bytes of these memories
    kept: set[int] = dataclasses.field(default_factory=set)  # memories that somebody has until backward ends
    freed: frozenset[str] = frozenset()  # names of gradients, and of copies of inputs, that are handed over too
    donated: frozenset[str] = frozenset()  # names of what may be written after its last use
    strides: dict[str, tuple[int, ...]] = dataclasses.field(default_factory=dict)  # where they are not the graph's


@dataclasses.dataclass(frozen=True)
class Schedule:
    peak: int
    copies: dict[str, int]  # bytes of inputs that are returned in another layout, such as what convolutions read, by name
    strides: dict[str, tuple[int, ...]]  # of the results, by name
    in_memory: InMemory
    draws: list[str]  # the order of what may draw random numbers, by name
    loops: Loops  # of backward, and the layouts of what these read
    operands: InMemory
    vectors: Vectors
    elements: dict[str, int]  # of the vectors that are added up, by the name of the sum
    kernels: dict[str, int]  # the first that computes it, by name
    made: InMemory  # strides of what loops have computed


def schedule_of(module: fx.GraphModule, joint: Joint, handing: Handing | None = None) -> Schedule | None:
    """Of a half of the joint graph: of backward, which gets `handing`, or of forward. None where there is nothing to put in
    order. What calls of operators cost in the layouts that inductor chooses is noted in the joint graph."""
    from torch._dynamo.repro import after_aot
    from torch._inductor import compile_fx, config, graph
    from torch._inductor import memory as inductor_memory

    is_backward, handing = handing is not None, handing or Handing()
    placeholders = module.graph.find_nodes(op="placeholder")
    has_layouts = changes_layouts(module)  # that are not the graph's
    for node in placeholders:
        node.meta = dict(node.meta)  # else it is the joint graph's, and inductor writes to it
        strides = handing.strides.get(node.name)
        if strides is not None and strides != node.meta["val"].stride():
            node.meta["val"] = node.meta["val"].as_strided(node.meta["val"].shape, strides)
            has_layouts = True
    never_run: Any = module
    never_run.recompile = lambda: None
    never_run.print_readable = lambda *args, **options: ""  # texts for logs take long to make
    calls = {node.name for node in module.graph.nodes if node.op == "call_function" and kind_of(node) is Kind.CALL}
    names = [str(laid_out(each)) for each in module.graph.find_nodes(op="output")[0].args[0]]
    found: list[Schedule] = []
    memory: Any = inductor_memory
    compiler: Any = compile_fx
    is_held, propagate = memory.is_nonfreeable_buffers, compiler.fake_tensor_prop

    def look(nodes: list[Any], *rest: Any) -> Any:
        result = ordered(nodes, *rest)
        _, inputs = memory.prepare_planning_info(result, *rest)
        estimate, while_run = memory.estimate_peak_memory(result, inputs, rest[3])
        workspaces = [_workspace(each, calls, joint) for each in result]
        # Inductor does not know that these are freed, so that its order and its estimate are as if they stayed.
        with patch.object(memory, "is_nonfreeable_buffers", lambda read: read.name not in handing.freed and is_held(read)):
            peak = _peak_of_schedule(result, rest, workspaces, joint.sizes, _Reuse(estimate, while_run), handing)
        results: Any = (*_results(module, joint, names), draws_in(result, joint.draws), {}, {})
        if is_backward:
            (loops, operands), (others, arguments) = loops_of(result, joint), calls_of(result, joint)
            results = {}, {}, {}, [], loops | others, arguments | operands
        results += (*vectors_of(result, joint), *kernels_of(result, joint))
        found.append(Schedule(peak, *results))
        raise _Scheduled

    def known(module: fx.GraphModule, inputs: list[Any], *rest: Any) -> Any:
        """The nodes have their fake tensors already, as the joint graph's, unless they are in other layouts."""
        mode = None if has_layouts else detect_fake_mode(inputs)
        return mode or propagate(module, inputs, *rest)

    inputs = [node.meta["val"] for node in placeholders]
    places = [at for at, node in enumerate(placeholders) if node.name in handing.donated]
    with repeated_in_time(module):
        ordered = memory.reorder_for_peak_memory
        with (patch.object(memory, "reorder_for_peak_memory", look), patch.object(compiler, "fake_tensor_prop", known),
              patch.object(graph, "get_donated_idxs", lambda: places),
              # Reports of failed compilations take long as well.
              patch.object(after_aot, "save_graph_repro", lambda *args, **options: None),
              patch.object(compiler, "wrap_compiler_debug", lambda inner, compiler_name: inner, create=True),
              drawn_in_order() as keep_order, without_warnings_of_nodes(), comparing_numbers(), merges_refused_early(),
              written_before_read(), results_updated_once(), added_up(module), laid_out_as_default(module),
              config.patch(fx_graph_cache=False, fx_graph_remote_cache=False), joint.sizes.without_guards(), suppress(_Scheduled)):
            keep_order(joint.draw_order or ())
            compiler.compile_fx_inner(module, inputs, static_input_idxs=(), is_backward=is_backward)
    return found[0] if found else None


def _results(module: fx.GraphModule, joint: Joint, names: list[str]) -> tuple[dict[str, int], dict[str, tuple[int, ...]], InMemory]:
    """The copies and the layouts of a Schedule. `names`: of the results; the compiler may have put other nodes in their place."""
    from torch._inductor.virtualized import V

    copies: dict[str, int] = {}
    strides: dict[str, tuple[int, ...]] = {}
    (outputs,) = module.graph.find_nodes(op="output")[0].args
    for node, result, buffer, name in zip(outputs, V.graph.graph_outputs, V.graph.get_output_names(), names):
        if not isinstance(node, fx.Node) or not isinstance(node.meta.get("val"), torch.Tensor):
            continue
        is_of_input = name in joint.named and joint.nodes[joint.roots[joint.named[name]]].op == "placeholder"
        if is_of_input and buffer not in V.graph.graph_inputs:
            copies[name] = bytes_of(node)
        stride = numbers(result.maybe_get_stride())
        if stride is not None:
            strides[name] = stride
    return copies, strides, _in_memory(V.graph, joint)


def _in_memory(lowered: Any, joint: Joint) -> InMemory:
    """The loops whose results buffers hold, or whole views of these."""
    from torch._inductor import ir

    found: InMemory = {}
    for buffer in lowered.buffers:
        if isinstance(buffer, ir.ComputedBuffer) and not isinstance(buffer.data, ir.Scatter):
            origins = [joint.named[each.name] for each in buffer.origins if each.name in joint.named]
            # The operator that asked for the buffer may be among them.
            last = max((at for at in origins if joint.kinds[at] is not Kind.CALL), default=None)
            if last is not None and joint.kinds[last] in (Kind.LOOP, Kind.VIEW):
                node, size = joint.nodes[joint.roots[last]], numbers(buffer.get_size())
                value = node.meta["val"]
                if size is not None and math.prod(size) != value.numel():
                    continue  # a part of it
                is_own = not isinstance(buffer.layout, (ir.NonOwningLayout, ir.MutationLayoutSHOULDREMOVE))
                is_whole = is_own and size == tuple(value.shape)
                found[node.name] = numbers(buffer.get_stride()) if is_whole else None
    return found


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
        self.held.append((since.pop() + 1, at, rounded(size, form[0])))


def _peak_of_schedule(nodes: list[Any], rest: tuple[Any, ...], workspaces: list[int], symbols: Sizes, reuse: _Reuse,
                      handing: Handing) -> int:
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
    live = sum(handing.sizes.values())
    last_read: dict[int, int] = {}
    begins: dict[str, int] = {}
    ends: dict[str, int] = {}
    wholes: dict[str, Any] = {}
    # Of the results of an operator. All of them are there until then.
    last_taken = {operator_with_results(node.node): at for at, node in enumerate(nodes)}
    for each in buffers:
        end = each.end_step if each.end_step >= 0 else count
        if isinstance(each.buffer, memory.FreeableInputBuffer):
            # A view that is handed over keeps all of the memory that it is in.
            root = handing.memories.get(each.buffer.name)
            if root is not None:
                last_read[root] = max(last_read.get(root, 0), end)
            continue
        operator = operator_with_results(each.buffer.node)
        end = max(end, last_taken.get(operator, 0)) if operator else end
        owner = _owner_of(each.buffer.node)
        begins[owner] = min(begins.get(owner, each.start_step), each.start_step)
        ends[owner] = max(ends.get(owner, 0), end)
        if owner == each.buffer.get_name():
            wholes[owner] = each
    whole_sizes = {name: rounded(each.size_alloc, nodes[each.start_step].get_device()) for name, each in wholes.items()}
    for name, each in wholes.items():
        first = nodes[each.start_step]
        if not first.is_extern() and ends[name] == begins[name] and name not in outputs and not _is_loaded_again(first, name):
            continue
        made[begins[name]][name] = whole_sizes[name]
        freed[ends[name]][name] = rounded(each.size_free, first.get_device())
        if each.size_free and each.size_alloc in (0, each.size_free):
            forms[name] = each.buffer.node.get_device(), each.buffer.node.get_dtype(), each.size_free
    # An input of a CPU's graph may lie at any address, and so may what is written in its place. Such memory is not reused for others.
    unaligned = set(V.graph.unaligned_buffers)
    for root in last_read.keys() - handing.kept:
        freed[last_read[root]][f"memory {root}"] = handing.sizes[root]
    memories = {name: f"memory {root}" for name, root in handing.memories.items()}
    unaligned.update(memories[name] for name in memories.keys() & unaligned)
    during: list[int] = []
    waiting: list[tuple[str, int]] = []
    for at in range(count):
        in_place = {} if nodes[at].is_extern() else _in_place(nodes[at], whole_sizes, made[at], freed[at], memories)
        unaligned.update(name for name, place in in_place.items() if place in unaligned)
        for name in (each for each in made[at] if each in forms and each not in in_place):
            if wholes[name].buffer.node.should_allocate():  # others are in memory that their operator allocates
                reuse.take((*forms[name], name in unaligned), forms[name][2], at)
        live += sum(size for name, size in made[at].items() if name not in in_place)
        during.append(live + workspaces[at])
        waiting += [(name, size) for name, size in freed[at].items() if name not in in_place.values()]
        if at + 1 < count and _are_one_kernel(nodes[at], nodes[at + 1]):
            continue
        for name, size in waiting:
            live -= size
            if name in forms:
                reuse.free((*forms[name], name in unaligned), at)
        waiting.clear()
    for first, end, size in reuse.held:
        for at in range(first, end):
            during[at] += size
    return max(during, default=live)


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


def _in_place(node: Any, sizes: dict[str, int], made: dict[str, int], freed: dict[str, int], memories: dict[str, str]) -> dict[str, str]:
    """The results of merged loops that go into buffers that are read for the last time, and those, as inductor decides it. Some are not
    `made` in the end, but a later one may go where they would be. `memories`: those of what is handed over, by name."""
    scheduler = node.scheduler
    inside = {each.get_name() for each in node.get_nodes()}
    taken: dict[str, str] = {}
    for each in node.get_nodes():
        for result in (output.get_name() for output in each.get_outputs()):
            size = sizes.get(result)
            for name in (read.name for read in each.read_writes.reads if size):
                is_again = name in taken and (name not in made or name in freed)
                memory = taken[name] if is_again else memories.get(name, name)
                if freed.get(memory) != size or not is_again and memory in taken.values():
                    continue
                buffer = scheduler.name_to_donated_buffer.get(name) or scheduler.name_to_buf.get(name)
                users = [user for user in buffer.users if user.node.get_name() in inside - each.ancestors] if buffer else []
                if len(users) == 1 and users[0].node is each and users[0].can_inplace:
                    taken[result] = memory
                    break
    return {result: memory for result, memory in taken.items() if result in made}


def _workspace(node: Any, calls: set[str], joint: Joint) -> int:
    from torch._inductor import ir

    if not node.is_extern() or node.node is None or isinstance(node.node, ir.MultiOutput):
        return 0
    most = 0
    for origin in node.node.origins:
        if origin.name in calls:
            strides = _strides_of(node.node, origin)
            cost = COSTS.call(origin, strides)
            joint.costs.setdefault(origin.name, cost)
            joint.newest_costs[origin.name] = cost
            most = max(most, cost[1])
    return most


def _strides_of(call: Any, node: fx.Node) -> list[tuple[int, ...]] | None:
    """Of the tensors that the operator is called with, where they are its arguments."""
    tensors = [each.meta["val"] for each in node.all_input_nodes if isinstance(each.meta.get("val"), torch.Tensor)]
    inputs = call.inputs if isinstance(call.inputs, (list, tuple)) else []
    sizes = [numbers(each.maybe_get_size()) for each in inputs]
    strides = [numbers(each.maybe_get_stride()) for each in inputs]
    if None in strides or sizes != [tuple(each.shape) for each in tensors]:
        return None
    return strides  # type: ignore[return-value]
