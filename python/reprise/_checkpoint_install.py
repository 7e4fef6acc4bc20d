"""Puts reprise.checkpoint in place of torch.utils.checkpoint for the whole process, and takes it back."""

from __future__ import annotations

import sys
import types
from typing import Any

import torch.utils
import torch.utils.checkpoint as _torch

_NAME = "torch.utils.checkpoint"
_NAMES = ("checkpoint", "checkpoint_sequential", "CheckpointFunction", "GraphExecGroup",
          "create_selective_checkpoint_contexts", "_checkpoint_without_reentrant_generator")


def _replace(pairs: list[tuple[Any, Any]], skipped: set[str]) -> None:
    """In every module that is loaded, names that refer to the first of a pair refer to the second afterwards."""
    by_id = {id(old): new for old, new in pairs}
    for name, module in list(sys.modules.items()):
        if not isinstance(module, types.ModuleType) or name in skipped or name.split(".")[0] == "reprise":
            continue
        values = vars(module)
        for key, value in list(values.items()):
            if id(value) in by_id:
                values[key] = by_id[id(value)]


def _pairs() -> list[tuple[Any, Any]]:
    from . import checkpoint as ours

    names = [name for name in _NAMES if hasattr(_torch, name)]
    return [(getattr(_torch, name), getattr(ours, name)) for name in names] + [(_torch, ours)]


def install() -> None:
    """Puts reprise.checkpoint in place of torch.utils.checkpoint, for modules that are loaded and for later imports.

    Objects that hold torch's functions in other ways keep them: default arguments, functools.partial objects, closures.
    So call it before models are made. Calling it twice does no harm.
    """
    from . import checkpoint as ours

    if sys.modules.get(_NAME) is ours:
        return
    _replace(_pairs(), {_NAME})
    sys.modules[_NAME] = ours
    torch.utils.checkpoint = ours  # type: ignore[assignment]


def uninstall() -> None:
    """Takes install() back. Regions that were made meanwhile stay valid."""
    from . import checkpoint as ours

    if sys.modules.get(_NAME) is not ours:
        return
    sys.modules[_NAME] = _torch
    torch.utils.checkpoint = _torch
    _replace([(new, old) for old, new in _pairs()], {_NAME})
