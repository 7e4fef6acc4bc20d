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
    BudgetError, BudgetEvent, Chain, ChainStage, CompressedStore, DeterminismError, DrawsOfLayer, Error, Estimate, EventLog,
    InfluenceMeter, InfluenceScore, LearnedPlan, LossyOptions, Machine, MemoryBudget, ParkedTensor, PeakScope, PgacReport,
    Pin, PipelineAction, PipelineEvent, PipelineResidency, PipelineSchedule, PipelineStageCosts, PipelineTimeline,
    PlanError, Schedule, ScheduleCost, SimulatedStep, SkipNamespace, SkipScope, Step, StepReport, StepTrace, Store,
    StoreError, StoreStatistics, TraceRecorder, UsageError, ValueWeights, allocation_count, calibrate, compressed_store,
    current_path, disk_store, host_store, influence_of, influence_weights, is_checkpointing, is_recomputing, live_bytes,
    memory_store, named, offload, peak_bytes, pop, seed_of_pipeline, stash, value_weights)

from . import _access, _higher_order  # noqa: E402
from .auto import auto_checkpoint  # noqa: E402

_access.install_at_import()
_higher_order.install()

__all__ = [
    "Advice", "BudgetError", "BudgetEvent", "Chain", "ChainStage", "CompressedStore", "DeterminismError", "DrawsOfLayer", "Error",
    "Estimate", "EventLog", "InfluenceMeter", "InfluenceScore", "LearnedPlan", "LossyOptions", "Machine", "MemoryBudget",
    "ParkedTensor", "PeakScope", "Pgac", "PgacReport", "Pin", "Pipeline", "PipelineAction", "PipelineEvent",
    "PipelineResidency", "PipelineSchedule", "PipelineStageCosts", "PipelineTimeline", "PlanError", "Schedule",
    "ScheduleCost", "SimulatedStep", "SkipNamespace", "SkipScope", "Skippable", "Step", "StepReport", "StepTrace", "Store",
    "StoreError", "StoreStatistics", "TraceRecorder", "UsageError", "ValueWeights", "advise", "allocation_count", "auto_checkpoint",
    "balance_by_bytes", "balance_by_time", "calibrate", "checkpoint", "checkpoint_sequential", "compile", "compiled",
    "compressed_store", "current_path", "disk_store", "estimate", "host_store", "influence_of", "influence_weights", "install",
    "is_checkpointing", "is_recomputing", "live_bytes", "memory_store", "named", "offload", "peak_bytes", "planners", "pop",
    "profile_chain", "schedules", "seed_of_pipeline", "stash", "uninstall", "value_weights",
]

# Loaded when they are first asked for: they import parts of torch that budgets do without.
_LATER = {
    "Advice": "_advise", "Pgac": "_pgac", "Pipeline": "pipeline", "Skippable": "pipeline", "advise": "_advise",
    "balance_by_bytes": "pipeline", "balance_by_time": "pipeline", "checkpoint": "checkpoint", "checkpoint_sequential": "_checkpoint_sequential",
    "compile": "compiled", "compiled": "compiled", "estimate": "_estimate",
    "install": "_checkpoint_install", "planners": "planners", "profile_chain": "_layers", "schedules": "schedules",
    "uninstall": "_checkpoint_install",
}


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> _Any:
    if name not in _LATER:
        raise AttributeError(f"module 'reprise' has no attribute {name!r}")
    import importlib

    module = importlib.import_module(f"reprise.{_LATER[name]}")
    value = module if name == _LATER[name] else getattr(module, name)
    globals()[name] = value
    return value
