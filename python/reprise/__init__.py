"""Training steps of PyTorch within a byte budget.

    import reprise

    budget = reprise.MemoryBudget("8GiB")
    for batch in data:
        with budget.step():
            model(batch).backward()
            optimizer.step()
            optimizer.zero_grad()

Gradients are bitwise those of the plain step. `reprise run --budget 8GiB train.py` does the same for a script that
is not changed.
"""

from __future__ import annotations

from typing import Any as _Any

import torch as _torch

from . import _version
from ._version import version as __version__


def _minor(version: str) -> list[str]:
    return version.split("+")[0].split(".")[:2]


if _minor(_torch.__version__) != _minor(_version.torch_version):
    raise ImportError(
        f"reprise {__version__} was built with torch {_version.torch_version}, and torch {_torch.__version__} is installed; "
        f"install torch {'.'.join(_minor(_version.torch_version))}.*, or install reprise again with this torch")

from ._reprise import (  # noqa: E402
    BudgetError, DeterminismError, Error, LearnedPlan, MemoryBudget, PeakScope, Pin, PlanError, Step, StepReport, StoreError,
    UsageError, allocation_count, live_bytes, peak_bytes)

from .auto import auto_checkpoint  # noqa: E402

__all__ = [
    "BudgetError", "DeterminismError", "Error", "LearnedPlan", "MemoryBudget", "PeakScope", "Pin", "PlanError", "Step",
    "StepReport", "StoreError", "UsageError", "allocation_count", "auto_checkpoint", "checkpoint", "checkpoint_sequential",
    "compile", "compiled", "install", "live_bytes", "peak_bytes", "uninstall",
]

# Loaded when they are first asked for: they import parts of torch that budgets do without.
_LATER = {"checkpoint": "checkpoint", "checkpoint_sequential": "_checkpoint_sequential", "install": "_checkpoint_install",
          "uninstall": "_checkpoint_install", "compile": "compiled", "compiled": "compiled"}


def __getattr__(name: str) -> _Any:
    if name not in _LATER:
        raise AttributeError(f"module 'reprise' has no attribute {name!r}")
    import importlib

    module = importlib.import_module(f"reprise.{_LATER[name]}")
    value = module if name in ("checkpoint", "compiled") else getattr(module, name)
    globals()[name] = value
    return value
