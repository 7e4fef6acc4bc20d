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
from types import CodeType
from typing import Any

import torch
from torch._dynamo.backends.registry import lookup_backend
from torch._dynamo.exc import BackendCompilerFailed
from torch.utils import _pytree as pytree

from .._reprise import Error, UsageError
from ..auto import device_of
from ._budget import CompiledBudget, _budgets
from ._frontier import Frontier, FrontierPoint, frontier
from ._hooks import CUDA_GRAPHS, refuse_compiled_autograd
from ._module import PlannedModule
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

    The result has its budget as `memory_budget`. A copy of a planned module shares it. One that is loaded from a file has its
    own, made of the same arguments.

    Another module or function that torch.compile compiles has a graph break where it calls this one. torch.compile of this one
    itself takes the original, without a budget.

    Where the bytes do not suffice, the first call raises BudgetError, which names the least. The second call raises it where they
    suffice only if nobody has the model's outputs in backward, and somebody has. Raises UsageError for what cannot be planned:
    sizes that depend on data, CUDA graphs, compiled autograd, another budget of torch's, and backends that do not split graphs by
    torch's min-cut. Warns where no graph of the first call with gradients is planned. One thread at a time may train.
    """
    return compile_within(model, {"memory_budget": memory_budget, "device": device, **options})


def compile_within(model: Callable[..., Any], arguments: dict[str, Any], backend: _Backend | None = None) -> Any:
    """`arguments`: of compile(), but for the model. `backend`: one that was made of these, with its budget; None: a new one."""
    options = dict(arguments)
    memory_budget, device = options.pop("memory_budget"), options.pop("device")
    _refuse_options(options)
    given = options.pop("backend", "inductor"), options.pop("mode", None), options.pop("options", None)
    device = device_of(model) if device is None else device
    if backend is None:
        backend = _Backend(CompiledBudget(memory_budget, device), *given)
    else:
        backend.limits.set_device(device)
    backend.limits.parts = _codes_below(model)
    compiled: Any = torch.compile(model, backend=backend, **options)
    if not isinstance(compiled, torch.nn.Module):
        planned: Any = _within(compiled, backend.limits)
        planned.memory_budget = backend.limits
        return planned
    compiled.forward = _within(compiled.forward, backend.limits)
    for name, value in (("__class__", PlannedModule), ("_arguments", arguments), ("_backend", backend)):
        object.__setattr__(compiled, name, value)
    return compiled


def _codes_below(model: Callable[..., Any]) -> frozenset[CodeType]:
    """The functions of the modules within."""
    types = {type(each) for each in model.modules()} - {type(model)} if isinstance(model, torch.nn.Module) else set()
    return frozenset(each.forward.__code__ for each in types if hasattr(each.forward, "__code__"))


@contextlib.contextmanager
def budget(memory_budget: str | int, device: str | torch.device | None = None) -> Iterator[CompiledBudget]:
    """Whatever torch.compile compiles inside, in the user's code or not, is planned; what was compiled before is not.

    `memory_budget` is that of compile(), and `device` by default the machine's accelerator, where it has one. Train inside: a
    graph is compiled when it first runs.
    """
    limits = CompiledBudget(memory_budget, device)
    with _as_raised(), limits.planning():
        yield limits


def report() -> list[GraphReport]:
    """The graphs of all budgets that are alive: the oldest budget first, and those of one budget as they were compiled."""
    return [each for limits in _budgets.values() for each in limits.report()]


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

    @functools.wraps(call, updated=())  # those of torch.compile lead to what it was given
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

    # Another torch.compile around it would compile the call without a plan.
    disable: Any = torch.compiler.disable
    result: Callable[..., Any] = disable(run, recursive=False, reason="reprise.compile compiles this call, within its own budget")
    return result


def _has_backward(results: Any) -> bool:
    return any(isinstance(each, torch.Tensor) and each.grad_fn is not None for each in pytree.tree_leaves(results))


class _Backend:
    """Another one for each budget, so that torch.compile takes no graph that was compiled without it."""

    def __init__(self, limits: CompiledBudget, backend: str | Callable[..., Any], mode: str | None,
                 options: dict[str, Any] | None) -> None:
        self.__name__ = backend if isinstance(backend, str) else getattr(backend, "__name__", str(backend))
        self.limits = limits
        self._made_of = backend, mode, options
        given = {"mode": mode, "options": options}
        if backend == "inductor":
            wrapper: Any = torch._TorchCompileInductorWrapper
            self._call: Callable[..., Any] = wrapper(mode, options, False)
        else:
            self._call = functools.partial(lookup_backend(backend), **{name: each for name, each in given.items() if each})

    def __deepcopy__(self, memo: dict[int, Any]) -> _Backend:
        """Itself: Lightning keeps a deep copy of what torch.compile was given, to compile again, within the same bytes."""
        return self

    def __reduce__(self) -> Any:
        """Lightning leaves it in the module as well, so that one that is stored takes it along."""
        return _Backend, (self.limits, *self._made_of)

    def __call__(self, graph: torch.fx.GraphModule, inputs: Any) -> Any:
        with self.limits.planning():
            return self._call(graph, inputs)


def _refuse_options(options: dict[str, Any]) -> None:
    if options.get("mode") is not None and options.get("options") is not None:
        raise UsageError(f"reprise.compile: mode={options['mode']!r} and options={options['options']!r} are given, and "
                         "torch.compile takes one of the two; leave the other out")
    if options.get("mode") in ("reduce-overhead", "max-autotune") or (options.get("options") or {}).get("triton.cudagraphs"):
        raise UsageError(CUDA_GRAPHS)
    refuse_compiled_autograd()
