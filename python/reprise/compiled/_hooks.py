"""The ways into torch.compile: every backend that is built on AOTAutograd calls one function of torch's to split a graph,
and one to choose what forward hands to backward. While a budget is active, both are its own."""

from __future__ import annotations

import contextlib
import functools
import inspect
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import torch
from torch import fx
from torch._dynamo import compiled_autograd
from torch._guards import active_fake_mode
from torch._functorch import config

from .. import _graphs
from .._reprise import Error, UsageError, is_in_step, unseen
from ._again import Cut, repeated_in_time, repeating
from ._call import WatchedCall
from ._draws import drawn_in_order
from ._joint import Joint
from ._layouts import laid_out_as_default
from ._sizes import Binding
from ._timeline import reused_within_bytes
from ._torch import autograd_grad, common, partitioners, written_before_read
from ._vectors import added_up, masks_in_vectors


CUDA_GRAPHS = "reprise.compile: CUDA graphs keep the memory of a step, so that there is nothing to plan; take another mode than " \
              "reduce-overhead and max-autotune, and leave torch._inductor.config.triton.cudagraphs off"

# References to what one list has: its own, the caller's variable, and the argument of the call that counts them.
_ALONE = 3
# The key of the call in the metadata of the nodes of autograd that belong to it.
_CALL = "reprise"


class Graph(Protocol):
    """One compiled graph, as the hooks speak to it."""

    backend: str

    def refused(self, error: UsageError) -> None:
        """Raises it, or returns where the graph may be split as torch does."""

    def choose(self, joint: Joint, default: list[fx.Node]) -> Cut: ...
    def finish(self, forward: fx.GraphModule, backward: fx.GraphModule) -> Sequence[str]:
        """Changes the halves as the plan asks, before they are compiled. Gives the order in which forward is to draw."""
        ...

    def forward_begins(self, sizes: dict[str, int]) -> object:
        """`sizes`: of this call, by symbol, where they vary."""
        ...

    def forward_ends(self, call: Any, outputs: list[torch.Tensor]) -> None: ...
    def backward_begins(self, call: Any, freed: tuple[bool, ...]) -> None:
        """`call`: what forward_begins() gave, or None where that is not known. `freed`: of each gradient that comes in, whether
        backward frees it after its last use."""
        ...

    def backward_ends(self, call: Any, is_whole: bool) -> None:
        """`is_whole`: it has not failed."""
        ...


def _check_torch() -> None:
    expected = {
        (common, "aot_module_simplified"): {"mod", "args", "bw_compiler", "partition_fn"},
        (partitioners, "choose_saved_values_set"): {"joint_graph", "node_info", "memory_budget"},
        (partitioners, "classify_nodes"): {"joint_module", "num_fwd_outputs"},
        (partitioners, "_extract_graph_with_inputs_outputs"): {"inputs", "outputs", "subgraph"},
        (partitioners, "_extract_fwd_bwd_modules"): {"joint_module", "saved_values", "saved_sym_nodes", "num_fwd_outputs"},
        (partitioners, "reordering_to_mimic_autograd_engine"): {"gm"},
        (partitioners, "raise_getitems"): {"gm"},
    }
    for (module, name), parameters in expected.items():
        found = getattr(module, name, None)
        if found is None or not parameters <= set(inspect.signature(found).parameters):
            raise Error(f"reprise.compile: torch {torch.__version__} has no {module.__name__}.{name} of the form that torch "
                        "2.13 has, which a budget for compiled graphs needs; use reprise.MemoryBudget without torch.compile, "
                        "or torch 2.13")


@contextlib.contextmanager
def planning(begin_graph: Callable[[str | UsageError], Graph | None]) -> Iterator[None]:
    """Graphs that are compiled inside are planned by what `begin_graph` gives for the backend's name, or for the reason why
    its graphs cannot be. None leaves a graph to torch."""
    _check_torch()
    original = common.aot_module_simplified

    @functools.wraps(original)
    def with_plan(module: Any, arguments: Any, *rest: Any, **named: Any) -> Any:
        return _compile(original, begin_graph, module, arguments, rest, named)

    common.aot_module_simplified = with_plan
    try:
        # A plan depends on bytes that torch's cache of compiled graphs does not know.
        with config.patch(enable_autograd_cache=False):
            yield
    finally:
        common.aot_module_simplified = original


def _compile(original: Callable[..., Any], begin_graph: Callable[[str | UsageError], Graph | None], module: Any, arguments: Any,
             rest: tuple[Any, ...], named: dict[str, Any]) -> Any:
    WatchedCall.compilations += 1
    given = inspect.signature(original).bind(module, arguments, *rest, **named)
    given.apply_defaults()
    options = given.arguments
    partition = options["partition_fn"]
    graph = begin_graph(_backend_of(partition))
    if graph is None:
        return original(*given.args, **given.kwargs)
    is_planned: list[bool] = []

    def split(joint: fx.GraphModule, inputs: Any, **known: Any) -> Any:
        with _choosing(graph, is_planned):
            halves = partition(joint, inputs, **known)
        keep_order(graph.finish(*halves))
        until_compiled.enter_context(added_up(halves[0]))
        until_compiled.enter_context(laid_out_as_default(halves[0]))
        until_compiled.enter_context(masks_in_vectors())
        return halves

    backward = options["bw_compiler"] or options["fw_compiler"]

    def compile_backward(half: Any, inputs: Any) -> Any:
        WatchedCall.compilations += 1
        with (repeated_in_time(half), written_before_read(), added_up(half), laid_out_as_default(half), masks_in_vectors(),
              reused_within_bytes(half)):
            compiled = backward(half, inputs)
        WatchedCall.compilations += 1
        if not getattr(compiled, "_boxed_call", False):
            graph.refused(UsageError(
                f"reprise.compile: the backend's backward is a {type(compiled).__name__} that keeps its arguments alive, so that "
                "nothing can be freed in it; use the backend inductor or aot_eager"))
            return compiled

        gradients = [at for at, node in enumerate(half.graph.find_nodes(op="placeholder")) if partitioners._is_tangent(node)]

        def run(values: Any) -> Any:
            is_whole = False
            node = torch._C._current_autograd_node()
            call = None if node is None else _metadata_of(node).get(_CALL)
            try:
                graph.backward_begins(call, tuple(_is_alone_in(values, at) for at in gradients))
                results = compiled(values)
                is_whole = True
                return results
            finally:
                graph.backward_ends(call, is_whole)

        run._boxed_call = True  # type: ignore[attr-defined]
        return run

    options["partition_fn"], options["bw_compiler"] = split, compile_backward
    with drawn_in_order() as keep_order, written_before_read(), contextlib.ExitStack() as until_compiled:
        compiled = original(*given.args, **given.kwargs)
    WatchedCall.compilations += 1
    if not is_planned:
        _warn_of_gradients_within(module)
        return compiled
    binding = Binding(module)

    @functools.wraps(compiled)
    def run(*values: Any) -> Any:
        if active_fake_mode() is not None:  # what torch does for DDP to know the results' layouts; nothing runs
            return compiled(*values)
        try:
            refuse_compiled_autograd()
        except UsageError as error:
            graph.refused(error)
        call = graph.forward_begins(binding.sizes(values))
        with _graphs.planned():
            results = compiled(*values)
        outputs = [each for each in (results if isinstance(results, (list, tuple)) else (results,))
                   if isinstance(each, torch.Tensor)]
        for each in outputs:
            if each.grad_fn is not None:
                _metadata_of(each.grad_fn)[_CALL] = call  # it lives as long as a backward can come
        graph.forward_ends(call, outputs)
        return results

    return run


def refuse_compiled_autograd() -> None:
    if torch._dynamo.config.compiled_autograd or compiled_autograd.compiled_autograd_enabled:
        raise UsageError("reprise.compile: compiled autograd makes another graph of backward than the one that is planned; "
                         "turn torch._dynamo.config.compiled_autograd off")


def _warn_of_gradients_within(module: Any) -> None:
    if any(node.target in (torch.autograd.grad, autograd_grad) for node in getattr(getattr(module, "graph", None), "nodes", ())):
        warnings.warn(
            "reprise.compile: a graph makes gradients within itself, by torch.func.grad or torch.autograd.grad in the compiled code. "
            "It hands nothing to a backward, and memory_budget binds nothing of it. Compile the function that gives the loss, and "
            "take its gradients outside", stacklevel=2)


def _refuse_cuda_graphs(backend: str) -> None:
    """They may be switched on by a mode of torch.compile, which no budget sees, or in inductor's configuration."""
    if backend == "inductor" and sys.modules["torch._inductor.config"].triton.cudagraphs:
        raise UsageError(CUDA_GRAPHS)


def _is_alone_in(values: list[Any], at: int) -> bool:
    """Whether the tensor is freed where the list frees it. Autograd has those that it was given; those that it was not given
    are zeros of the compiler's own."""
    value = values[at]
    return isinstance(value, torch.Tensor) and values[at]._use_count() == 1 and sys.getrefcount(value) == _ALONE


def _metadata_of(node: Any) -> dict[str, object]:
    found: dict[str, object] = node.metadata
    return found


def _backend_of(partition: Callable[..., Any]) -> str | UsageError:
    """"inductor", or "eager" for backends that run operators as they are. An error for other ways to split."""
    while isinstance(partition, functools.partial):
        partition = partition.func
    if partition is partitioners.min_cut_rematerialization_partition:
        return "eager"
    if partition.__module__ == "torch._inductor.compile_fx":
        return "inductor"
    return UsageError(f"reprise.compile: the backend splits graphs by {partition.__module__}.{partition.__qualname__}, which "
                      "chooses by itself what forward keeps; use the backend inductor or aot_eager")


@contextlib.contextmanager
def _choosing(graph: Graph, is_planned: list[bool]) -> Iterator[None]:
    choose, classify = partitioners.choose_saved_values_set, partitioners.classify_nodes
    known: dict[str, Any] = {}

    @functools.wraps(classify)
    def classify_and_note(joint_module: Any, *rest: Any, **named: Any) -> Any:
        given = inspect.signature(classify).bind(joint_module, *rest, **named)
        known.update(module=joint_module, outputs=given.arguments["num_fwd_outputs"])
        return classify(*given.args, **given.kwargs)

    @functools.wraps(choose)
    def choose_by_plan(joint_graph: fx.Graph, node_info: Any, memory_budget: float = 1) -> list[fx.Node]:
        if not 0 <= memory_budget <= 1:
            choose(joint_graph, node_info, memory_budget)  # raises torch's error
        default: list[fx.Node] = choose(joint_graph, node_info)
        try:
            refuse_compiled_autograd()
            _refuse_cuda_graphs(graph.backend)
            joint = Joint(known["module"], node_info, known["outputs"], fuses=graph.backend == "inductor", share=memory_budget)
        except UsageError as error:
            graph.refused(error)
            return default
        # Operators that are timed are no part of a step that is open.
        found: Any = unseen(graph.choose, joint, default) if is_in_step() else graph.choose(joint, default)
        cut: Cut = found
        is_planned.append(True)
        until_split.enter_context(repeating(joint, cut))
        return [*node_info.inputs, *(joint.nodes[at] for at in cut.saved)]

    partitioners.choose_saved_values_set, partitioners.classify_nodes = choose_by_plan, classify_and_note
    with contextlib.ExitStack() as until_split:
        try:
            yield
        finally:
            partitioners.choose_saved_values_set, partitioners.classify_nodes = choose, classify
