"""Lightning: the Trainer's steps within a byte budget.

    from reprise.integrations.lightning import MemoryBudgetCallback

    trainer = lightning.Trainer(callbacks=[MemoryBudgetCallback("8GiB")])
"""

from __future__ import annotations

from typing import Any

from . import require

require("lightning")

import lightning.pytorch  # noqa: E402

from .. import MemoryBudget  # noqa: E402
from ._steps import LoopSteps, abandon  # noqa: E402


class MemoryBudgetCallback(lightning.pytorch.Callback):
    """Each training batch of the Trainer runs within that many bytes; losses and parameters are bitwise the same.

    A step is one batch: forward, backward and, where gradients are not accumulated further, the optimizer. It is so
    with manual optimization, too. Validation, logging and checkpoints fall between steps and are not bound. Each
    process of a distributed training has a budget of its own.

    memory_budget, options: those of MemoryBudget. Without `device` it is the device that the Trainer trains on.

    Raises UsageError as MemoryBudget does. A BudgetError leaves trainer.fit().
    """

    def __init__(self, memory_budget: str | int, **options: Any) -> None:
        self._steps = LoopSteps(memory_budget, options)

    @property
    def budget(self) -> MemoryBudget:
        """The budget, for its report(), least and plan()."""
        return self._steps.budget

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        self._steps.follow(trainer.strategy.root_device)

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        self._steps.begin()

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        self._steps.finish()

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        # The module may have ended the epoch when a batch began.
        self._steps.finish()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        abandon()
