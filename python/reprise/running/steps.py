"""Where the steps of a script begin and end that knows nothing of them.

Two kinds of stretches follow each other on the thread that trains:

- A *training* stretch begins with the first call of a module that has parameters to train, with gradients on. It ends
  when an optimizer has stepped, or, in scripts without optimizers, when the outermost backward has ended.
- A *between* stretch is the rest: evaluation, generation, logging, checkpoints.

Steps that the script opens itself lie within a training stretch, which ends when the next of them begins.

A script that calls no modules has training stretches alone, from the end of one to the end of the next.
"""

from __future__ import annotations

import functools
import os
import threading
import weakref
from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch.nn.modules import module as _modules
from torch.optim.optimizer import register_optimizer_step_post_hook

from .._backward import keeps_graph
from .._reprise import BudgetError, MemoryBudget, Step, UsageError, free_leftovers_of_backward

# A between stretch with more operators ends, and another one begins: its records would grow.
_MOST_OPERATORS = 20_000
_STEP = MemoryBudget.step  # before it is watched


class Budgets(Protocol):
    """Says within which budget the next stretch runs, and is told when one has ended. `rounds`: so often has each optimizer
    stepped that the script has made; in scripts without optimizers, so many stretches there were."""

    def training(self) -> MemoryBudget: ...
    def between(self) -> MemoryBudget: ...
    def trained(self, budget: MemoryBudget, rounds: int) -> None: ...
    def idled(self, budget: MemoryBudget) -> None: ...


class Stretch:
    """At most one open step, and the budget that it is of."""

    def __init__(self) -> None:
        self.budget: MemoryBudget | None = None
        self.is_training = False
        self.waits = False  # until a step of the script's own has ended
        self._step: Step | None = None

    def open(self, budget: MemoryBudget, is_training: bool) -> None:
        self._step = _STEP(budget).__enter__()
        self.budget, self.is_training = budget, is_training

    def close(self) -> bool:
        """False if what is held does not fit, or the script has a step open within: the step goes on."""
        self.waits = False
        if self._step is not None:
            try:
                self._step.finish()
            except BudgetError:
                return False
            except UsageError as error:
                if "inner step" not in str(error):
                    raise
                self.waits = True
                return False
        self._step = self.budget = None
        return True

    def abandon(self) -> None:
        if self._step is not None:
            self._step.__exit__(RuntimeError, None, None)
        self._step = self.budget = None
        self.waits = False


def _is_traced() -> bool:
    """Whether a compiler asks for a graph of backward, which is no backward of the script's."""
    return torch._guards.TracingContext.try_get() is not None


class Steps:
    """From start() to stop(), runs the stretches of the thread that trains first."""

    def __init__(self, budgets: Budgets) -> None:
        self.has_run_backward = False
        self._budgets = budgets
        self._stretch = Stretch()
        self._thread: int | None = None
        self._depth = 0  # of backward calls
        self._due: object = None  # an optimizer that has stepped during a backward
        self._optimizer_steps: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._stretches = 0  # of training
        self._has_optimizer = False
        self._calls_modules = False  # in this step
        self._backward_in_between = False
        self._reopens = False  # after a fork
        self._undo: list[Callable[[], None]] = []
        self._module_hook: Any = None  # its handle
        self._on_module_call = self._module_called

    def start(self) -> None:
        self._undo.append(register_optimizer_step_post_hook(self._optimizer_stepped).remove)
        self._replace(torch.optim.Optimizer, "__init__", self._optimizer_made)
        self._replace(torch.autograd, "backward", self._backward)
        self._replace(torch.autograd, "grad", self._backward)
        self._replace(MemoryBudget, "step", self._step_of_script)
        os.register_at_fork(before=self._before_fork, after_in_parent=self._after_fork, after_in_child=self._in_child)
        self._watch_modules()

    def stop(self, *, is_whole: bool) -> None:
        """Ends what is open; `is_whole`: the script has come to its end."""
        if is_whole and self._stretch.waits and threading.get_ident() == self._thread:
            self._step_ended()
        self._watch_modules(False)
        while self._undo:
            self._undo.pop()()
        if threading.get_ident() != self._thread:
            return
        budget = self._stretch.budget
        if not is_whole or not self._stretch.close():
            self._stretch.abandon()
        if budget is not None:
            self._budgets.idled(budget)
        self._thread = None

    def _replace(self, owner: Any, name: str, wrapper: Callable[..., Any]) -> None:
        original = getattr(owner, name)

        @functools.wraps(original)
        def replacement(*args: Any, **kwargs: Any) -> Any:
            return wrapper(original, *args, **kwargs)

        setattr(owner, name, replacement)
        self._undo.append(lambda: setattr(owner, name, original))

    def _is_mine(self) -> bool:
        """The first thread that trains is the one whose steps count."""
        if self._thread is None:
            self._thread = threading.get_ident()
        return self._thread == threading.get_ident()

    def _optimizer_made(self, original: Callable[..., None], *args: Any, **kwargs: Any) -> None:
        original(*args, **kwargs)
        if not self._is_mine():
            return
        self._optimizer_steps.setdefault(args[0], 0)
        if not self._has_optimizer:
            self._has_optimizer = True
            if self._stretch.budget is None:
                self._open_between()

    def _step_of_script(self, original: Callable[..., Step], budget: MemoryBudget) -> Step:
        if self._is_mine():
            if self._stretch.waits:
                self._step_ended()
            if not self._stretch.is_training and self._end_between():
                self._open_training()
        return original(budget)

    def _module_called(self, module: torch.nn.Module, args: Any) -> None:
        # Compilers trace hooks into their graphs; modules that run there are part of a call that has been seen.
        if torch.compiler.is_compiling() or self._depth or not self._is_mine():
            return
        budget = self._stretch.budget
        if torch.is_grad_enabled() and any(parameter.requires_grad for parameter in module.parameters()):
            if self._stretch.is_training:
                self._calls_modules = True  # from the next step on
                self._watch_modules(False)
            elif self._end_between():
                self._calls_modules = True
                self._open_training()
                self._watch_modules(False)
        elif not self._stretch.is_training and budget is not None and budget.report().operators > _MOST_OPERATORS:
            if self._end_between():
                self._open_between()

    def _optimizer_stepped(self, optimizer: object, args: Any, kwargs: Any) -> None:
        if not self._is_mine():
            return
        self._optimizer_steps[optimizer] = self._optimizer_steps.get(optimizer, 0) + 1
        if self._depth:
            self._due = optimizer
        else:
            self._step_ended()

    def _backward(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if _is_traced():
            return original(*args, **kwargs)
        self.has_run_backward = True
        if not self._is_mine():
            return original(*args, **kwargs)
        self._depth += 1
        try:
            result = original(*args, **kwargs)
        except BaseException:
            free_leftovers_of_backward()
            raise
        finally:
            self._depth -= 1
        if self._depth == 0:
            self._backward_in_between = True
            due, self._due = self._due, None
            if due is not None or not (self._has_optimizer or keeps_graph(original, args, kwargs)):
                self._step_ended()
        return result

    def _step_ended(self) -> None:
        stretch = self._stretch
        if stretch.is_training:
            budget = stretch.budget
            # Else the graph of another optimizer's step is held: the stretch goes on until it is not.
            if not stretch.close():
                return
            stretch.is_training = False
            assert budget is not None
            self._stretches += 1
            self._watch_modules()  # also where this is refused
            self._budgets.trained(budget, min(self._optimizer_steps.values(), default=self._stretches))
        elif not self._backward_in_between or not self._end_between():
            return  # a second optimizer of the same step, or what is held does not fit
        if self._calls_modules:
            self._open_between()
        else:
            self._open_training()
        self._calls_modules = False

    def _open_training(self) -> None:
        self._stretch.open(self._budgets.training(), is_training=True)

    def _open_between(self) -> None:
        self._backward_in_between = False
        self._stretch.open(self._budgets.between(), is_training=False)
        self._watch_modules()

    def _end_between(self) -> bool:
        budget = self._stretch.budget
        if not self._stretch.close():
            return False
        if budget is not None:
            self._budgets.idled(budget)
        return True

    def _watch_modules(self, watch: bool = True) -> None:
        """Module calls cost more while they are watched: so they are not in a training stretch."""
        if self._module_hook is None:
            if watch:
                self._module_hook = _modules.register_module_forward_pre_hook(self._on_module_call)
        elif watch:
            # In its old place: compiled graphs are for the hooks that they were traced with.
            _modules._global_forward_pre_hooks[self._module_hook.id] = self._on_module_call
        else:
            _modules._global_forward_pre_hooks.pop(self._module_hook.id, None)

    # Forks: a child, such as a data loader's worker, trains nothing, and is not bound by the limit.

    def _before_fork(self) -> None:
        self._reopens = False
        if threading.get_ident() == self._thread and self._stretch.budget is not None and not self._stretch.is_training:
            self._reopens = self._end_between()

    def _after_fork(self) -> None:
        if self._reopens:
            self._open_between()

    def _in_child(self) -> None:
        if threading.get_ident() == self._thread:
            self._stretch.abandon()
        self._watch_modules(False)
        while self._undo:
            self._undo.pop()()
        self._thread = None
