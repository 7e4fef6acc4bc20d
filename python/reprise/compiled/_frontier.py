"""frontier(): the time of a compiled step against its bytes, before anything of the model runs."""

from __future__ import annotations

import contextlib
import dataclasses
import html
import json
import os
import pathlib
from collections.abc import Callable
from typing import Any

import torch
from torch import fx
from torch._dynamo.backends.registry import lookup_backend
from torch._dynamo.exc import BackendCompilerFailed
from torch.utils._pytree import tree_leaves

from .._estimate import _number_of
from .._reprise import StepTrace, UsageError, format_bytes
from . import _hooks
from ._again import Cut
from ._joint import Joint
from ._plan import Chosen, GraphPlanner, NoPlan
from ._trace import trace_of

_COLUMNS = ("budget", "peak", "handed over", "recomputed", "seconds")


@dataclasses.dataclass(frozen=True)
class FrontierPoint:
    """One plan. Bytes are above those live before the step; seconds are predicted."""

    budget: int
    peak: int  # of the step
    handed_over: int  # from forward to backward, inputs and parameters apart
    recompute_seconds: float
    seconds: float  # of the step, recomputation included

    @property
    def recomputed(self) -> float:
        """The share of the step's seconds that recomputation takes."""
        return self.recompute_seconds / self.seconds if self.seconds else 0.0


@dataclasses.dataclass(frozen=True)
class Frontier:
    """Points from the smallest budget on; the last one is torch.compile's own choice. A notebook shows table and picture.

    `trace`: the step itself, for planners and simulations. `write()` stores it for `reprise plan` and `reprise simulate`."""

    points: list[FrontierPoint]
    trace: StepTrace

    def write(self, file: str | os.PathLike[str]) -> None:
        """The step, as StepTrace.read() and the command line read it."""
        pathlib.Path(file).write_text(self.trace.json(), encoding="utf-8")

    @property
    def least(self) -> int:
        """Bytes above those live before the step: the smallest peak that was found."""
        return min(point.peak for point in self.points)

    def _rows(self) -> list[tuple[str, ...]]:
        return [(format_bytes(each.budget), format_bytes(each.peak), format_bytes(each.handed_over), f"{each.recomputed:.1%}",
                 f"{each.seconds:.4g}") for each in self.points]

    def __str__(self) -> str:
        """A table."""
        rows = [_COLUMNS, *self._rows()]
        widths = [max(len(row[at]) for row in rows) for at in range(len(_COLUMNS))]
        return "\n".join("  ".join(cell.rjust(width) for cell, width in zip(row, widths)) for row in rows)

    def json(self) -> str:
        """An object with a list `points`, whose entries have the names of FrontierPoint."""
        return json.dumps({"points": [{**dataclasses.asdict(each), "recomputed": each.recomputed} for each in self.points]})

    def svg(self) -> str:
        """Seconds against peaks, as a picture of 320 by 160."""
        low, high = self.points[0].peak, max(self.points[-1].peak, self.points[0].peak + 1)
        fast = min(each.seconds for each in self.points)
        slow = max(max(each.seconds for each in self.points), fast + 1e-12)
        places = " ".join(f"{10 + 300 * (each.peak - low) / (high - low):.1f},{150 - 120 * (each.seconds - fast) / (slow - fast):.1f}"
                          for each in self.points)
        return ('<svg xmlns="http://www.w3.org/2000/svg" width="320" height="160" role="img" font-size="10" fill="currentColor">'
                f'<title>seconds against peak</title><polyline points="{places}" fill="none" stroke="currentColor"/>'
                f'<text x="10" y="12">{format_bytes(low)}, {self.points[0].seconds:.4g} s</text>'
                f'<text x="310" y="140" text-anchor="end">{format_bytes(high)}, {self.points[-1].seconds:.4g} s</text></svg>')

    def _repr_html_(self) -> str:
        def row(cells: tuple[str, ...], tag: str) -> str:
            return "<tr>" + "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in cells) + "</tr>"

        return ("<table><caption>Frontier</caption>" + row(_COLUMNS, "th") + "".join(row(each, "td") for each in self._rows())
                + "</table>" + self.svg())


def frontier(model: Callable[..., Any], *inputs: Any, loss: Callable[[Any], torch.Tensor] | None = None, points: int = 8,
             backend: str = "inductor", **keywords: Any) -> Frontier:
    """Plans `loss(model(*inputs, **keywords)).backward()` for several budgets, as compile() would. The model is traced, and
    nothing of it runs; each kind of operator is timed once on tensors of its own.

        found = reprise.compiled.frontier(model, words)
        print(found)
        found.least, found.points[0].recomputed

    `loss` takes what the model returns and returns one real number. None: the result itself, if it is one number, its
    attribute `loss`, if it has one, or the sum of its elements. `points`: budgets in equal steps from the least peak to that
    of torch.compile's own choice, at least 2; a budget whose peak and seconds another has, too, is left out. `backend`:
    "inductor" or "aot_eager".

    Bytes are above those live before the step. The step is one graph: a graph break raises torch's Unsupported error, with
    the line that makes it. Raises UsageError for options out of range, for a model that needs no gradient, and for graphs
    that compile() refuses. One thread at a time may call it, as nobody may compile meanwhile.
    """
    if points < 2:
        raise UsageError(f"frontier(): points is {points}; give at least 2, the least and the compiler's own")
    if backend not in ("inductor", "aot_eager"):
        raise UsageError(f"frontier(): backend is '{backend}'; give 'inductor' or 'aot_eager'")
    if "meta" in {each.device.type for each in tree_leaves((inputs, keywords)) if isinstance(each, torch.Tensor)}:
        raise UsageError("frontier(): inputs are on the meta device; give a model and inputs on the device that it is to train on, "
                         "where operators are timed, or ask reprise.estimate()")

    def step(*arguments: Any, **named: Any) -> torch.Tensor:
        result = model(*arguments, **named)
        found: torch.Tensor = loss(result) if loss is not None else _number_of(result)
        return found

    return _points_of(_planner_of(step, inputs, keywords, backend), points)


def _points_of(planner: GraphPlanner, count: int) -> Frontier:
    operators = planner.step.seconds
    least, most = planner.least, planner.default.peak
    found: list[FrontierPoint] = []
    for at in range(count):
        budget = least + (most - least) * at // (count - 1)
        with contextlib.suppress(NoPlan):
            point = _point(budget, planner.choose(budget), operators)
            # A smaller plan that takes no longer replaces those before it.
            found = [each for each in found if not (each.peak >= point.peak and each.seconds >= point.seconds)]
            if all(each.peak < point.peak and each.seconds > point.seconds for each in found):
                found.append(point)
    return Frontier(found, trace_of(planner.step))


def _point(budget: int, chosen: Chosen, operators: float) -> FrontierPoint:
    return FrontierPoint(budget, chosen.halves.peak, chosen.halves.saved, chosen.recompute_seconds,
                         operators + chosen.recompute_seconds)


class _Found(BaseException):
    """Ends the compilation; no `except Exception` on the way may stop it."""


class _Traced:
    """Keeps the planner of the graph that is compiled, and ends its compilation."""

    def __init__(self, backend: str) -> None:
        self.backend = backend
        self.planner: GraphPlanner | None = None

    def refused(self, error: UsageError) -> None:
        raise error

    def choose(self, joint: Joint, default: list[fx.Node]) -> Cut:
        self.planner = GraphPlanner(joint, default)
        raise _Found

    def finish(self, forward: fx.GraphModule, backward: fx.GraphModule) -> list[str]:
        raise AssertionError("the graph was not compiled")

    def forward_begins(self, sizes: dict[str, int]) -> object:
        raise AssertionError("the graph was not compiled")

    def forward_ends(self, call: Any, outputs: list[torch.Tensor]) -> None:
        raise AssertionError("the graph was not compiled")

    def backward_begins(self, call: Any, freed: tuple[bool, ...]) -> None:
        raise AssertionError("the graph was not compiled")

    def backward_ends(self, call: Any, is_whole: bool) -> None:
        raise AssertionError("the graph was not compiled")


def _planner_of(step: Callable[..., Any], inputs: Any, keywords: dict[str, Any], backend: str) -> GraphPlanner:
    traced: list[_Traced] = []

    def begin(name: str | UsageError) -> _Traced:
        if isinstance(name, UsageError):
            raise name
        traced.append(_Traced(name))
        return traced[-1]

    def compile_and_end(graph: fx.GraphModule, values: Any) -> Any:
        with _hooks.planning(begin):
            lookup_backend(backend)(graph, values)
        raise _Found

    try:
        with torch.enable_grad():
            torch.compile(step, backend=compile_and_end, fullgraph=True, dynamic=False)(*inputs, **keywords)
    except _Found:
        pass
    except BackendCompilerFailed as failed:
        if isinstance(failed.inner_exception, UsageError):
            raise failed.inner_exception from None
        raise
    if not traced or traced[-1].planner is None:
        raise UsageError("frontier(): the step has no backward; the model needs parameters or inputs that require gradients")
    return traced[-1].planner
