"""The private parts of torch that the package uses, in one place and without types."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from types import CodeType, ModuleType
from typing import Any
from unittest.mock import patch

import sympy  # type: ignore[import-untyped]
import torch
from torch import fx
from torch._C._dynamo import eval_frame
from torch._dynamo import OptimizedModule as OptimizedModule
from torch._dynamo import external_utils as _external_utils
from torch._dynamo import guards as _guards
from torch._dynamo import symbolic_convert as _symbolic_convert
from torch._dynamo.backends import common as _common
from torch._functorch import eager_transforms as _eager_transforms
from torch._functorch import partitioners as _partitioners
from torch._functorch._aot_autograd import descriptors as _descriptors
from torch.fx import graph as _graph
from torch.utils import _pytree

InputMutationAOTOutput: Any = _descriptors.InputMutationAOTOutput
PlainAOTOutput: Any = _descriptors.PlainAOTOutput
InstructionTranslator: Any = _symbolic_convert.InstructionTranslator
autograd_grad: Any = _eager_transforms._autograd_grad  # of torch.func
common: Any = _common
partitioners: Any = _partitioners
reset_code: Any = eval_frame.reset_code


def name_of_frame(translator: Any) -> str:
    """Of the function that is compiled. torch wraps its own functions and modules in a function, and those are what a user calls."""
    code: CodeType = translator.f_code
    called = translator.f_locals.get("fn") if code.co_filename == _external_utils.__file__ else None
    if called is None:
        return str(getattr(code, "co_qualname", code.co_name))  # without its class in CPython 3.10
    return str(getattr(called, "__qualname__", type(called).__qualname__))


def _with(module: ModuleType, **replaced: Any) -> ModuleType:
    """The module with other functions of these names, for a module of torch that imports it."""
    result = ModuleType(module.__name__)
    vars(result).update(vars(module), **replaced)
    return result


def _leaves(*arguments: Any, **named: Any) -> list[Any]:
    leaves: list[Any] = []
    for each in (*arguments, *named.values()):
        if isinstance(each, (list, tuple, dict)):
            leaves += _pytree.tree_leaves(each)
        else:
            leaves.append(each)
    return leaves


# torch.fx.Graph goes through the arguments of each new node to warn of some.
_UNCHECKED = _with(_pytree, tree_iter=lambda tree: ())
# The partitioner looks for invalid nodes among the arguments of each node. Most arguments have nothing within.
_FLAT = _with(_pytree, arg_tree_leaves=_leaves)


def without_warnings_of_nodes() -> AbstractContextManager[Any]:
    """The nodes of new graphs are copies of others. To look for warnings of each takes a tenth of the time to plan."""
    return patch.object(_graph, "pytree", _UNCHECKED, create=True)


class _Comparison:
    """One of sympy's, which takes long where both are numbers, as most sizes are."""

    def __init__(self, compare: Callable[[int, int], bool], slow: Any) -> None:
        self._compare, self._slow = compare, slow

    def __call__(self, left: Any, right: Any, **options: Any) -> Any:
        are_numbers = (isinstance(each, sympy.Integer) or type(each) is int for each in (left, right))
        if not options and all(are_numbers):
            return sympy.true if self._compare(int(left), int(right)) else sympy.false
        return self._slow(left, right, **options)

    def __instancecheck__(self, value: Any) -> bool:
        return isinstance(value, self._slow)


_SYMPY = _with(sympy, **{name: _Comparison(getattr(operator, name.lower()), getattr(sympy, name))
                         for name in ("Eq", "Ne", "Lt", "Le", "Gt", "Ge")})


@contextmanager
def comparing_numbers() -> Iterator[None]:
    """Inductor compares sizes faster."""
    from torch._inductor import ir, lowering, sizevars

    with patch.object(ir, "sympy", _SYMPY), patch.object(lowering, "sympy", _SYMPY), patch.object(sizevars, "sympy", _SYMPY):
        yield


@contextmanager
def merges_refused_early() -> Iterator[None]:
    """Inductor merges two loops of a CPU only if they read or write something at the same place. It asks of all pairs that have a buffer in
    common, such as the seeds of dropout, and looks at the places last. Here it looks at them first."""
    from torch._inductor import choices, config, scheduler
    from torch._inductor.virtualized import V

    ask = scheduler.Scheduler.can_fuse
    loops = scheduler.SchedulerNode, scheduler.FusedSchedulerNode
    accesses: dict[Any, tuple[Any, set[Any] | None]] = {}

    def accesses_of(loop: Any) -> set[Any] | None:
        found = accesses.get(loop)
        if found is None or found[0] is not loop.read_writes:
            is_plain = type(loop) in loops and loop.is_cpu() and not loop.is_template()
            found = accesses[loop] = loop.read_writes, {*loop.read_writes.reads, *loop.read_writes.writes} if is_plain else None
        return found[1]

    def ask_if_shared(self: Any, first: Any, second: Any, *rest: Any, **options: Any) -> bool:
        of_first, of_second = accesses_of(first), accesses_of(second)
        if of_first is not None and of_second is not None and of_first.isdisjoint(of_second):
            return False
        return bool(ask(self, first, second, *rest, **options))

    # What users may have set so that loops are merged by other rules.
    counts_parts = getattr(config, "min_overlap_ratio", 2) <= 1
    is_changed = getattr(V.choices, "can_fuse", None) is not choices.InductorChoices.can_fuse
    if config.aggressive_fusion or config.expand_dimension_for_pointwise_nodes or counts_parts or is_changed:
        yield
        return
    with patch.object(scheduler.Scheduler, "can_fuse", ask_if_shared):
        yield


def stored_apart(name: str, text: str) -> Any:
    """A context: inductor stores the code that it makes inside under another key. No function has that name: the entry only changes the key."""
    from torch._inductor import config

    return config.patch(unsafe_marked_cacheable_functions={**config.unsafe_marked_cacheable_functions, name: text})


@contextmanager
def results_updated_once() -> Iterator[None]:
    """Where inductor has changed a node of a graph, torch 2.13 computes its fake tensor anew, and then those of all nodes behind it: the
    new one always has another storage. Here the old one stays if both have storages of their own and differ in nothing else."""
    from torch._inductor import fx_utils

    compare: Any = getattr(fx_utils, "_is_fake_tensor_same", None)

    def compare_owned(new: Any, old: Any, storages: Any, *, check_storage: bool = True, node: Any = None, **options: Any) -> bool:
        if compare(new, old, storages, check_storage=check_storage, node=node, **options):
            return True
        are_tensors = isinstance(new, torch.Tensor) and isinstance(old, torch.Tensor)
        if node is None or not are_tensors or old.storage_offset() or fx_utils.get_storage(new) in storages:
            return False
        owned = fx_utils.get_storage(old)
        if any(fx_utils.get_node_storage(each) == owned for each in node.all_input_nodes):
            return False
        return bool(compare(new, old, storages, check_storage=False, node=node, **options))

    def arguments_of(node: fx.Node, module: Any = None) -> tuple[bool, Any, Any]:
        """As torch's own, which is slower."""
        return True, *fx.node.map_arg((node.args, node.kwargs), lambda each: fx_utils.get_fake(each, module))

    if compare is None:
        yield
        return
    with patch.object(fx_utils, "_is_fake_tensor_same", compare_owned), patch.object(fx_utils, "get_fake_args_kwargs", arguments_of):
        yield


@contextmanager
def written_before_read() -> Iterator[None]:
    """Where inductor gives a loop other sizes, torch 2.13 forgets which of its operands are written in place before
    (pytorch/pytorch#185509): loops could run too soon."""
    from torch._inductor import scheduler

    compute = scheduler.SchedulerNode.recompute_size_and_body

    def compute_and_rename(self: Any, *args: Any, **options: Any) -> None:
        compute(self, *args, **options)
        self.set_read_writes(self.read_writes.rename(self.mutation_renames))

    with patch.object(scheduler.SchedulerNode, "recompute_size_and_body", compute_and_rename):
        yield


@contextmanager
def backward_extracted_once() -> Iterator[None]:
    """torch extracts a backward twice, first to learn which of its inputs are used."""
    extract = _partitioners._extract_graph_with_inputs_outputs
    found: list[tuple[list[fx.Node], fx.Graph]] = []

    def once(joint: fx.Graph, inputs: list[fx.Node], outputs: Any, described: Any, subgraph: str | None = None,
             **options: Any) -> fx.Graph:
        if subgraph == "backward" and found:
            before, graph = found.pop()
            used = set(inputs)
            unused = {node: each for node, each in zip(before, graph.find_nodes(op="placeholder")) if node not in used}
            if [each for each in before if each not in unused] == inputs and not any(each.users for each in unused.values()):
                for each in unused.values():
                    graph.erase_node(each)
                return graph
        graph = extract(joint, inputs, outputs, described, subgraph, **options)
        if subgraph == "backward":
            found.append((list(inputs), graph))
        return graph

    with patch.object(_partitioners, "_extract_graph_with_inputs_outputs", once), patch.object(_partitioners, "pytree", _FLAT):
        yield


def forget(code: CodeType, compilations: set[Any]) -> None:
    """Of what was compiled of that code, the graphs of these compilations are compiled anew when they are next called."""
    entries: Any = eval_frame._debug_get_cache_entry_list(code)
    if all(each.code is None or each.compile_id in compilations for each in entries):
        reset_code(code)  # so that nothing counts for torch's recompile_limit
        return
    guards: Any = _guards
    for each in entries:
        if each.code is not None and each.compile_id in compilations:
            each.guard_manager.extra_state.invalidate(each, guards.DeletedGuardManagerWrapper("planned again"))
