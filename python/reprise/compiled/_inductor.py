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

from ._again import repeated_in_time
from ._costs import COSTS
from ._draws import drawn_in_order, draws_in
from ._joint import InMemory, Joint, Loops, Vectors
from ._key import key_of_half
from ._kinds import Kind, kind_of
from ._layouts import changes_layouts, laid_out, laid_out_as_default
from ._loops import calls_of, kernels_of, loops_of, vectors_of
from ._sizes import bytes_of, numbers
from ._timeline import Handing, Timeline, timeline_of
from ._torch import comparing_numbers, merges_refused_early, results_updated_once, without_warnings_of_nodes, written_before_read
from ._vectors import added_up


class _Scheduled(BaseException):
    """Ends inductor's compilation; no `except Exception` on the way may stop it."""


@dataclasses.dataclass(frozen=True)
class Schedule:
    timeline: Timeline
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
    costs: dict[str, tuple[int, int]]  # nanoseconds and workspace of calls in the layouts that inductor chose, by name

    def peak(self, handing: Handing = Handing(), known: list[int] | None = None) -> int:
        """In bytes. `handing`: what forward hands over, for backward's. `known`: what inductor is told of each operator's bytes."""
        return self.timeline.peak(handing, known)


def schedule_of(module: fx.GraphModule, joint: Joint, handing: Handing | None = None) -> Schedule | None:
    """Of a half of the joint graph: of backward, which gets `handing`, or of forward. None where there is nothing to put in
    order. Halves that are alike have one. What calls of operators cost is noted in the joint graph."""
    key = key_of_half(module, handing and (sorted(handing.donated), handing.strides), joint.draw_order)
    if key not in joint.schedules:
        joint.schedules[key] = _make_schedule(module, joint, handing)
    schedule: Schedule | None = joint.schedules[key]
    if schedule:
        joint.costs = schedule.costs | joint.costs
        joint.newest_costs |= schedule.costs
    return schedule


def _make_schedule(module: fx.GraphModule, joint: Joint, handing: Handing | None) -> Schedule | None:
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
    propagate = compiler.fake_tensor_prop

    def look(nodes: list[Any], *rest: Any) -> Any:
        result = ordered(nodes, *rest)
        costs: dict[str, tuple[int, int]] = {}
        workspaces = [_workspace(each, calls, costs) for each in result]
        timeline = timeline_of(result, rest, workspaces, joint.sizes)
        results: Any = (*_results(module, joint, names), draws_in(result, joint.draws), {}, {})
        if is_backward:
            (loops, operands), (others, arguments) = loops_of(result, joint), calls_of(result, joint)
            results = {}, {}, {}, [], loops | others, arguments | operands
        results += (*vectors_of(result, joint), *kernels_of(result, joint), costs)
        found.append(Schedule(timeline, *results))
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


def _workspace(node: Any, calls: set[str], costs: dict[str, tuple[int, int]]) -> int:
    from torch._inductor import ir

    if not node.is_extern() or node.node is None or isinstance(node.node, ir.MultiOutput):
        return 0
    most = 0
    for origin in node.node.origins:
        if origin.name in calls:
            strides = _strides_of(node.node, origin)
            costs[origin.name] = COSTS.call(origin, strides)
            most = max(most, costs[origin.name][1])
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
