"""checkpoint_sequential(): a chain of functions in segments, or within a number of bytes."""

from __future__ import annotations

import warnings
import weakref
from typing import Any, Callable, Sequence

import torch

from . import _reprise
from ._checkpoint_region import flags_of
from ._checkpoint_traced import reason_for_torch

_NO_REENTRANT = (
    "torch.utils.checkpoint.checkpoint_sequential: the use_reentrant parameter should be passed explicitly. In version "
    "2.9 we will raise an exception if use_reentrant is not passed. use_reentrant=False is recommended, but if you need "
    "to preserve the current default behavior, you can pass use_reentrant=True. Refer to docs for more details on the "
    "differences between the two variants.")

# What stands for a layer while it lives, so that a plan is found again. Functions that take no weak
# references (of C) live as long as the process.
_tokens: weakref.WeakKeyDictionary[Any, _reprise.LayerToken] = weakref.WeakKeyDictionary()
_tokens_of_builtins: dict[Any, _reprise.LayerToken] = {}


def checkpoint_sequential(
    functions: Any, segments: int | str, input: Any, use_reentrant: bool | None = None, **kwargs: Any
) -> Any:
    """Runs a chain of functions, and recomputes parts of it in backward.

    functions: a torch.nn.Sequential, or a list of modules or functions.
    segments: a number of segments of equal length, of which all but the last are regions; or bytes as a text
        ("400MB"), for what forward and backward of the chain add to the bytes live before. The first call with inputs
        of a shape measures the layers, each of which then takes one tensor and returns one; the plan is remembered as
        long as they live. Raises BudgetError if no plan fits.
    use_reentrant: as in checkpoint(). With bytes it is False, and need not be given.
    preserve_rng_state: replay random draws.
    """
    preserve = kwargs.pop("preserve_rng_state", True)
    if kwargs:
        raise ValueError("Unexpected keyword arguments: " + ",".join(kwargs))
    if isinstance(functions, torch.nn.Sequential):
        functions = list(functions.children())
    if isinstance(segments, str):
        return _within(functions, segments, input, use_reentrant, preserve)
    if use_reentrant is None:
        warnings.warn(_NO_REENTRANT, stacklevel=2)
        use_reentrant = True
    from .checkpoint import checkpoint

    size = len(functions) // segments
    end = 0
    for start in range(0, size * (segments - 1), size):
        end = start + size
        input = checkpoint(
            _one_after_another(functions[start:end]), input, use_reentrant=use_reentrant, preserve_rng_state=preserve)
    return _one_after_another(functions[end:])(input)


def _one_after_another(functions: Sequence[Callable[..., Any]]) -> Callable[..., Any]:
    def forward(input: Any) -> Any:
        for function in functions:
            input = function(input)
        return input

    return forward


def _within(
    functions: Sequence[Callable[..., Any]], budget: str, input: torch.Tensor, use_reentrant: bool | None, preserve: bool
) -> torch.Tensor:
    if use_reentrant:
        raise ValueError("checkpoint_sequential(): with a number of bytes use_reentrant must be False, or left out")
    reason = reason_for_torch((input,), {})
    if reason is not None:
        raise _reprise.UsageError(
            f"checkpoint_sequential(): a budget of {budget} needs measured layers, and under {reason} nothing can be "
            "measured; give a number of segments instead")
    layers = [_described(function) for function in functions]
    result: torch.Tensor = _reprise.checkpoint_within(layers, budget, input, flags_of(preserve, "default", True))
    return result


def _described(function: Callable[..., Any]) -> tuple[Any, ...]:
    name = type(function).__name__ if isinstance(function, torch.nn.Module) else getattr(
        function, "__name__", type(function).__name__)
    if not isinstance(function, torch.nn.Module):
        return function, name, _token(function), (), (), ()
    trains = [module.training for module in function.modules()]
    return function, name, _token(function), list(function.parameters()), list(function.buffers()), trains


def _token(function: Any) -> _reprise.LayerToken:
    # A bound method is another object at each look; what it is bound to is the same.
    key = getattr(function, "__self__", None)
    key = function if key is None or isinstance(key, type(torch)) else key
    try:
        return _tokens.setdefault(key, _reprise.LayerToken())
    except TypeError:
        return _tokens_of_builtins.setdefault(key, _reprise.LayerToken())
