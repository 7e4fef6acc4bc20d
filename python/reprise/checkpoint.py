"""A drop-in for torch.utils.checkpoint: its names, signatures, warnings and error texts."""

from __future__ import annotations

import warnings
from typing import Any, Callable, ContextManager

import torch
import torch.utils.checkpoint as _torch
from torch.compiler import is_dynamo_compiling as _is_dynamo_compiling

from . import _reprise as _core
from ._checkpoint_errors import CheckpointError, StopRecomputation, refuse

noop_context_fn = _torch.noop_context_fn
_core.set_checkpoint_parts(StopRecomputation, refuse)
_region = _core.region
_special = _core.special

_REENTRANT, _PRESERVE_RANDOM, _EARLY_STOP, _CHECK_NOTHING, _CHECK_VALUES = 1, 2, 4, 8, 16
_CHECKS = {"default": 0, "none": _CHECK_NOTHING, "values": _CHECK_VALUES}


def checkpoint(
    function=None,
    *args: Any,
    use_reentrant: bool | None = None,
    preserve_rng_state: bool = True,
    context_fn: Callable[[], tuple[ContextManager[Any], ContextManager[Any]]] = noop_context_fn,
    determinism_check: str = "default",
    debug: bool = False,
    early_stop: bool = True,
    **kwargs: Any,
) -> Any:
    if use_reentrant is False and context_fn is noop_context_fn and not debug and determinism_check == "default":
        if _torch._enable_checkpoint_early_stop is not None:
            early_stop = _torch._enable_checkpoint_early_stop
        flags = (_PRESERVE_RANDOM if preserve_rng_state else 0) | (_EARLY_STOP if early_stop else 0)
        result = _region(function, args, kwargs, flags)
        if result is not _special:
            return result
    if use_reentrant:
        result = _region(function, args, kwargs, 1 | (_PRESERVE_RANDOM if preserve_rng_state else 0))
        if result is not _special:
            return result
    raise NotImplementedError
