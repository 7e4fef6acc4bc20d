"""checkpoint_sequential(): a chain of functions in segments, or within a number of bytes."""

from __future__ import annotations

import warnings
from typing import Any, Callable, Sequence

import torch

from . import _reprise
from ._checkpoint_region import flags_of
from ._checkpoint_traced import reason_for_torch
from ._layers import described

_NO_REENTRANT = (
    "torch.utils.checkpoint.checkpoint_sequential: the use_reentrant parameter should be passed explicitly. In version "
    "2.9 we will raise an exception if use_reentrant is not passed. use_reentrant=False is recommended, but if you need "
    "to preserve the current default behavior, you can pass use_reentrant=True. Refer to docs for more details on the "
    "differences between the two variants.")


def checkpoint_sequential(
    functions: Any, segments: int | str | _reprise.Schedule, input: Any, use_reentrant: bool | None = None, **kwargs: Any
) -> Any:
    """Runs a chain of functions, and recomputes parts of it in backward.

    functions: a torch.nn.Sequential, or a list of modules or functions.
    segments: a number of segments of equal length, of which all but the last are regions; or bytes as a text
        ("400MB"), for what forward and backward of the chain add to the bytes live before. The first call with inputs
        of a shape measures the layers, each of which then takes one tensor and returns one; the plan is remembered as
        long as they live. Raises BudgetError if no plan fits. Or a Schedule (reprise.planners); raises PlanError if it
        is for another number of functions or not valid.
    use_reentrant: as in checkpoint(). With bytes or a schedule it is False, and need not be given.
    preserve_rng_state: replay random draws.
    store: where a schedule with offloads parks values (reprise.disk_store()).
    """
    preserve = kwargs.pop("preserve_rng_state", True)
    store = kwargs.pop("store", None)
    if kwargs:
        raise ValueError("Unexpected keyword arguments: " + ",".join(kwargs))
    if isinstance(functions, torch.nn.Sequential):
        functions = list(functions)  # children() leaves out what comes a second time
    if store is not None and not isinstance(segments, _reprise.Schedule):
        raise _reprise.UsageError("checkpoint_sequential(): only a Schedule uses a store; give one, or leave the store out")
    if isinstance(segments, (str, _reprise.Schedule)):
        return _planned(functions, segments, input, use_reentrant, preserve, store)
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


def _planned(
    functions: Sequence[Callable[..., Any]], plan: str | _reprise.Schedule, input: torch.Tensor, use_reentrant: bool | None,
    preserve: bool, store: _reprise.Store | None,
) -> torch.Tensor:
    by = f"a budget of {plan}" if isinstance(plan, str) else "a schedule"
    if use_reentrant:
        raise ValueError(f"checkpoint_sequential(): with {by} use_reentrant must be False, or left out")
    reason = reason_for_torch((input,), {})
    if reason is not None:
        raise _reprise.UsageError(
            f"checkpoint_sequential(): {by} needs layers that run as they are, and under {reason} they do not; give a "
            "number of segments instead")
    flags = flags_of(preserve, "default", True)
    if isinstance(plan, str):
        return _reprise.checkpoint_within(described(functions), plan, input, flags)
    return _reprise.checkpoint_by_schedule(described(functions), plan, input, flags, store)
