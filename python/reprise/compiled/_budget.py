"""A budget over all graphs of a step: what each may take, and what the steps measured.

Graphs are planned when they are compiled, one after another, when those before have run already: what they hand to backward
is live by then. Bytes that later graphs need are known when a step has ended; then those of all are planned again, and
compiled again. The same happens where a step took more than its plan said.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import gc
import itertools
import threading
import warnings
import weakref
from collections.abc import Iterator
from types import CodeType
from typing import Any

import torch
from torch import fx

from .._reprise import BudgetError, PeakScope, UsageError, default_device, format_bytes, live_bytes
from ..running.asked import Asked
from . import _hooks
from ._cache import CachedPlanner
from ._call import SCALARS, Call, WatchedCall
from ._graph import PlannedGraph
from ._joint import Joint, Measured, Others
from ._needs import Need, largest_share, needs_of_step, stacked, stacked_needs
from ._plan import Chosen, GraphPlanner, NoPlan, for_range
from ._ranks import Agreement
from ._report import GraphReport, report_of
from ._sizes import MOST_GROWTH, Seen
from ._torch import forget

# Corrections after measured steps; what is live before a step, such as the optimizer's state, grows in the first ones.
_MOST_CORRECTIONS = 3
# Bytes that a plan left unused are worth compiling again beyond that share of the limit.
_WORTH_IT = 0.018
# A correction leaves that share of the limit besides, so that one suffices, and so does a share of what is predicted.
_ROOM = 0.005
# Backwards that end while a call waits for its own: a step of adversarial or alternating training has fewer.
_MOST_LATER = 32


@contextlib.contextmanager
def _without_gc() -> Iterator[None]:
    """Planning makes many objects, which the collector would go through again and again."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


class CompiledBudget:
    def __init__(self, memory_budget: str | int, device: str | torch.device | None = None) -> None:
        if isinstance(memory_budget, float):
            raise UsageError(f"memory_budget is {memory_budget}, a float; give bytes as an int or a text such as '8GiB', or a share "
                             "such as '60%'")
        self.asked = Asked.parse(str(memory_budget), "memory_budget", has_least=False)
        self.set_device(device)
        self.parts: frozenset[CodeType] | None = None  # what the code of the whole model calls; None where that is not known
        self.graphs: list[PlannedGraph] = []
        self._reported: list[GraphReport] = []  # of the graphs before
        # The calls of the step that is open, or of the last one, and what was measured at their backward.
        self._in_step: list[PlannedGraph] = []
        self._sizes: list[dict[str, int]] = []  # of these calls, by symbol
        self._uncalled: list[PlannedGraph] = []  # compiled before any of them is called, as those of DDP
        self._seen: dict[CodeType, Seen] = {}
        self.measured: dict[int, Measured] = {}
        self.peaks: list[int] = []
        self._needs: list[Need] = []
        self._scope: PeakScope | None = None
        self._live_before = 0
        self._peak_before_planning = 0
        self._is_forward = True  # no backward of the step has begun
        self._ended = 0  # calls whose backward has ended
        self._is_planning = False  # a graph of the step, or of the next one, was compiled
        self._is_hopeful = False  # the step may pass its bytes, since it showed nothing yet of what it holds and needs
        self._is_cautious = False  # a graph hands over the least, since nobody knew how many come
        self._collected_at = -1  # so many compilations had begun or ended
        self._slack = SCALARS
        self._corrections = 0
        self._ranks = Agreement()
        self._lock = threading.RLock()
        _budgets[next(_numbers)] = self

    def __reduce__(self) -> Any:
        """One that is loaded has seen no step. Its device is that of the model that it is loaded with."""
        return CompiledBudget, (self.asked.text,)

    def set_device(self, device: str | torch.device | None) -> None:
        try:
            live_bytes(device)
        except RuntimeError as error:
            raise UsageError(f"compiled models: device is {str(device)!r}, whose bytes cannot be counted; give one that torch has, such "
                             "as 'cuda:0' or 'cpu'") from error
        self.device = device

    def planning(self) -> contextlib.AbstractContextManager[None]:
        """Graphs that are compiled inside are planned."""
        return _hooks.planning(self._begin_graph)

    def _begin_graph(self, backend: str | UsageError) -> PlannedGraph:
        if isinstance(backend, UsageError):
            raise backend
        with self._lock:
            self._is_planning = True
            return PlannedGraph(self, backend)

    # -- Plans

    def _limit_above(self, live: int, newest: GraphPlanner | None = None) -> int:
        """Bytes of the device for the step that is open, or that a graph is compiled for."""
        if not self.asked.share:
            return self.asked.limit_before_measuring(live)
        share = self.asked.share
        if share < 1:
            share *= 1 - _ROOM
        else:
            live += SCALARS  # it is to bind nothing
        if self._needs:
            return live + int(share * max(stacked_needs(self._needs, 1.0)))
        known = [*(self._in_step if self._is_open() or newest is None else ()), *self._uncalled]
        default = [each.chosen.default for each in known if each.chosen]
        return live + int(share * stacked([*default, *([newest.default] if newest else [])]))

    def choose(self, graph: PlannedGraph, joint: Joint, default: list[fx.Node]) -> Chosen:
        with self._lock, _without_gc():
            joint.require_device(default_device() if self.device is None else torch.device(self.device))
            if self._scope:
                self._peak_before_planning = max(self._peak_before_planning, self._scope.peak)
            at = (len(self._in_step) if self._is_open() else 0) + len(self._uncalled)
            graph.name = f"graph {len(self.graphs)}, of {graph.called}"
            before = self._needs
            found: dict[CachedPlanner, Chosen] = {}

            def plan(sized: Joint, is_last: bool) -> CachedPlanner:
                self._needs = before
                planner = CachedPlanner(sized, default)
                found[planner] = self._chosen_within(planner, graph, at, is_last)
                return planner

            seen = self._seen.setdefault(graph.code, Seen())
            ranges = seen.plans
            planner = graph.planner = for_range(joint, seen, plan)
            chosen = found[planner]
            if seen.plans > ranges:
                self._corrections = 0
            self.graphs.append(graph)
            self._uncalled.append(graph)
            self._warn_of_limit(graph)
            if self._scope:
                self._scope.__enter__()  # what planning took is not the step's
            return chosen

    def _warn_of_limit(self, graph: PlannedGraph) -> None:
        count, most = sum(each.code is graph.code for each in self.graphs), torch._dynamo.config.recompile_limit
        if count == most:
            warnings.warn(
                f"reprise.compile: {graph.called} has {count} compiled graphs, as many as "
                "torch._dynamo.config.recompile_limit allows; what needs another one will run without being compiled, outside of "
                "the budget. Raise that limit, leave dynamic=False out, or give the largest sizes: "
                "torch._dynamo.mark_dynamic(tensor, dimension, min=2, max=...)", stacklevel=3)

    def live(self) -> int:
        if self._is_planning and self._collected_at != WatchedCall.compilations:
            self._collect()
        return live_bytes(self.device)

    def _collect(self) -> None:
        """Compilers, and graphs that were compiled before, hold tensors in cycles."""
        gc.collect()
        self._collected_at = WatchedCall.compilations

    def _chosen_within(self, planner: CachedPlanner, graph: PlannedGraph, at: int, is_last: bool) -> Chosen:
        live = min(live_bytes(self.device), graph.live_before)  # a compiler may hold some bytes until the graph runs
        before = self._live_before if self._is_open() else live
        is_estimate = self._outgrow_needs(planner, at)
        limit = self._limit_above(before, planner)
        live += self._growth_of_live(planner, at) + sum(each.chosen.halves.between for each in self._uncalled if each.chosen)
        others, under_later = self._needed_after(at, limit)
        live += under_later
        # Ranks see different sizes, and compile for larger ones at different times.
        choose = functools.partial(self._ranks.choose, planner) if not planner.joint.sizes.upper else planner.choose
        room = limit - live - self._slack
        if len(self._needs) <= at and self._may_be_one_of_many(graph, at) and not planner.leaves_room_for_others(room):
            # This one hands over the least, if it can.
            chosen = planner.smallest_beside(planner.beside_many())
            if chosen.halves.own_peak <= room:
                self._is_cautious = True
                return dataclasses.replace(chosen, halves=chosen.halves.beside(Others()), default=chosen.default.beside(Others()))
        try:
            return choose(room, others)
        except NoPlan as none:
            if not is_last:
                raise
            is_first = not self._needs and not self.peaks
            is_later = at > 0 and self._corrections < _MOST_CORRECTIONS
            if is_later or is_first and self.asked.share or is_estimate and at + 1 < len(self._needs):
                # Those before it left it too little, or the share is one of more graphs. The next step divides anew.
                self._is_hopeful = True
                return choose(none.least, others)
            if not is_first:
                raise self._refused(planner, none, limit, live, under_later) from None
        try:
            # It is not known yet whether somebody has the outputs in backward. The step will show it.
            chosen = choose(room, Others(measured=planner.joint.with_nothing_held()))
        except NoPlan as none:
            raise self._refused(planner, none, limit, live, under_later) from None
        self._is_hopeful = True
        return chosen

    def _may_be_one_of_many(self, graph: PlannedGraph, at: int) -> bool:
        """Whether nobody knows how many graphs come. Ranks see that at different times, and agree on their plans."""
        is_part = at > 0 or graph.is_part or self.parts is None or graph.code in self.parts
        return is_part and not self._ranks.is_in_force()

    def _outgrow_needs(self, planner: CachedPlanner, at: int) -> bool:
        """Needs that were found for other sizes are estimated for these, whether they are now; a single graph needs none."""
        if len(self._needs) <= at or planner.joint.bytes_of_forward == self._needs[at].of_forward:
            return False
        factor = planner.joint.bytes_of_forward / max(1, self._needs[at].of_forward)
        if len(self._needs) > 1:
            self._needs = [each.scaled(factor) for each in self._needs]
            return True
        if factor > 1:
            self._needs = []
        return False

    def _growth_of_live(self, planner: CachedPlanner, at: int) -> int:
        """Bytes that are not live yet, and will be with sizes of the upper end."""
        inputs = 0 if self.asked.share or self.asked.is_above_live or at else planner.joint.growth_of_inputs()
        return inputs + sum(each.chosen.halves.between - each.chosen.halves.between_with(sizes, Others())
                            for each, sizes in zip(self._in_step[:at], self._sizes) if each.chosen)

    def _needed_after(self, at: int, limit: int) -> tuple[Others, int]:
        """What the graphs after this one will need, and what is handed over meanwhile. The plan is for all calls of the graph, so
        that both are for the call that has the least room: what comes after it, and what calls hand over before it."""
        if len(self._needs) <= at:
            return Others(), 0
        live = self._live_before if self._is_open() else live_bytes(self.device)
        share = largest_share(self._needs, limit - live - self._slack)

        def under(place: int) -> int:
            return int(max(sum(each) for each in zip((0.0, 0.0), *(each.between(share) for each in self._needs[at:place]))))

        calls = [place for place, each in enumerate(self._needs) if place >= at and each.graph == self._needs[at].graph]
        tight = max(calls, key=lambda place: under(place) + self._needs[place].peak(share))
        own, later = self._needs[tight], self._needs[tight + 1:]
        between, late = map(int, stacked_needs(later, share)) if later else (own.after, 0)
        if len(calls) > 1:  # it hands over no more than in each call
            room = limit - live_bytes(self.device) - self._slack - under(tight)
            between, late = (max(most, int(room - each)) for most, each in zip((between, late), own.between(share)))
        return Others(between, late, sum(each.gradients for each in later), own.measured), under(tight)

    def _refused(self, planner: GraphPlanner, none: NoPlan, limit: int, live: int, under_later: int) -> BudgetError:
        least = live + none.least + self._slack
        later = f" and {format_bytes(under_later)} are handed over by its calls" if under_later else ""
        ends = ", ".join(f"{name} up to {most}" for name, most in planner.joint.sizes.named.items())
        share = planner.joint.share
        handed = f", with no more handed over than torch's activation_memory_budget of {share} allows" if share < 1 else ""
        is_one_of_several = self.asked.share and self.measured and any(each is not self and each.peaks for each in _budgets.values())
        several = ". If other models train in the same step, give all one budget: reprise.compiled.budget()" if is_one_of_several else ""
        return BudgetError(
            f"memory_budget '{self.asked.text}' is {format_bytes(limit)}, of which {format_bytes(live - under_later)} are live before the "
            f"graph runs{later}; it needs at least {format_bytes(least)} ({least} bytes){ends and f' with {ends}'}{handed}. "
            f"At its smallest peak it holds {planner.held_at_peak()}. Raise memory_budget, or make the batch smaller{several}")

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
        return self._scope is not None and any(each.has_calls() for each in self._in_step)

    def begin_call(self, graph: PlannedGraph, sizes: dict[str, int]) -> Call:
        with self._lock:
            self._set_kept_aside()
            live = self.live()
            if not self._is_open():
                self._live_before = live
                self._scope, self._peak_before_planning, self._in_step, self._sizes = PeakScope(self.device), 0, [], []
                self.measured, self._is_forward = {}, True
            self._in_step.append(graph)
            self._uncalled = [each for each in self._uncalled if each is not graph]
            self._sizes.append(sizes)
            return Call(len(self._in_step) - 1, live, self.device, sizes, self._ended)

    def _set_kept_aside(self) -> None:
        """Calls that are kept without a backward, such as those of old losses, hold a step open for so many others at most. The
        step is then of no use to measure by, and a new one begins."""
        if self._scope is None or torch._C._current_graph_task_id() != -1:
            return
        graphs = set(self._in_step)
        calls = [call for each in graphs for call in each.calls()]
        if not calls or any(self._ended - each.ended_before < _MOST_LATER for each in calls):
            return
        for graph in graphs:
            graph.set_aside()
        self._scope.__exit__(None, None, None)
        self._scope = None

    def end_call(self) -> None:
        self._ended += 1

    def begin_backward(self) -> None:
        with self._lock:
            if self._is_forward:
                self._is_forward = False
                if self._is_planning:
                    self._collect()
                for each in self._in_step:
                    each.first_backward_begins()

    def close_step(self) -> None:
        with self._lock:
            if self._scope is None or self._is_open():
                return
            self._scope.__exit__(None, None, None)
            peak = max(self._scope.peak, self._peak_before_planning)
            limit = self._limit_above(self._live_before)
            self._scope, self._is_planning, self._uncalled = None, False, []
            self.peaks.append(peak)
            self._settle(peak, limit)

    def _settle(self, peak: int, limit: int) -> None:
        is_divided = bool(self._needs) or len(self._in_step) < 2 and not (self._is_cautious or self._has_more_room(limit))
        if is_divided and peak <= limit or self._corrections >= _MOST_CORRECTIONS:
            return
        is_default = all(each.planner and each.chosen and each.chosen.cut.is_default(each.planner.joint, each.planner.default_saved)
                         for each in self._in_step)
        # A share of a step of several graphs is estimated until the step has shown what it takes.
        if is_default and peak <= limit and (is_divided or not self.asked.share):
            return
        if is_divided and peak > limit or is_default:
            self._ranks.leave()  # other ranks may have measured less
        was_hopeful, self._is_hopeful, self._is_cautious = self._is_hopeful, False, False
        if is_divided and peak > limit and not was_hopeful:
            growth = [each.planner.joint.sizes.growth(sizes) for each, sizes in zip(self._in_step, self._sizes) if each.planner]
            self._slack += int((peak - limit) * max(each or MOST_GROWTH for each in growth)) + int(_ROOM * (limit - self._live_before))
            warnings.warn(f"reprise.compile: a step took {format_bytes(peak)}, above its {format_bytes(limit)}; its graphs are planned "
                          "for that much less, and compiled again", stacklevel=3)
        self._plan_again()

    def _has_more_room(self, limit: int) -> bool:
        """Whether the step showed that its one graph takes less than the plan left room for."""
        (graph,), measured = self._in_step, self.measured.get(0)
        if measured is None or graph.chosen is None:
            return False
        planned = graph.chosen.halves
        really = planned.beside(Others(measured.between, measured=measured))
        return planned.peak - really.peak > _WORTH_IT * (limit - self._live_before)

    def _plan_again(self) -> None:
        self._corrections += 1
        last = len(self._in_step) - 1
        calls = [(place, each.planner, self.graphs.index(each)) for place, each in enumerate(self._in_step) if each.planner]

        def need(at: int, beside: int | None) -> Need:
            place, planner, graph = calls[at]
            return planner.need(graph, self.measured.get(place), is_last=place == last, beside=beside)

        self._needs = needs_of_step([planner.default.between for _, planner, _ in calls], need)
        for code in {each.code for each in self.graphs}:
            forget(code, {each.compilation for each in self.graphs if each.code is code})
        self._reported, self.graphs, self._in_step = self.report(), [], []

    @property
    def planned_peak(self) -> int:
        """Bytes above those live before a step, of all graphs of the last step; 0 before there was one."""
        return stacked([each.chosen.halves for each in self._in_step if each.chosen])

    def report(self) -> list[GraphReport]:
        return [report_of(each.name, each.backend, each.planner, each.chosen, each.shown)
                for each in self.graphs if each.chosen and each.planner] or self._reported  # until they are compiled once more


_budgets: weakref.WeakValueDictionary[int, CompiledBudget] = weakref.WeakValueDictionary()  # the oldest first
_numbers = itertools.count()
