"""Puts reprise.checkpoint in place of torch.utils.checkpoint for the whole process, and takes it back."""

from __future__ import annotations

import sys
import types
from typing import Any

import torch.utils
import torch.utils.checkpoint

_torch: Any = torch.utils.checkpoint
_NAME = "torch.utils.checkpoint"
_NAMES = ("checkpoint", "checkpoint_sequential", "CheckpointFunction", "GraphExecGroup",
          "create_selective_checkpoint_contexts", "_checkpoint_without_reentrant_generator",
          "_checkpoint_without_reentrant_generator_impl")
# install() found torch's objects here: a module's name and a name in it.
_found: set[tuple[str, str]] = set()


def _pairs() -> list[tuple[Any, Any]]:
    """torch's object and ours, for each that other modules may refer to."""
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
    by_id = {id(theirs): mine for theirs, mine in _pairs()}
    for module_name, module in list(sys.modules.items()):
        if not isinstance(module, types.ModuleType) or module is _torch or module_name.split(".")[0] == "reprise":
            continue
        for name, value in list(vars(module).items()):
            if id(value) in by_id:
                setattr(module, name, by_id[id(value)])
                _found.add((module_name, name))
    sys.modules[_NAME] = ours
    torch.utils.checkpoint = ours


def uninstall() -> None:
    """Takes install() back. Regions that were made meanwhile stay valid.

    Modules outside of torch that were imported meanwhile keep reprise's functions, which they may have meant.
    """
    from . import checkpoint as ours

    if sys.modules.get(_NAME) is not ours:
        return
    by_id = {id(mine): theirs for theirs, mine in _pairs()}
    for module_name, module in list(sys.modules.items()):
        if not isinstance(module, types.ModuleType) or module is ours or module_name.split(".")[0] == "reprise":
            continue
        is_torchs = module_name.split(".")[0] == "torch"
        for name, value in list(vars(module).items()):
            if id(value) in by_id and (is_torchs or (module_name, name) in _found):
                setattr(module, name, by_id[id(value)])
    _found.clear()
    sys.modules[_NAME] = _torch
    torch.utils.checkpoint = _torch
