"""Steps of a loop that calls back: it tells where a step begins and ends, and may leave one by an exception untold."""

from __future__ import annotations

import threading
from typing import Any

import torch

from .._reprise import MemoryBudget, Step, default_device

_open = threading.local()


class LoopSteps:
    """At most one step is open on a thread: begin() ends one that an exception has left open, whoever opened it."""

    def __init__(self, memory_budget: str | int, options: dict[str, Any]) -> None:
        self.budget = MemoryBudget(memory_budget, **options)
        self._memory_budget, self._options = memory_budget, options

    def follow(self, device: torch.device) -> None:
        """Makes the budget one of the device that the loop trains on, unless the user has named another one."""
        if "device" not in self._options and device != default_device():
            self._options["device"] = device
            self.budget = MemoryBudget(self._memory_budget, **self._options)

    def begin(self) -> None:
        abandon()
        _open.step = self.budget.step().__enter__()

    def finish(self) -> None:
        """Raises BudgetError if what the loop still holds does not fit; the step is over all the same."""
        step: Step | None = getattr(_open, "step", None)
        if step is None:
            return
        try:
            step.finish()
        except BaseException:
            abandon()
            raise
        _open.step = None


def abandon() -> None:
    """Ends the thread's step as an exception in its block does: nothing is learned from it."""
    step: Step | None = getattr(_open, "step", None)
    _open.step = None
    if step is not None:
        step.__exit__(RuntimeError, None, None)
