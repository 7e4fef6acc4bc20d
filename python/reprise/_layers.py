"""Lists of modules and functions as the library runs them."""

from __future__ import annotations

import functools
import types
import weakref
from typing import Any, Callable, Iterable

import torch

from . import _reprise

# What stands for a layer while it lives, so that a plan is found again, with a reference to the layer by which it is known
# that it is still that one: a weak one, but for functions that take none (of C).
_tokens: dict[tuple[int, str], tuple[Any, _reprise.LayerToken]] = {}


def described(functions: Iterable[Callable[..., Any]]) -> list[tuple[Any, ...]]:
    """What C++ must know of each layer of a torch.nn.Sequential, or of a list of modules or functions."""
    return [_described(function) for function in functions]


def _described(function: Callable[..., Any]) -> tuple[Any, ...]:
    name = type(function).__name__ if isinstance(function, torch.nn.Module) else getattr(
        function, "__name__", type(function).__name__)
    if not isinstance(function, torch.nn.Module):
        return function, name, _token(function), (), (), (), None
    trains = [module.training for module in function.modules()]
    state = functools.partial(state_of, function)
    return function, name, _token(function), list(function.parameters()), list(function.buffers()), trains, state


def state_of(module: torch.nn.Module) -> Callable[[], None]:
    """What gives the module the buffers back that it has now, also where a forward sets another tensor."""
    before = [(each._buffers, dict(each._buffers)) for each in module.modules() if each._buffers]

    def put_back() -> None:
        for buffers, were in before:
            buffers.clear()
            buffers.update(were)

    return put_back


def _token(function: Any) -> _reprise.LayerToken:
    # A bound method is another object at each look; what it is bound to is the same.
    owner, name = getattr(function, "__self__", None), function.__name__ if hasattr(function, "__self__") else ""
    if owner is None or isinstance(owner, types.ModuleType):
        owner, name = function, ""
    key = id(owner), name
    if key not in _tokens:
        try:
            reference: Any = weakref.ref(owner, lambda _: _tokens.pop(key, None))
        except TypeError:
            reference = owner
        _tokens[key] = reference, _reprise.LayerToken()
    return _tokens[key][1]


def profile_chain(
    functions: Iterable[Callable[..., Any]], sample: torch.Tensor, *, repetitions: int = 5
) -> _reprise.Chain:
    """Measures each layer as a stage of a chain, for reprise.planners.

        chain = reprise.profile_chain(model, x)
        schedule = reprise.planners.rotor(chain, "400MB")
        y = reprise.checkpoint_sequential(model, schedule, x)

    functions: a torch.nn.Sequential, or a list of modules or functions; each takes one tensor and returns one.
    sample: the chain's input.
    repetitions: counted runs of each layer; seconds are medians.

    Each layer runs by itself, so a model can be profiled whose plain step does not fit. A layer that writes to its input,
    or returns a view of it, is one stage with the layer before. Gradients, buffers and random generators are left as they
    were. No other thread should allocate meanwhile. Raises UsageError if there is no layer, `repetitions` is below 1, or
    a layer writes to the sample. Errors of layers pass through.
    """
    return _reprise.profile_chain(described(functions), sample, repetitions)
