"""Budgets where the training loop is not the user's: a model whose steps find themselves."""

from __future__ import annotations

import copyreg
import functools
import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any, TypeVar

import torch

from ._backward import keeps_graph
from ._reprise import MemoryBudget, Step, default_device, is_in_step

Model = TypeVar("Model", bound=torch.nn.Module)


class _ModelSteps:
    """A step goes from the first forward in training mode, with gradients on, to the end of the outermost backward() or grad()."""

    def __init__(self, budget: MemoryBudget) -> None:
        self._budget = budget

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Of a model that is loaded from a file."""
        vars(self).update(state)
        _watch_backward()

    def begin(self, module: torch.nn.Module, inputs: Any) -> None:
        if module.training and torch.is_grad_enabled() and not is_in_step():
            _open.steps = [*_opened(), self._budget.step().__enter__()]

    def called(self, module: torch.nn.Module, inputs: Any, result: Any) -> None:
        # torch calls this from the handler of the exception.
        if result is None and sys.exc_info()[0] is not None:
            _abandon()


_open = threading.local()


def _opened() -> list[Step]:
    return getattr(_open, "steps", [])


def _abandon() -> None:
    """Ends the steps that an exception leaves open; nothing is learned from them."""
    ended, _open.steps = _opened(), []
    for step in reversed(ended):
        step.__exit__(RuntimeError, None, None)


@functools.cache
def _watch_backward() -> None:
    for name in ("backward", "grad"):
        setattr(torch.autograd, name, _ending_steps(getattr(torch.autograd, name)))


def _ending_steps(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def backward(*args: Any, **kwargs: Any) -> Any:
        _open.depth = getattr(_open, "depth", 0) + 1
        try:
            result = original(*args, **kwargs)
        except BaseException:
            if _open.depth == 1:
                _abandon()
            raise
        finally:
            _open.depth -= 1
        if _open.depth == 0 and not keeps_graph(original, args, kwargs):
            ended, _open.steps = _opened(), []
            for step in reversed(ended):
                step.finish()
        return result

    return backward


def device_of(model: object) -> torch.device:
    """Of the parameters that are in memory; the default if there are none."""
    parameters = model.parameters() if isinstance(model, torch.nn.Module) else ()
    return next((each.device for each in parameters if each.device.type != "meta"), None) or default_device()


def auto_checkpoint(model: Model, memory_budget: str | int, **options: Any) -> Model:
    """Trains `model` within that many bytes, whoever calls it; returns it.

    A step goes from the first forward in training mode to the end of the outermost backward() or grad() on that thread, or
    over several where the graph is retained. `memory_budget` and `options` are those of MemoryBudget, which is then
    `model.memory_budget`. Its device is by default that of the model's parameters. Forwards inside of another step belong to
    that step. A copy of the model shares the budget; one that is loaded from a file has a budget of its own, made of the
    same arguments. A second call gives the model another budget. Raises UsageError as MemoryBudget does.
    """
    options = {"device": device_of(model), **options}
    budget = _budget_of(memory_budget, options)
    find_steps(model, budget)
    object.__setattr__(model, "memory_budget", budget)
    return model


# Of which the budgets of models were made: with these they are made again where a model is loaded.
_arguments: weakref.WeakKeyDictionary[MemoryBudget, tuple[str | int, dict[str, Any]]] = weakref.WeakKeyDictionary()


def _pickled(budget: MemoryBudget) -> tuple[Any, ...]:
    if budget not in _arguments:
        raise TypeError("cannot pickle a MemoryBudget, unless it is a model's by reprise.auto_checkpoint; make a new one where it is "
                        "loaded")
    return _budget_of, _arguments[budget]


def _budget_of(limit: str | int, options: dict[str, Any]) -> MemoryBudget:
    budget = MemoryBudget(limit, **options)
    _arguments[budget] = limit, options
    return budget


copyreg.pickle(MemoryBudget, _pickled)


def find_steps(model: torch.nn.Module, budget: MemoryBudget) -> None:
    """Has the model's forward and its backward open and end the budget's steps, in place of those of a budget before."""
    for hook in model._forward_pre_hooks.values():
        before = getattr(hook, "__self__", None)
        if isinstance(before, _ModelSteps):
            before._budget = budget
            return
    steps = _ModelSteps(budget)
    model.register_forward_pre_hook(steps.begin)
    model.register_forward_hook(steps.called, always_call=True)
    _watch_backward()
