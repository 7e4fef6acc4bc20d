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

__all__ = [
    "BudgetError", "DeterminismError", "Error", "LearnedPlan", "MemoryBudget", "PeakScope", "Pin", "PlanError", "Step",
    "StepReport", "StoreError", "UsageError", "allocation_count", "live_bytes", "peak_bytes",
]
