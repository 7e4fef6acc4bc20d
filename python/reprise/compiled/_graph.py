"""One graph of a budget, from its compilation on."""

from __future__ import annotations

import weakref
from types import CodeType
from typing import TYPE_CHECKING

import torch
from torch import fx
from torch._guards import CompileContext

from .._reprise import UsageError
from ._again import Cut
from ._call import Call, Shown
from ._joint import Joint
from ._plan import Chosen, GraphPlanner, warn_of_bits
from ._torch import InstructionTranslator, name_of_frame

if TYPE_CHECKING:
    from ._budget import CompiledBudget


class PlannedGraph:
    def __init__(self, budget: CompiledBudget, backend: str) -> None:
        self.budget, self.backend = budget, backend
        translator = InstructionTranslator.current_tx()
        self.code: CodeType = translator.f_code
        self.called = name_of_frame(translator)
        # Whether the rest of the function has graphs of its own.
        self.is_part = bool(translator.output.compile_subgraph_reason.graph_break)
        self.compilation = CompileContext.current_compile_id()
        self.live_before = budget.live()
        self.planner: GraphPlanner | None = None
        self.chosen: Chosen | None = None
        self.shown: Shown | None = None
        self.name = ""
        self._calls: list[weakref.ref[Call]] = []

    def refused(self, error: UsageError) -> None:
        raise error

    def choose(self, joint: Joint, default: list[fx.Node]) -> Cut:
        self.chosen = self.budget.choose(self, joint, default)
        warn_of_bits(self.chosen)
        return self.chosen.cut

    def finish(self, forward: fx.GraphModule, backward: fx.GraphModule) -> list[str]:
        return self.planner.finish(self.chosen, forward, backward) if self.planner else []

    def has_calls(self) -> bool:
        """Whether a backward can still come."""
        return bool(self.calls())

    def calls(self) -> list[Call]:
        """Those whose backward can still come."""
        found = [call for call in (each() for each in self._calls) if call is not None]
        self._calls = [weakref.ref(each) for each in found]
        return found

    def set_aside(self) -> None:
        """These calls count no more."""
        self._calls = []

    def forward_begins(self, sizes: dict[str, int]) -> Call:
        call = self.budget.begin_call(self, sizes)
        self._calls.append(weakref.ref(call))
        call.forward_begins()
        return call

    def forward_ends(self, call: Call, outputs: list[torch.Tensor]) -> None:
        call.forward_ends()
        call.made(outputs, self.chosen.halves.are_handed_over() if self.chosen else ())

    def first_backward_begins(self) -> None:
        for call in self.calls():
            call.first_backward_begins()

    def _open(self, call: Call | None) -> Call | None:
        """That call, or the youngest where it is not known. None for one that has ended, as of a graph that is retained."""
        calls = self.calls()
        if call is None:
            return calls[-1] if calls else None
        return call if call in calls else None

    def backward_begins(self, call: Call | None, freed: tuple[bool, ...]) -> None:
        self.budget.begin_backward()
        call = self._open(call)
        if call is not None and self.chosen and self.planner:
            measured = call.measure(self.chosen.halves, self.planner.joint, self.budget.live(), freed)
            if measured is not None:
                self.budget.measured[call.place] = measured
            call.backward_begins()

    def backward_ends(self, call: Call | None, is_whole: bool) -> None:
        call = self._open(call)
        if call is not None:
            self._calls = [each for each in self._calls if each() is not call]
            self.budget.end_call()
            self.shown = (call.shown() if is_whole else None) or self.shown
        self.budget.close_step()
