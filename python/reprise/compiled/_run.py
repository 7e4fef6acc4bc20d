"""The graphs that a script compiles whose steps are of a tape: one budget over both.

The tape's limit counts what graphs hold, and it drops what it can to make room for them. What graphs hand over it cannot
drop, so that they are planned. Every graph goes the same part of the way from the compiler's own choice to its smallest
plan: `saving`. Who measures the steps says how far.
"""

from __future__ import annotations

import contextlib
import gc
import weakref
from collections.abc import Callable
from types import CodeType
from typing import Any

import torch
from torch import fx

from .._reprise import UsageError, live_bytes
from . import _hooks
from ._again import Cut
from ._cache import CachedPlanner
from ._call import Shown, WatchedCall
from ._joint import Joint, Others
from ._needs import Need, needs_of_step, stacked, stacked_needs
from ._plan import Chosen, GraphPlanner, NoPlan, for_range, warn_of_bits
from ._report import GraphReport, report_of
from ._sizes import Seen
from ._torch import InstructionTranslator, name_of_frame, reset_code


class RunGraph:
    def __init__(self, owner: RunGraphs, backend: str) -> None:
        self._owner, self.backend = owner, backend
        translator = InstructionTranslator.current_tx()
        self.code, self.called = translator.f_code, name_of_frame(translator)
        self.planner: CachedPlanner | None = None
        self.chosen: Chosen | None = None
        self.shown: Shown | None = None

    def refused(self, error: UsageError) -> None:
        self._owner.say(error)

    def choose(self, joint: Joint, default: list[fx.Node]) -> Cut:
        return self._owner.choose(self, joint, default)

    def finish(self, forward: fx.GraphModule, backward: fx.GraphModule) -> list[str]:
        return self.planner.finish(self.chosen, forward, backward) if self.planner else []

    def forward_begins(self, sizes: dict[str, int]) -> WatchedCall:
        call = self._owner.opened(self)
        call.forward_begins()
        return call

    def forward_ends(self, call: WatchedCall, outputs: list[torch.Tensor]) -> None:
        """The tape counts what others hold."""
        call.forward_ends()

    def backward_begins(self, call: WatchedCall | None, freed: tuple[bool, ...]) -> None:
        """Its bytes are the step's, which the tape measures."""
        call = self._owner.open_call(self, call)
        if call is not None:
            call.backward_begins()

    def backward_ends(self, call: WatchedCall | None, is_whole: bool) -> None:
        call = self._owner.open_call(self, call)
        if call is not None:
            self.shown = (call.shown() if is_whole else None) or self.shown
            self._owner.closed(call)


class RunGraphs:
    """`limit` gives the bytes of the device for the step that is open, or None while a step may take what it needs.
    `say_why` is told, once for each reason, why a graph is left to torch."""

    def __init__(self, device: str, limit: Callable[[], int | None], say_why: Callable[[str], None]) -> None:
        self.saving: float | None = None  # of what graphs can save; None until steps were measured
        self._device, self._limit, self._say_why = device, limit, say_why
        self._said: set[str] = set()
        self._graphs: list[RunGraph] = []
        self._seen: dict[CodeType, Seen] = {}
        self._needs: dict[str, Need] = {}
        self._open: list[tuple[RunGraph, weakref.ref[WatchedCall]]] = []
        self._most: list[RunGraph] = []  # that were open at once in this step

    def planning(self) -> contextlib.AbstractContextManager[None]:
        return _hooks.planning(self._begin_graph)

    def say(self, error: UsageError) -> None:
        text = str(error).removeprefix("reprise.compile: ")
        if text not in self._said:
            self._said.add(text)
            self._say_why(text)

    def _begin_graph(self, backend: str | UsageError) -> RunGraph | None:
        # The tape sees the operators of other backends, and drops what they keep.
        return RunGraph(self, backend) if backend == "inductor" else None

    # -- Plans

    def choose(self, graph: RunGraph, joint: Joint, default: list[fx.Node]) -> Cut:
        def plan(sized: Joint, is_last: bool) -> CachedPlanner:
            planner = CachedPlanner(sized, default)
            graph.chosen = self._chosen(planner, is_last)
            return planner

        graph.planner = for_range(joint, self._seen.setdefault(graph.code, Seen()), plan)
        assert graph.chosen is not None
        warn_of_bits(graph.chosen)
        self._graphs.append(graph)
        return graph.chosen.cut

    def _chosen(self, planner: CachedPlanner, is_last: bool) -> Chosen:
        if self.saving is not None:
            need = self._need(planner)
            peak = int(need.peak(1 - self.saving))
            between, late = (max(0, peak - int(each)) for each in need.between(1 - self.saving))
            return _within(planner, peak, Others(between, late), is_last=True)
        limit = self._limit()
        # Nothing is known of the step yet: what the tape holds now may have to stay.
        return _within(planner, planner.default.peak if limit is None else limit - live_bytes(self._device), Others(), is_last)

    def _need(self, planner: CachedPlanner) -> Need:
        if planner.key not in self._needs:
            self._needs[planner.key] = planner.need()
        return self._needs[planner.key]

    def _needs_of_step(self) -> list[Need]:
        """Of the step that ended last."""
        planners = [each.planner for each in self._most if each.planner]
        if any(each.key not in self._needs for each in planners):
            needs = needs_of_step([each.default.between for each in planners], lambda at, beside: planners[at].need(beside=beside))
            self._needs |= {planner.key: need for planner, need in zip(planners, needs)}
        return [self._needs[each.key] for each in planners]

    def plan_again(self, saving: float) -> bool:
        """Every graph saves that part of what it can from now on. Whether one is compiled anew for it."""
        self.saving = min(max(saving, 0.0), 1.0)
        if self.saving == 0 and all(each.chosen and each.chosen.halves.peak >= each.chosen.default.peak for each in self._graphs):
            return False
        for each in self._graphs:
            if each.planner is not None:
                self._need(each.planner)
            reset_code(each.code)
        self._graphs, self._most = [], []
        gc.collect()  # graphs hold tensors in cycles
        return True

    # -- Steps

    def step_begins(self) -> None:
        self._most = []

    def opened(self, graph: RunGraph) -> WatchedCall:
        self._forget_dead()
        call = WatchedCall(self._device)
        self._open.append((graph, weakref.ref(call)))
        if len(self._open) > len(self._most):
            self._most = [each for each, _ in self._open]
        return call

    def _forget_dead(self) -> None:
        self._open = [each for each in self._open if each[1]() is not None]

    def open_call(self, graph: RunGraph, call: WatchedCall | None) -> WatchedCall | None:
        """That call, or the graph's youngest where it is not known. None for one that has ended."""
        self._forget_dead()
        return next((found() for each, found in reversed(self._open) if each is graph and (call is None or call is found())), None)

    def closed(self, call: WatchedCall) -> None:
        self._open = [each for each in self._open if each[1]() is not call]

    def can_save(self) -> int:
        """Bytes between the compiler's own plans and the smallest ones, in the step that ended last."""
        needs = self._needs_of_step()
        return max(0, int(max(stacked_needs(needs, 1)) - max(stacked_needs(needs, 0))))

    def saved(self) -> int:
        """Bytes that the plans save of the compiler's own, in the step that ended last."""
        chosen = [each.chosen for each in self._most if each.chosen]
        return max(0, stacked([each.default for each in chosen]) - stacked([each.halves for each in chosen]))

    def report(self) -> list[GraphReport]:
        return [report_of(f"graph {at}, of {each.called}", each.backend, each.planner, each.chosen, each.shown)
                for at, each in enumerate(self._graphs) if each.planner and each.chosen]


def _within(planner: GraphPlanner, room: int, others: Others, is_last: bool) -> Chosen:
    """The plan for those bytes; or the smallest one, where no smaller sizes can be tried."""
    try:
        return planner.choose(room, others)
    except NoPlan as none:
        if not is_last:
            raise
        return planner.choose(none.least, others)
