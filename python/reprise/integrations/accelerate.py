"""Accelerate: the steps of an Accelerator's loop within a byte budget.

    from reprise.integrations.accelerate import with_memory_budget

    accelerator = with_memory_budget(Accelerator(gradient_accumulation_steps=4), "8GiB")
    model, optimizer, data = accelerator.prepare(model, optimizer, data)
    for batch in data:
        with accelerator.accumulate(model):
            accelerator.backward(model(batch))
            optimizer.step()
            optimizer.zero_grad()
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, TypeVar

import torch

from . import require

require("accelerate")

import accelerate as library  # noqa: E402

from .. import MemoryBudget, UsageError  # noqa: E402
from .._reprise import is_in_step  # noqa: E402
from ..auto import find_steps  # noqa: E402

A = TypeVar("A")


def with_memory_budget(accelerator: A, memory_budget: str | int, **options: Any) -> A:
    """Puts the training steps of that accelerator's loop within that many bytes; returns it.

    A step is a block of `accelerator.accumulate()`, with the optimizer if it steps there. In loops without such blocks a
    step goes from the first forward of a model that `prepare()` has returned to the end of `accelerator.backward()`.
    So call this function before prepare(). Losses and parameters are bitwise the same. Each process of a distributed
    training has a budget of its own.

    memory_budget, options: those of MemoryBudget, which is then `accelerator.memory_budget`. Without `device` it is
    accelerator.device. Raises UsageError as MemoryBudget does, and for an object that is no Accelerator.
    """
    if not isinstance(accelerator, library.Accelerator):
        raise UsageError(f"with_memory_budget: got an object of {type(accelerator).__name__}; give an accelerate.Accelerator")
    changed: Any = accelerator
    budget = MemoryBudget(memory_budget, **{"device": changed.device, **options})
    accumulate, prepare = changed.accumulate, changed.prepare

    @contextlib.contextmanager
    def accumulate_within(*models: torch.nn.Module) -> Iterator[None]:
        with contextlib.nullcontext() if is_in_step() else budget.step(), accumulate(*models):
            yield

    def prepare_within(*args: Any, **kwargs: Any) -> Any:
        prepared = prepare(*args, **kwargs)
        for each in prepared if isinstance(prepared, tuple) else (prepared,):
            if isinstance(each, torch.nn.Module):
                find_steps(each, budget)
        return prepared

    changed.accumulate, changed.prepare, changed.memory_budget = accumulate_within, prepare_within, budget
    return accelerator
