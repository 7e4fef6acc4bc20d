"""Graphs that torch.compile made by inductor, called inside a step. Their kernels use memory past operators.

The inputs of a graph get their bytes back before the call and keep them during it. What a graph allocates, also what it
keeps for backward, is never dropped. StepReport.past_operators counts it, and a warning says so once.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.abc
import importlib.machinery
import importlib.util
import sys
import types
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

from ._reprise import call_past_operators, format_bytes, is_in_region, is_in_step

_MODULE = "torch._inductor.output_code"
_keeps = False
_is_said = False
_are_planned = 0


def install() -> None:
    """Called once. The module that has the graphs' classes may be loaded later."""
    module = sys.modules.get(_MODULE)
    if module is None:
        sys.meta_path.insert(0, _WhenLoaded())
    else:
        _watch(module)


class _WhenLoaded(importlib.abc.MetaPathFinder):
    def find_spec(self, fullname: str, path: Any, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        if fullname != _MODULE:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def exec_module(module: types.ModuleType) -> None:
                execute(module)
                _watch(module)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def _watch(module: types.ModuleType) -> None:
    for name in ("CompiledFxGraph", "CompiledAOTI"):
        graph = getattr(module, name, None)
        if graph is not None:
            graph.__call__ = _in_step(graph.__call__)


def _in_step(original: Any) -> Any:
    @functools.wraps(original)
    def call(graph: Any, inputs: Sequence[Any]) -> Any:
        global _keeps
        if not is_in_step():
            return original(graph, inputs)
        known = getattr(graph, "fx_kwargs", None) or {}
        _keeps = _keeps or not (_are_planned or known.get("is_backward") or known.get("is_inference") or is_in_region())
        written = getattr(graph, "mutated_input_idxs", range(len(inputs)))
        return call_past_operators(original, graph, inputs, set(written))

    return call


@contextlib.contextmanager
def planned() -> Iterator[None]:
    """Nothing is said of graphs that are called inside: they keep what a budget has planned."""
    global _are_planned
    _are_planned += 1
    try:
        yield
    finally:
        _are_planned -= 1


def step_ended(past_operators: int) -> None:
    """Says once what graphs kept, if a graph ran in the step outside of regions."""
    global _keeps, _is_said
    if not _keeps:
        return
    _keeps = False
    if _is_said or past_operators == 0:
        return
    _is_said = True
    warnings.warn(
        f"reprise.MemoryBudget: compiled graphs (torch.compile) allocate past torch's operators, {format_bytes(past_operators)} "
        "at once in this step. A budget cannot drop what they keep for backward. Make regions of compiled blocks, which "
        "are recomputed: reprise.checkpoint_sequential(blocks, \"400MB\", x) (this is said once; "
        "StepReport.past_operators counts it)", stacklevel=2)
