"""What an operator of a joint graph is to a plan: whether its result has memory of its own, whether a compiler merges it
into its neighbours' loops, and whether it may run twice."""

from __future__ import annotations

import enum
import operator
import re
from typing import Any

import torch
from torch import fx


class Kind(enum.Enum):
    INPUT = "an input of the step, a constant, or a size that is computed from others"
    VIEW = "a view of its first argument"
    ITEM = "one result of an operator with several"
    LOOP = "computed element by element: compilers merge it with others"
    REDUCTION = "a sum or the like, whose loop a compiler may merge with those before it"
    CALL = "runs by itself"


_REDUCTIONS = frozenset(
    "sum mean amax amin var_mean var std any all argmax argmin prod max min _softmax _log_softmax logsumexp "
    "prepare_softmax_online native_layer_norm native_group_norm".split())
# Element by element, though not tagged so.
_LOOPS = frozenset(
    "clone full full_like ones_like zeros_like new_zeros new_ones zeros ones scalar_tensor empty empty_like iota arange "
    "embedding convert_element_type _to_copy where gather index index_select _unsafe_index _unsafe_masked_index cat "
    "constant_pad_nd repeat copy select_scatter slice_scatter inductor_random inductor_lookup_seed "
    "inductor_force_stride_order fma triu tril".split())
_VIEWS = frozenset("reshape _unsafe_view view_of broadcast_in_dim detach alias lift_fresh".split())
OUTSIDE = "outside of modules"
_SCATTERS = re.compile("index_put|scatter_(add|reduce)|index_add|index_reduce")
_SEEDS = frozenset(("inductor_seed", "inductor_seeds"))


def name_of(node: fx.Node) -> str:
    """"mm" for aten.mm.default."""
    if isinstance(node.target, torch._ops.OpOverload):
        return node.target._schema.name.split("::")[1]
    return getattr(node.target, "__name__", str(node.target))


def module_of(node: fx.Node) -> str:
    """The path of the module whose forward made it."""
    stack = node.meta.get("nn_module_stack") or {}
    names = [path for path, _ in stack.values() if path]
    return _plain(names[-1]) if names else OUTSIDE


def _plain(path: str) -> str:
    """"blocks.0.mlp" of "L['self'].blocks.0.mlp" and of "L['self']._modules['blocks']._modules['0']._modules['mlp']"."""
    below = re.sub(r"^L\['\w+'\]", "", path)
    return re.sub(r"\._modules\['(\w+)'\]", r".\1", below).lstrip(".") or "the model itself"


def kind_of(node: fx.Node) -> Kind:
    if node.op != "call_function" or not is_tensors(node.meta.get("val")):
        return Kind.INPUT if node.op in ("placeholder", "get_attr") or is_size(node) else Kind.CALL
    if node.target is operator.getitem:
        return Kind.ITEM
    target = node.target
    if not isinstance(target, torch._ops.OpOverload) or target.namespace not in ("aten", "prims"):
        return Kind.CALL
    name = name_of(node)
    if target.is_view or name in _VIEWS:
        return Kind.VIEW
    if target._schema.is_mutable:
        return Kind.CALL
    if name in _REDUCTIONS or name == "bmm" and _is_by_loops(node):
        return Kind.REDUCTION
    if torch.Tag.pointwise in target.tags or name in _LOOPS:
        return Kind.LOOP
    return Kind.CALL


def is_scatter(node: fx.Node) -> bool:
    """Whether the operator may add up at places that other results give, so that a compiler merges it with the loops before it."""
    return _SCATTERS.search(name_of(node)) is not None


def is_lowered_to_loops(node: fx.Node) -> bool:
    """Whether inductor computes by loops what is otherwise an operator that runs by itself, in most cases."""
    return is_scatter(node) or name_of(node).startswith("_low_memory_max_pool")


def _is_by_loops(product: fx.Node) -> bool:
    """Whether inductor computes that product as a sum of its own, which it merges with other loops. On a CPU it does so for one row
    or one column. On other devices it may for one row and one column. A size that varies is not one."""
    first, second = (each.meta["val"] for each in product.args[:2])  # type: ignore[union-attr]
    is_one = [isinstance(each, int) and each == 1 for each in (first.shape[1], second.shape[2])]
    return any(is_one) if first.device.type == "cpu" else all(is_one)


def is_tensors(value: Any) -> bool:
    """A tensor, or several."""
    return isinstance(value, torch.Tensor) or isinstance(value, (list, tuple)) and any(is_tensors(each) for each in value)


def is_size(node: fx.Node) -> bool:
    """A number, which takes no memory."""
    return isinstance(node.meta.get("val"), (torch.SymInt, torch.SymFloat, torch.SymBool, int, float))


def is_random(node: fx.Node) -> bool:
    """Whether a second run may give something else. A seed is drawn; what is made from a seed is not."""
    target = node.target
    if not isinstance(target, torch._ops.OpOverload):
        return False
    if name_of(node) in _SEEDS:
        return True
    if torch.Tag.nondeterministic_seeded not in target.tags:
        return False
    # Attention is tagged for its dropout, and draws nothing without.
    for at, argument in enumerate(target._schema.arguments):
        if argument.name == "dropout_p":
            return bool((node.args[at] if at < len(node.args) else node.kwargs.get("dropout_p", 0.0)) != 0.0)
    return True


def is_repeatable(node: fx.Node) -> bool:
    """Whether the operator is a function of its arguments alone, as far as can be known: those of other libraries,
    operators with operators inside, and whatever writes or draws are not."""
    target = node.target
    if target is operator.getitem or not isinstance(target, torch._ops.OpOverload):
        return target is operator.getitem
    return target.namespace in ("aten", "prims") and not target._schema.is_mutable and not is_random(node)
