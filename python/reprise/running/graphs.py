"""What a script compiles by torch.compile is planned, from its first call of it on."""

from __future__ import annotations

import contextlib
import functools
import warnings
from collections.abc import Iterator
from typing import Any

import torch

from .._reprise import Error
from .budgets import RunBudgets, say


@contextlib.contextmanager
def plans_what_is_compiled(budgets: RunBudgets) -> Iterator[None]:
    """Until it ends. A script that compiles nothing does not load the compiler."""
    original = torch.compile
    stack = contextlib.ExitStack()
    is_first = True

    @functools.wraps(original)
    def compile(*arguments: Any, **named: Any) -> Any:
        nonlocal is_first
        if is_first:
            is_first = False
            # Training is noticed by such a hook, and an extra call of it does nothing.
            warnings.filterwarnings("ignore", message="Using `torch.compile\\(module\\)` when there are global hooks")
            try:
                stack.enter_context(budgets.graphs().planning())
            except Error as error:
                say(f"compiled graphs keep what the compiler chose: {error}")
        return original(*arguments, **named)

    torch.compile = compile
    with stack:
        try:
            yield
        finally:
            torch.compile = original
