"""checkpoint_sequential(): a chain of functions in segments, or within a number of bytes."""

from __future__ import annotations

import warnings
from typing import Any, Callable, Sequence

import torch

_NO_REENTRANT = (
    "torch.utils.checkpoint.checkpoint_sequential: the use_reentrant parameter should be passed explicitly. In version "
    "2.9 we will raise an exception if use_reentrant is not passed. use_reentrant=False is recommended, but if you need "
    "to preserve the current default behavior, you can pass use_reentrant=True. Refer to docs for more details on the "
    "differences between the two variants.")


def _run_one_after_another(functions: Sequence[Callable[..., Any]]) -> Callable[..., Any]:
    def forward(input: Any) -> Any:
        for function in functions:
            input = function(input)
        return input

    return forward


def checkpoint_sequential(
    functions: Any, segments: int, input: Any, use_reentrant: bool | None = None, **kwargs: Any
) -> Any:
    """Runs a chain of functions in segments, of which all but the last are regions."""
    if use_reentrant is None:
        warnings.warn(_NO_REENTRANT, stacklevel=2)
        use_reentrant = True
    preserve = kwargs.pop("preserve_rng_state", True)
    if kwargs:
        raise ValueError("Unexpected keyword arguments: " + ",".join(kwargs))
    from .checkpoint import checkpoint

    functions = list(functions.children()) if isinstance(functions, torch.nn.Sequential) else functions
    size = len(functions) // segments
    end = 0
    for start in range(0, size * (segments - 1), size):
        end = start + size
        input = checkpoint(
            _run_one_after_another(functions[start:end]), input, use_reentrant=use_reentrant, preserve_rng_state=preserve)
    return _run_one_after_another(functions[end:])(input)
