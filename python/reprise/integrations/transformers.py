"""Transformers: the Trainer's steps within a byte budget, and models that checkpoint by reprise.

    from reprise.integrations.transformers import MemoryBudgetCallback

    trainer = Trainer(model, args, train_dataset=data, callbacks=[MemoryBudgetCallback("8GiB")])
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from . import require

require("transformers")

from transformers import PreTrainedModel, TrainerCallback  # noqa: E402

from .. import MemoryBudget, UsageError, checkpoint as _checkpoint  # noqa: E402
from ._steps import LoopSteps, abandon  # noqa: E402


class MemoryBudgetCallback(TrainerCallback):
    """Each training step of the Trainer runs within that many bytes; losses and parameters are bitwise the same.

    A step is one micro-batch: forward, backward and, with the last one of an update, clipping, the optimizer and the
    scheduler. Evaluation, logging and checkpoints fall between steps and are not bound. Each process of a distributed
    training has a budget of its own.

    memory_budget, options: those of MemoryBudget. Without `device` it is the device that the Trainer trains on.

    Raises UsageError as MemoryBudget does. A BudgetError leaves trainer.train().
    """

    def __init__(self, memory_budget: str | int, **options: Any) -> None:
        self._steps = LoopSteps(memory_budget, options)
        _watch_train()

    @property
    def budget(self) -> MemoryBudget:
        """The budget, for its report(), least and plan()."""
        return self._steps.budget

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._steps.follow(args.device)

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._steps.begin()

    def on_substep_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        # The next micro-batch begins without an event.
        self._steps.finish()
        self._steps.begin()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._steps.finish()

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        # Another callback may have stopped the training between two micro-batches.
        self._steps.finish()


def _watch_train() -> None:
    """No event tells of an exception: Trainer.train() itself ends the step that one leaves open."""
    from transformers import Trainer

    original = Trainer.train
    if hasattr(original, "ends_steps"):
        return

    @functools.wraps(original)
    def train(*args: Any, **kwargs: Any) -> Any:
        try:
            return original(*args, **kwargs)
        except BaseException:
            abandon()
            raise

    vars(train)["ends_steps"] = True
    setattr(Trainer, "train", train)


def gradient_checkpointing_enable(
    model: PreTrainedModel, gradient_checkpointing_kwargs: dict[str, Any] | None = None, **options: Any,
) -> None:
    """model.gradient_checkpointing_enable(), with reprise.checkpoint in place of torch's; for this model alone.

    gradient_checkpointing_kwargs: the arguments of reprise.checkpoint, such as {"use_reentrant": False}, which is the
    default. options: what else the model's method takes, such as every_n_layers. The choice holds for later calls of
    the model's own method, too, such as the Trainer's.

    Raises UsageError for a model that calls torch.utils.checkpoint itself, and for `offload=True`, whose function is
    transformers' own; reprise.install() works for both. Raises ValueError for a model that does not support it.
    """
    setter = getattr(type(model), "_set_gradient_checkpointing", None)
    if setter is None or "value" in inspect.signature(setter).parameters:
        raise UsageError(
            f"gradient_checkpointing_enable: {type(model).__name__} does not let its checkpoint function be chosen; call "
            "reprise.install() and then the model's own method")
    vars(model)["_set_gradient_checkpointing"] = functools.partial(_set, model)
    enable = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
    enable(gradient_checkpointing_kwargs, **options)


def _set(
    model: PreTrainedModel, enable: bool = True, gradient_checkpointing_func: Callable[..., Any] = _checkpoint.checkpoint,
    **options: Any,
) -> None:
    """In place of the model's method, which all ways to switch checkpointing on and off end in."""
    function = getattr(gradient_checkpointing_func, "func", gradient_checkpointing_func)
    if function not in (_checkpoint._torch.checkpoint, _checkpoint.checkpoint):
        raise UsageError(
            "gradient_checkpointing_enable: offload=True checkpoints by a function of transformers' own; leave offload out, or "
            "call reprise.install() and then the model's own method")
    arguments = getattr(gradient_checkpointing_func, "keywords", {})
    type(model)._set_gradient_checkpointing(model, enable, functools.partial(_checkpoint.checkpoint, **arguments), **options)
