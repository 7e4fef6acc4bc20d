"""torch.compile within bytes: what the compiled forward hands to backward is planned, so that a step stays within a budget.

    model = reprise.compile(model, memory_budget="8GiB")

Gradients are those of torch.compile without a budget, dropout included; with inductor last bits may differ. docs/compiled.md has
the limits.
"""

from __future__ import annotations

import contextlib
import functools
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch._dynamo.backends.registry import lookup_backend
from torch._dynamo.exc import BackendCompilerFailed
from torch.utils import _pytree as pytree

from .._reprise import Error, UsageError
from ..auto import device_of
from ._budget import CompiledBudget, _budgets
from ._frontier import Frontier, FrontierPoint, frontier
from ._report import GraphReport

__all__ = ["CompiledBudget", "Frontier", "FrontierPoint", "GraphReport", "budget", "compile", "frontier", "report"]


def compile(
    model: Callable[..., Any], *, memory_budget: str | int, device: str | torch.device | None = None, **options: Any,
) -> Any:
    """torch.compile with its arguments, and the device's bytes stay within `memory_budget` while a step runs.

    `memory_budget`: "8GiB" or an int for all bytes of the device, "+2GiB" above those live before the step, "60%" of what a
    step of torch.compile's own takes above them. Sizes may vary as with torch.compile: a plan is for the upper end of a range,
    and a larger size is compiled again, with a plan of its own. Shares are those of a step at the upper end.

    `device`: whose bytes are meant; None: that of the module's parameters.

    Plans are stored on disk, in the folder that REPRISE_PLAN_CACHE_DIR names or beside inductor's own caches. Ranks of
    torch.distributed that compile the same graph take one plan, for the least of their bytes.

    Where the bytes do not suffice, the first call raises BudgetError, which names the least. The second call raises it where they
    suffice only if nobody has the model's outputs in backward, and somebody has. Raises UsageError for what cannot be planned:
    sizes that depend on data, CUDA graphs, compiled autograd, another budget of torch's, and backends that do not split graphs by
    torch's min-cut. Warns where no graph of the first call with gradients is planned. One thread at a time may train.
    """
    _refuse_options(options)
    limits = CompiledBudget(memory_budget, device or device_of(model))
    backend = _Backend(limits, options.pop("backend", "inductor"), options.pop("mode", None), options.pop("options", None))
    compiled = torch.compile(model, backend=backend, **options)
    if not isinstance(compiled, torch.nn.Module):
        return _within(compiled, limits)
    compiled.forward = _within(compiled.forward, limits)
    object.__setattr__(compiled, "memory_budget", limits)
    return compiled


@contextlib.contextmanager
def budget(memory_budget: str | int, device: str | torch.device | None = None) -> Iterator[CompiledBudget]:
    """Whatever torch.compile compiles inside, in the user's code or not, is planned; what was compiled before is not.

    `memory_budget` is that of compile(), and `device` by default the machine's accelerator, where it has one. Train inside: a graph is compiled when it first runs.
    """
    limits = CompiledBudget(memory_budget, device)
    with _as_raised(), limits.planning():
        yield limits


def report() -> list[GraphReport]:
    """The graphs of all budgets that are alive. Those of one budget are in the order in which they were compiled."""
    return [each for limits in _budgets for each in limits.report()]


@contextlib.contextmanager
def _as_raised() -> Iterator[None]:
    """An error of the package passes through torch.compile as it is."""
    try:
        yield
    except BackendCompilerFailed as failed:
        if isinstance(failed.inner_exception, Error):
            raise failed.inner_exception from None
        raise


def _within(call: Callable[..., Any], limits: CompiledBudget) -> Callable[..., Any]:
    has_looked = False

    @functools.wraps(call)
    def run(*arguments: Any, **named: Any) -> Any:
        nonlocal has_looked
        limits.before_call()
        with _as_raised():
            results = call(*arguments, **named)
        if not has_looked and _has_backward(results):
            has_looked = True
            if not limits.graphs:
                warnings.warn(
                    "reprise.compile: no graph of this call was planned, and memory_budget binds nothing. torch.compile leaves some "
                    "modules as they are, such as LSTM, and backend='eager' leaves all; use a reprise.MemoryBudget for these", stacklevel=2)
        return results

    return run


def _has_backward(results: Any) -> bool:
    return any(isinstance(each, torch.Tensor) and each.grad_fn is not None for each in pytree.tree_leaves(results))


class _Backend:
    """Another one for each budget, so that torch.compile takes no graph that was compiled without it."""

    def __init__(self, limits: CompiledBudget, backend: str | Callable[..., Any], mode: str | None,
                 options: dict[str, Any] | None) -> None:
        self.__name__ = backend if isinstance(backend, str) else getattr(backend, "__name__", str(backend))
        self._limits = limits
        given = {"mode": mode, "options": options}
        if backend == "inductor":
            wrapper: Any = torch._TorchCompileInductorWrapper
            self._call: Callable[..., Any] = wrapper(mode, options, False)
        else:
            self._call = functools.partial(lookup_backend(backend), **{name: each for name, each in given.items() if each})

    def __deepcopy__(self, memo: dict[int, Any]) -> _Backend:
        """Itself: Lightning keeps a deep copy of what torch.compile was given, to compile again, within the same bytes."""
        return self

    def __call__(self, graph: torch.fx.GraphModule, inputs: Any) -> Any:
        with self._limits.planning():
            return self._call(graph, inputs)


def _refuse_options(options: dict[str, Any]) -> None:
    graphs = options.get("mode") in ("reduce-overhead", "max-autotune") or (options.get("options") or {}).get("triton.cudagraphs")
    if graphs:
        raise UsageError("reprise.compile: CUDA graphs keep the memory of a step, so that there is nothing to plan; take "
                         "another mode than reduce-overhead and max-autotune")
    if torch._dynamo.config.compiled_autograd:
        raise UsageError("reprise.compile: compiled autograd makes another graph of backward than the one that is planned; "
                         "turn torch._dynamo.config.compiled_autograd off")
