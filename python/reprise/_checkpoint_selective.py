"""Selective checkpointing: contexts that a region of reprise runs in C++, and that are torch's modes elsewhere."""

from __future__ import annotations

import importlib
import inspect
import warnings
from typing import Any, Callable

import torch
import torch.utils.checkpoint

from . import _reprise
from ._checkpoint_traced import reason_for_torch

_torch: Any = torch.utils.checkpoint  # before install() can replace it
CheckpointPolicy = _torch.CheckpointPolicy
SAC_IGNORED_OPS = _torch.SAC_IGNORED_OPS


def with_output(context: Any) -> Any:
    """torch's class of what a policy is told; where that knows no `op_output`, as in 2.11, one that does."""
    if "op_output" in inspect.signature(context).parameters:
        return context

    class SelectiveCheckpointContext(context):  # type: ignore[misc]
        def __init__(self, *, is_recompute: bool, op_output: Any = None) -> None:
            super().__init__(is_recompute=is_recompute)
            self.op_output = op_output

    return SelectiveCheckpointContext


SelectiveCheckpointContext = with_output(_torch.SelectiveCheckpointContext)

# Private there. A program that takes one of them looks at the modes on the stack, where C++ has none.
MODES = ("_CachingTorchDispatchMode", "_CachedTorchDispatchMode")
_shows_modes = False

# The regions' policies of lists, which are made at every call of a context function.
_of_lists: dict[tuple[Any, ...], Any] = {}
_MOST_LISTS = 64


class SelectivePair:
    """What the two contexts of one region have in common: the policy in C++, or torch's two modes."""

    __slots__ = ("_policy", "_allow_mutation", "_modes", "_selective")

    def __init__(self, policy: Any, allow_mutation: bool) -> None:
        self._policy = policy
        self._allow_mutation = allow_mutation
        self._modes: tuple[Any, Any] | None = None
        self._selective: Any = None

    def selective(self) -> Any:
        """For reprise's regions; None for a list of operators that only torch's modes see."""
        if self._selective is None:
            if isinstance(self._policy, list):
                self._selective = _selective_of_list(self._policy, self._allow_mutation)
            else:
                self._selective = _reprise.Selective.of_function(
                    self._policy, self._allow_mutation, SelectiveCheckpointContext, CheckpointPolicy)
        return self._selective

    def mode(self, index: int) -> Any:
        """torch's mode for forward (0) or the recomputation (1)."""
        modes = self._modes
        if modes is None:
            modes = self._modes = _torch.create_selective_checkpoint_contexts(self._policy, self._allow_mutation)
        return modes[index]


class SelectiveContext:
    """One of the two contexts. Entered by itself it is torch's mode."""

    __slots__ = ("pair", "_index", "ac_graph_id")  # torch sets the last one where a backend runs regions as they are

    def __init__(self, pair: SelectivePair, index: int) -> None:
        self.pair = pair
        self._index = index

    def __enter__(self) -> Any:
        return self.pair.mode(self._index).__enter__()

    def __exit__(self, *error: Any) -> Any:
        return self.pair.mode(self._index).__exit__(*error)


def show_modes(asking: str) -> None:
    """From now on contexts are torch's modes: the module of this name takes their classes. Modules of torch only add to them."""
    global _shows_modes
    if asking.split(".")[0] == "torch" or _shows_modes:
        return
    importlib.import_module("torch._dynamo")  # else the first operator imports it, which keeps that operator's frames alive
    warnings.warn(
        f"reprise.checkpoint: {asking} takes torch's private dispatch modes of selective checkpointing, so that selective regions "
        "run them from now on, and take longer than with policies in C++", stacklevel=3)
    _shows_modes = True


def _selective_of_list(ops: list[Any], allow_mutation: bool) -> Any:
    if any(isinstance(op, torch._ops.HigherOrderOperator) for op in ops):
        return None
    key = (allow_mutation, *ops)
    found = _of_lists.get(key)
    if found is None:
        if len(_of_lists) >= _MOST_LISTS:
            _of_lists.clear()
        found = _of_lists[key] = _reprise.Selective.of_list(ops, allow_mutation)
    return found


def create_selective_checkpoint_contexts(
    policy_fn_or_list: list[Any] | Callable[..., Any], allow_cache_entry_mutation: bool = False
) -> tuple[Any, Any]:
    """The two contexts of one region that keeps results of operators, as torch's function of this name.

    policy_fn_or_list: a list of OpOverloads, whose results are kept (MUST_SAVE); or a function
        (SelectiveCheckpointContext, OpOverload, *args, **kwargs) -> CheckpointPolicy or bool. It is called in forward
        only, once an operator call below autograd.
    allow_cache_entry_mutation: accept kept results that were changed in place, and use the changed values.

    A region of reprise differs from torch's in this: an operator that writes to its arguments is made again, whatever
    the policy says of it; MUST_CPU_OFFLOAD and PREFER_CPU_OFFLOAD move results of accelerators to pinned host memory,
    and keep results that are in host memory (torch recomputes both); and a call that forward did not make is an error
    only where a kept result might be meant for it.
    """
    if isinstance(policy_fn_or_list, list):
        for op in policy_fn_or_list:
            if not isinstance(op, (torch._ops.OpOverload, torch._ops.HigherOrderOperator)):
                hint = (
                    "Please update the OpOverloadPacket to a specific OpOverload."
                    "For example, if you have `torch.ops.aten.mm`, change it to `torch.ops.aten.mm.default`."
                    if isinstance(op, torch._ops.OpOverloadPacket) else "")
                raise ValueError(
                    f"Expected op in `op_list` to be an OpOverload but got: {op} of type {type(op)}. {hint}")
    elif not callable(policy_fn_or_list):
        raise TypeError("policy_fn_or_list must be either a function or a list of ops.")
    if _shows_modes or reason_for_torch((), {}) is not None:
        modes: tuple[Any, Any] = _torch.create_selective_checkpoint_contexts(policy_fn_or_list, allow_cache_entry_mutation)
        return modes
    pair = SelectivePair(policy_fn_or_list, allow_cache_entry_mutation)
    return SelectiveContext(pair, 0), SelectiveContext(pair, 1)


def pair_of(contexts: tuple[Any, Any]) -> SelectivePair | None:
    """The pair that these contexts are the two of, if reprise's regions can run it in C++."""
    forward, recompute = contexts
    if type(forward) is not SelectiveContext or type(recompute) is not SelectiveContext:
        return None
    return forward.pair if forward.pair is recompute.pair and forward.pair.selective() is not None else None
