"""What reprise.compile gives for a module: torch's own kind of module, which keeps its budget when it is copied or stored."""

from __future__ import annotations

import copy
from collections.abc import Sized
from typing import Any

import torch

from ._budget import CompiledBudget
from ._torch import OptimizedModule


class PlannedModule(OptimizedModule):
    """Attributes are those of the module that was compiled, and `memory_budget`. A copy shares the budget; a module that is
    loaded has a budget of its own, made of the same arguments."""

    _arguments: dict[str, Any]  # of reprise.compile
    _backend: Any  # copies share it: torch compiles a function for a few backends at most

    @property
    def memory_budget(self) -> CompiledBudget:
        limits: CompiledBudget = self._backend.limits
        return limits

    def __bool__(self) -> bool:
        """torch's __len__ raises for most modules, and torch.compile of 2.11 and 2.12 asks."""
        return not isinstance(self._orig_mod, Sized) or len(self._orig_mod) > 0

    def __deepcopy__(self, memo: dict[int, Any]) -> PlannedModule:
        return _compiled(copy.deepcopy(self._orig_mod, memo), self._arguments, self._backend)

    def __copy__(self) -> PlannedModule:
        return _compiled(copy.copy(self._orig_mod), self._arguments, self._backend)

    def __reduce__(self) -> Any:
        return _compiled, (self._orig_mod, self._arguments, self._backend)


def _compiled(module: torch.nn.Module, arguments: dict[str, Any], backend: Any) -> PlannedModule:
    from . import compile_within

    result: PlannedModule = compile_within(module, arguments, backend)
    return result
