"""The plan for one graph: what forward hands to backward, so that both stay within some bytes."""

from __future__ import annotations

import dataclasses
import time
import warnings
from collections.abc import Callable
from typing import Any, TypeVar

from torch import fx

from .._reprise import BudgetError, _SplitPlan, format_bytes
from ._again import Cut
from ._costs import COSTS
from ._joint import Joint, Measured, Others
from ._kinds import OUTSIDE, module_of
from ._layouts import compute_as_default
from ._loops import computes_otherwise, keep_operands, keep_vectors
from ._needs import Need
from ._parts import added_one_by_one, is_product
from ._schedule import Halves, vectors_of_forward
from ._sizes import Seen
from ._step import Step
from ._timeline import tell_bytes

# Plans that are compared with the backend's schedule; each corrects the next by what the schedule showed.
_TRIES = 4
# A schedule of so many operators takes seconds, so that a plan of more is corrected but once.
_MANY_OPERATORS = 600
# Of the planner's searches. They are counted, not timed: the same graph has the same plan on a busy machine.
_MOVES = 50_000
_MOVES_FOR_LEAST = 5_000
# A plan that runs operators more than once is tried where its peak is below that share of the others' least.
_WORTH_IT = 0.99
# Where the smallest plan takes less than that share of the room, and others too much, one more is tried.
_WORTH_MORE = 0.9
# Values that an error names one by one.
_NAMED = 5
# Calls of compiled blocks in one step.
_MANY_CALLS = 32
# Nearer to the budget than the first, a further try gains nothing to speak of. Nearer than the second, it depends on what it could gain.
_CLOSE, _FAIRLY_CLOSE = 0.985, 0.97
_LITTLE = 0.01  # of a step's seconds
# Graphs of many operators are first planned for that part of the bytes less, 0.6 %: one more try takes long there.
_MARGIN = 160


@dataclasses.dataclass(frozen=True)
class Chosen:
    """Bytes are above those live before the step."""

    cut: Cut
    halves: Halves
    default: Halves
    recompute_seconds: float
    planning_seconds: float
    seconds: float | None  # of both halves, recomputation included; None where nothing had to be planned, and so timed
    computes_otherwise: bool = False  # by other kernels than the compiler's own plan, so that last bits may be others


class NoPlan(Exception):
    """No plan takes so few bytes. `least` is what the smallest one that was found takes."""

    def __init__(self, least: int) -> None:
        self.least = least


@dataclasses.dataclass(frozen=True)
class Realized:
    """A plan that was compared with the backend's schedule."""

    halves: Halves
    cut: Cut
    plan: _SplitPlan
    step: Step  # that it was made for
    computes_otherwise: bool

    def fits(self, room: int) -> bool:
        return self.halves.late_peak <= room and self.halves.peak <= room


class GraphPlanner:
    """Plans one graph, for any number of budgets."""

    def __init__(self, joint: Joint, default: list[Any], halves: Halves | None = None) -> None:
        """`halves`: of the default, where they are known."""
        self.joint = joint
        begin = time.perf_counter()
        self.default_saved = joint.saved_by_default(default)
        joint.keep_small(self.default_saved)
        self.default = self._alone = halves or Halves(joint, Cut(self.default_saved))  # `_alone`: beside no others
        joint.added = added_one_by_one(joint, self.default.own_peak) if joint.fuses else {}
        joint.in_memory |= {at for at, maker in joint.added.items() if not is_product(joint, maker)}
        self._limits = _limits_of(joint)
        self._step: Step | None = None
        self._realized: list[Realized] = []
        self._has_smallest = False  # among them
        self._others = Others()
        self._most_handed_over: float | None = None
        self._seconds_before = time.perf_counter() - begin

    @property
    def step(self) -> Step:
        if self._step is None:
            self._step = Step(self.joint, self._others)
            COSTS.save()
        return self._step

    def choose(self, room: int, others: Others = Others()) -> Chosen:
        """The plan for at most `room` bytes above those live before the graph runs, the others' included. Raises NoPlan where
        there is none."""
        if self.joint.share < 1:
            chosen = self._choose(room, self._beside_what_limits(room, others))
            return dataclasses.replace(chosen, halves=chosen.halves.beside(others), default=chosen.default.beside(others))
        return self._choose(room, others)

    def _choose(self, room: int, others: Others) -> Chosen:
        begin = time.perf_counter()
        self._stand_beside(others)
        if self.default.peak <= room:
            return self._chosen(Cut(self.default_saved), self.default, 0, begin)
        previous: Cut | None = None
        has_many = len(self.step.operators) > _MANY_OPERATORS
        tries = 2 if has_many else _TRIES
        error = guess = room // _MARGIN if has_many else 0  # of the planner's model, as the schedule shows it
        while tries > 0:
            plan = self._plan(max(room - error, 0))
            if not plan.fits:
                if guess:
                    error = guess = 0
                    continue
                if error == 0:
                    error = self._error_at_least()
                    tries -= 1
                    continue
                break
            cut = self.step.cut_of(plan)
            if cut == previous:
                break
            previous = cut
            if not self._realizes(plan):
                error, guess, previous = 0, 0, None
                continue
            halves = self._realized[-1].halves
            tries -= 1
            peak = halves.late_peak if halves.late_peak > room else halves.peak
            if _CLOSE * room <= peak <= room or self._gains_little(plan, peak, room):
                break
            error, guess = peak - plan.peak, 0
        if not self._within(room) and self.smallest().halves.peak < _WORTH_MORE * room:
            plan = self._plan(max(room - 2 * error, 0))
            if plan.fits and self.step.cut_of(plan) != previous:
                self._realizes(plan)
        if not (self._within(room) or self.smallest().fits(room) or self._forgets_limits() and self.smallest().fits(room)):
            raise NoPlan(self.least)
        chosen = min(self._within(room), key=lambda each: (each.computes_otherwise, each.plan.recompute_nanoseconds))
        return self._chosen(chosen.cut, chosen.halves, chosen.plan.recompute_nanoseconds, begin, chosen.computes_otherwise)

    def _gains_little(self, plan: _SplitPlan, peak: int, room: int) -> bool:
        """Whether the rest of the bytes saves few seconds, even if each byte saves several times as many as the mean one does."""
        spare = (room - peak) / max(1, self.default.peak - peak)
        return _FAIRLY_CLOSE * room <= peak <= room and 4 * spare * plan.recompute_nanoseconds < _LITTLE * 1e9 * self.step.seconds

    def _beside_what_limits(self, room: int, others: Others) -> Others:
        """Beside so much after forward that no more is handed over than the joint's share allows: as torch counts it, from the
        least at 0 to the compiler's own choice at 1."""
        if self._most_handed_over is None:
            self._stand_beside(self.beside_many())
            least = self.smallest().halves.between
            self._most_handed_over = least + self.joint.share * max(0, self.default.between - least)
        return dataclasses.replace(others, between=max(others.between, room - int(self._most_handed_over)))

    def _within(self, room: int) -> list[Realized]:
        return [each for each in self._realized if each.fits(room)]

    def smallest(self) -> Realized:
        """The plan of the least peak that was found."""
        while not self._has_smallest:
            self._has_smallest = self._realizes_smallest()
        least, *others = sorted(self._realized, key=lambda each: each.halves.late_peak)
        for each in others:
            if each.fits(least.halves.peak - 1):
                least = each
        return least

    @property
    def least(self) -> int:
        """The least peak that was found. The compiler's own plan may have it, as where an operator's results are kept one by one."""
        return min(self.smallest().halves.peak, self.default.peak)

    def need(self, graph: int = 0, measured: Measured | None = None, is_last: bool = False, beside: int | None = None) -> Need:
        """Of a call of that graph, without what other graphs need. `beside`: what other calls hand over. The smallest plan is then
        the one that hands over least, as far as its peak is below that. None where there are no others; for the only call of a step
        that was measured, the smallest plan does not count."""
        if beside is not None:
            self._stand_beside(Others(beside, beside))
        after = measured.between if measured and is_last else 0
        halves = (self.default if measured and beside is None else self.smallest().halves), self.default
        smallest, default = (each.beside(Others(after, measured=measured)) for each in halves)
        if max(smallest.peak, smallest.between + (beside or 0)) > max(default.peak, default.between + (beside or 0)):
            smallest = default
        return Need((smallest.early_peak, smallest.late_peak), (smallest.between, smallest.late),
                    (default.early_peak, default.late_peak), (default.between, default.late),
                    0 if measured else default.gradients, graph, measured, after, self.joint.bytes_of_forward)

    def leaves_room_for_others(self, room: int) -> bool:
        """Whether the compiler's own plan fits, and as many more of the kind as a large model calls."""
        return self.default.own_peak + _MANY_CALLS * self.default.between <= room

    def beside_many(self) -> Others:
        """Beside so much that what is handed over counts, and not what runs meanwhile."""
        return Others(self.default.own_peak, self.default.own_peak)

    def smallest_beside(self, others: Others) -> Chosen:
        """The plan of the least peak, or the compiler's own if that takes no more."""
        begin = time.perf_counter()
        self._stand_beside(others)
        smallest = self.smallest()
        if self.default.peak <= smallest.halves.peak:
            return self._chosen(Cut(self.default_saved), self.default, 0, begin)
        return self._chosen(smallest.cut, smallest.halves, smallest.plan.recompute_nanoseconds, begin, smallest.computes_otherwise)

    def finish(self, chosen: Chosen | None, forward: fx.GraphModule, backward: fx.GraphModule) -> list[str]:
        """Changes that plan's halves so that they compute as the compiler's own do. Gives the order in which forward is to draw,
        by name. Nothing and none for the compiler's own plan."""
        if chosen is None or chosen.cut.is_default(self.joint, self.default_saved):
            return []
        compute_as_default(forward, backward, self.joint, chosen.cut.in_memory)
        tell_bytes(backward, chosen.halves.known)
        return self.joint.draw_order or []

    def held_at_peak(self) -> str:
        """The values during which the plan of the least peak takes most, with the modules that make them."""
        smallest = self.smallest()
        cut, plan, step = smallest.cut, smallest.plan, smallest.step
        if self.least == self.default.peak:
            cut, plan, step = Cut(self.default_saved), self._plan(self.default.peak), self.step
        values = [(self.joint.nodes[at], self.joint.bytes[at]) for at in step.values_during(plan.peak_operator, cut)]
        named, others = values[:_NAMED], [count for _, count in values[_NAMED:] if count]
        texts = [f"{node.name}{_of_module(node)} ({format_bytes(count)})" for node, count in named]
        return ", ".join(texts) + (f", and {len(others)} others ({format_bytes(sum(others))})" if others else "")

    def _error_at_least(self) -> int:
        self.smallest()
        found = min((each for each in self._realized if each.step is self._step), key=lambda each: each.halves.late_peak)
        return found.halves.peak - found.plan.peak

    def _realizes_smallest(self) -> bool:
        """Compares the candidates for the smallest plan with the backend's schedule. False where others are needed."""
        plan = self.step.step.smallest(moves=_MOVES_FOR_LEAST)
        if not self._realizes(plan):
            return False
        if self._may_repeat():
            repeats = self.step.step.smallest(moves=_MOVES_FOR_LEAST, repeats=True)
            if repeats.peak < _WORTH_IT * plan.peak and not self._realizes(repeats):
                return False
        if self.joint.fuses and len(self.step.operators) <= _MANY_OPERATORS:
            # Which of the two models is nearer to the schedule differs from graph to graph.
            step = Step(self.joint, self._others, in_place=True)
            plan = step.step.smallest(moves=_MOVES_FOR_LEAST, repeats=self._may_repeat())
            if step.cut_of(plan) not in [each.cut for each in self._realized] and not self._realizes(plan, step):
                return False
        if not self._others.between:
            return True
        # Beside other graphs the plan that hands over least may be the smallest where the planner expects too much of backward, as it
        # does where a loop writes its result in place of what it reads.
        beside = self.default.own_peak + self.joint.bytes_of_forward  # so that nothing else counts
        step = Step(self.joint, Others(beside, beside))
        return self._realizes(step.step.smallest(moves=_MOVES_FOR_LEAST), step)

    def _plan(self, room: int) -> _SplitPlan:
        plan = self.step.step.plan(room, moves=_MOVES)
        return plan if plan.fits or not self._may_repeat() else self.step.step.plan(room, moves=_MOVES, repeats=True)

    def _may_repeat(self) -> bool:
        """Whether backward may run operators more than once; those of regions run where torch has them run."""
        return not self.joint.must_repeat

    def _realizes(self, plan: _SplitPlan, step: Step | None = None) -> bool:
        """Compares the plan with the backend's schedule. False where that showed layouts that take too much, or another order of sums or
        form of loops, so that another plan is needed. Those before stay as good as they were. `step`: that it was made for."""
        step = step or self.step
        cut = step.cut_of(plan)
        halves = Halves(self.joint, cut, self._others)
        joint, default = self.joint, set(self.default_saved)
        # One after another: what the first changes may be all that the next would see.
        if joint.keep_layouts(default) or keep_operands(joint, default) or keep_vectors(joint, default, vectors_of_forward):
            self._forget_step()
            return False
        self._realized.append(Realized(halves, cut, plan, step, computes_otherwise(joint)))
        return True

    def _forgets_limits(self) -> bool:
        """Takes back all that `_keeps_layouts` has changed: what larger plans showed may stand in the way of a smaller one. True if
        there was any."""
        if _limits_of(self.joint) == self._limits:
            return False
        for name, found in self._limits.items():
            setattr(self.joint, name, set(found))
        self.joint.backward_order = self.joint.order_of_backward()
        self._forget_step()
        return True

    def _stand_beside(self, others: Others) -> None:
        if others != self._others:
            self._others = others
            self._realized.clear()
            self._forget_step()
        self.default = self._alone.beside(others)  # a plan that was known may have left it beside others

    def _forget_step(self) -> None:
        self._step = None
        self._has_smallest = False

    def _chosen(self, cut: Cut, halves: Halves, nanoseconds: int, begin: float, is_otherwise: bool = False) -> Chosen:
        seconds = self._step.seconds + nanoseconds / 1e9 if self._step is not None else None
        return Chosen(cut, halves, self.default, nanoseconds / 1e9, time.perf_counter() - begin + self._seconds_before, seconds,
                      is_otherwise)


def warn_of_bits(chosen: Chosen) -> None:
    if chosen.computes_otherwise:
        warnings.warn("reprise.compile: within these bytes a graph computes sums or functions by other kernels than torch.compile without a "
                      "budget, so that last bits may differ; raise memory_budget for the same bits", stacklevel=2)


def _limits_of(joint: Joint) -> dict[str, set[int]]:
    """What plans may not do."""
    return {name: set(getattr(joint, name)) for name in ("must_keep", "must_repeat", "once", "in_memory")}


def _of_module(node: fx.Node) -> str:
    return "" if module_of(node) == OUTSIDE else f" of {module_of(node)}"


Planner = TypeVar("Planner", bound=GraphPlanner)


def for_range(joint: Joint, seen: Seen, plan: Callable[[Joint, bool], Planner]) -> Planner:
    """What `plan` gives for the largest upper ends of the joint's sizes that have a plan. It is told whether there are no
    smaller ones to try. Larger sizes are compiled again from then on."""
    ends = joint.sizes.upper_ends(seen)
    for at, upper in enumerate(ends):
        try:
            planner = plan(joint.at(upper), at + 1 == len(ends))
        except (BudgetError, NoPlan):
            if at + 1 == len(ends):
                raise
            continue
        planner.joint.sizes.guard()
        seen.add(planner.joint.sizes)
        return planner
    raise AssertionError("there is at least one")
