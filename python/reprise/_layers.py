"""Lists of modules and functions as the library runs them."""

from __future__ import annotations

import functools
import types
import weakref
from typing import Any, Callable, Iterable

import torch

from . import _reprise

# What stands for a layer while it lives, so that a plan is found again. The key has ids, and an entry is removed when what has
# them dies. Functions that take no weak references (of C) live as long as the process.
_tokens: dict[tuple[int, int | str], tuple[Any, _reprise.LayerToken]] = {}


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
    """Returns a function that takes back what replaced or added buffers of the module, and of those within it. A module where it
    finds such buffers gets all its attributes back, since some may say what a buffer has. It does not change values."""
    before = [(each, dict(vars(each)), dict(each._buffers), set(each._non_persistent_buffers_set)) for each in module.modules()]

    def put_back() -> None:
        for each, attributes, buffers, names in before:
            if each._buffers.keys() == buffers.keys() and all(each._buffers[name] is buffers[name] for name in buffers):
                continue
            for now, then in ((vars(each), attributes), (each._buffers, buffers)):
                now.clear()
                now.update(then)
            each._non_persistent_buffers_set.clear()
            each._non_persistent_buffers_set.update(names)

    return put_back


def _token(function: Any) -> _reprise.LayerToken:
    # A bound method is another object at each look; what it is made of is the same.
    owner = getattr(function, "__self__", None)
    if owner is None or isinstance(owner, types.ModuleType):
        parts = [function]
        key: tuple[int, int | str] = id(function), ""
    elif hasattr(function, "__func__"):
        parts = [owner, function.__func__]
        key = id(owner), id(function.__func__)
    else:
        parts = [owner]
        key = id(owner), getattr(function, "__name__", "")
    if key not in _tokens:
        _tokens[key] = [_reference(part, key) for part in parts], _reprise.LayerToken()
    return _tokens[key][1]


def _reference(part: Any, key: tuple[int, int | str]) -> Any:
    try:
        return weakref.ref(part, lambda _: _tokens.pop(key, None))
    except TypeError:
        return part


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
