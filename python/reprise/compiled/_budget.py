"""A budget over all graphs of a step: what each may take, and what the steps measured.

Graphs are planned when they are compiled, one after another, when those before have run already: what they hand to backward
is live by then. Bytes that later graphs need are known when a step has ended; then those of all are planned again, and
compiled again. The same happens where a step took more than its plan said.
"""

from __future__ import annotations

import contextlib
import gc
import threading
import warnings
import weakref
from collections.abc import Iterator
from types import CodeType
from typing import Any

import torch
from torch import fx
from torch._dynamo.exc import BackendCompilerFailed

from .._reprise import BudgetError, Error, PeakScope, UsageError, format_bytes, live_bytes
from ..running.asked import Asked
from . import _hooks
from ._cache import CachedPlanner
from ._joint import Joint, Others
from ._plan import Chosen, GraphPlanner, Need, NoPlan
from ._ranks import Agreement
from ._report import GraphReport, report_of
from ._torch import InstructionTranslator, reset_code

# Corrections after measured steps; what is live before a step, such as the optimizer's state, grows in the first ones.
_MOST_CORRECTIONS = 3
# Bytes of the scalars around graphs: the loss, its gradient, seeds.
_SCALARS = 4096
# A correction leaves that share of the limit besides, so that one suffices.
_ROOM = 0.005


class _Token:
    """One call of a graph's forward whose backward is still to come. It ends with its backward, or with its outputs."""


class PlannedGraph:
    def __init__(self, budget: CompiledBudget, backend: str) -> None:
        self.budget, self.backend = budget, backend
        self.code: CodeType = InstructionTranslator.current_tx().f_code
        self.planner: GraphPlanner | None = None
        self.chosen: Chosen | None = None
        self.name = ""
        self.tokens: weakref.WeakSet[_Token] = weakref.WeakSet()

    def refused(self, error: UsageError) -> None:
        raise error

    def choose(self, joint: Joint, default: list[fx.Node]) -> list[int]:
        self.chosen = self.budget.choose(self, joint, default)
        return self.chosen.saved

    def forward_begins(self) -> _Token:
        self.budget.open_step(self)
        token = _Token()
        self.tokens.add(token)
        return token

    def backward_ends(self) -> None:
        with contextlib.suppress(KeyError):
            self.tokens.pop()
        self.budget.close_step()


@contextlib.contextmanager
def as_raised() -> Iterator[None]:
    """An error of the package passes through torch.compile as it is."""
    try:
        yield
    except BackendCompilerFailed as failed:
        if isinstance(failed.inner_exception, Error):
            raise failed.inner_exception from None
        raise


class CompiledBudget:
    def __init__(self, memory_budget: str | int, device: str | torch.device = "cpu") -> None:
        self.asked = Asked.parse(str(memory_budget), "memory_budget", has_least=False)
        self.device = device
        live_bytes(device)
        self.graphs: list[PlannedGraph] = []
        # Of the step that is open, or of the last one, in the order of their forwards.
        self._in_step: list[PlannedGraph] = []
        self.peaks: list[int] = []
        self._needs: list[Need] = []
        self._scope: PeakScope | None = None
        self._live_before = 0
        self._peak_before_planning = 0
        self._slack = _SCALARS
        self._corrections = 0
        self._ranks = Agreement()
        self._lock = threading.RLock()
        _budgets.add(self)

    def planning(self) -> contextlib.AbstractContextManager[None]:
        """Graphs that are compiled inside are planned."""
        return _hooks.planning(self._begin_graph)

    def _begin_graph(self, backend: str | UsageError) -> PlannedGraph:
        if isinstance(backend, UsageError):
            raise backend
        return PlannedGraph(self, backend)

    # -- Plans

    def _limit_above(self, live: int, newest: GraphPlanner | None = None) -> int:
        """Bytes of the device for the step that is open, or that a graph is compiled for."""
        if not self.asked.share:
            return self.asked.limit_before_measuring(live)
        if self._needs:
            return live + int(self.asked.share * stacked_need(self._needs, 1.0))
        default = [each.chosen.default for each in self._in_step if each.chosen] if self._is_open() or newest is None else []
        return live + int(self.asked.share * stacked([*default, *([newest.default] if newest else [])]))

    def choose(self, graph: PlannedGraph, joint: Joint, default: list[fx.Node]) -> Chosen:
        with self._lock:
            if self._scope:
                self._peak_before_planning = max(self._peak_before_planning, self._scope.peak)
            planner = graph.planner = CachedPlanner(joint, default)
            at = len(self._in_step) if self._is_open() else 0
            if at == 0:
                gc.collect()  # graphs that were compiled before hold tensors in cycles
            graph.name = f"graph {len(self.graphs)}, of {graph.code.co_qualname}"
            chosen = self._chosen_within(planner, at)
            self.graphs.append(graph)
            if self._scope:
                self._scope.__enter__()  # what planning took is not the step's
            return chosen

    def _chosen_within(self, planner: CachedPlanner, at: int) -> Chosen:
        live = live_bytes(self.device)
        limit = self._limit_above(self._live_before if self._is_open() else live, planner)
        others = self._needed_after(at, limit)
        try:
            return self._ranks.choose(planner, limit - live - self._slack, others)
        except NoPlan as none:
            if not self._needs and not self.peaks and (at > 0 or self.asked.share):
                # Those before it left it too little, or the share is one of more graphs. The next step divides anew.
                return self._ranks.choose(planner, none.least, others)
            raise self._refused(planner, none, limit, live) from None

    def _needed_after(self, at: int, limit: int) -> Others:
        """What the graphs after this one will need."""
        if len(self._needs) <= at + 1:
            return Others()
        live = self._live_before if self._is_open() else live_bytes(self.device)
        share = _largest_share(self._needs, limit - live - self._slack)
        later = self._needs[at + 1:]
        return Others(int(stacked_need(later, share)), sum(each.gradients for each in later))

    def _refused(self, planner: GraphPlanner, none: NoPlan, limit: int, live: int) -> BudgetError:
        least = live + none.least
        made_by = ", ".join(f"{name} ({format_bytes(count)})" for name, count in planner.largest_at_peak())
        return BudgetError(
            f"memory_budget '{self.asked.text}' is {format_bytes(limit)}, of which {format_bytes(live)} are live before the "
            f"graph runs; it needs at least {format_bytes(least)} ({least} bytes). At its smallest peak it holds {made_by}. "
            "Raise memory_budget, or make the batch smaller")

    # -- Steps

    def before_call(self) -> None:
        """Plans again where what is live before the step has grown past what the plans left for it."""
        with self._lock:
            if self._is_open() or not self.graphs or not self.peaks or self._corrections >= _MOST_CORRECTIONS:
                return
            chosen = [each.chosen.halves for each in self._in_step if each.chosen]
            live = live_bytes(self.device)
            if not self.asked.share and live + stacked(chosen) + self._slack > self.asked.limit_before_measuring(live):
                self._ranks.leave()  # what is live differs between ranks
                self._plan_again()

    def _is_open(self) -> bool:
        return self._scope is not None and any(each.tokens for each in self._in_step)

    def open_step(self, graph: PlannedGraph) -> None:
        with self._lock:
            if not self._is_open():
                self._live_before = live_bytes(self.device)
                self._scope, self._peak_before_planning, self._in_step = PeakScope(self.device), 0, []
            if graph not in self._in_step:
                self._in_step.append(graph)

    def close_step(self) -> None:
        with self._lock:
            if self._scope is None or self._is_open():
                return
            self._scope.__exit__(None, None, None)
            peak = max(self._scope.peak, self._peak_before_planning)
            limit = self._limit_above(self._live_before)
            self._scope = None
            self.peaks.append(peak)
            self._settle(peak, limit)

    def _settle(self, peak: int, limit: int) -> None:
        is_divided = len(self._in_step) < 2 or bool(self._needs)
        if is_divided and peak <= limit or self._corrections >= _MOST_CORRECTIONS:
            return
        is_default = all(each.planner and each.chosen and each.chosen.saved == each.planner.default_saved
                         for each in self._in_step)
        if is_default and peak <= limit:
            return
        if is_divided or is_default:
            self._ranks.leave()  # other ranks may have measured less
        if is_divided:
            self._slack += peak - limit + int(_ROOM * (limit - self._live_before))
            warnings.warn(f"reprise.compile: a step took {format_bytes(peak)}, above its {format_bytes(limit)}; its graphs are "
                          "planned for that much less, and compiled again", stacklevel=3)
        self._plan_again()

    def _plan_again(self) -> None:
        self._corrections += 1
        if len(self._in_step) > 1:
            self._needs = [each.planner.need() for each in self._in_step if each.planner]
        for code in {each.code for each in self.graphs}:
            reset_code(code)
        self.graphs, self._in_step = [], []

    def report(self) -> list[GraphReport]:
        return [report_of(each.name, each.backend, each.planner, each.chosen)
                for each in self.graphs if each.chosen and each.planner]


def stacked(halves: list[Any]) -> int:
    """Of graphs in the order of their forwards: each runs over what those before it hand to backward."""
    peak = saved = 0
    gradients = sum(each.gradients for each in halves)
    for each in halves:
        gradients -= each.gradients
        peak = max(peak, saved + max(each.forward, each.backward + gradients))
        saved += each.between
    return peak


def _largest_share(needs: list[Need], room: int) -> float:
    """How far all graphs can be from their smallest plans towards the compiler's own, alike."""
    low, high = 0.0, 1.0
    for _ in range(20):
        share = (low + high) / 2
        low, high = (share, high) if stacked_need(needs, share) <= room else (low, share)
    return low


def stacked_need(needs: list[Need], share: float) -> float:
    peak = between = 0.0
    gradients = sum(each.gradients for each in needs)
    for need in needs:
        gradients -= need.gradients
        peak = max(peak, between + need.peak(share) + gradients)
        between += need.between(share)
    return peak


_budgets: weakref.WeakSet[CompiledBudget] = weakref.WeakSet()
