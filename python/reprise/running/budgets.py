"""The budgets of a run: what the first steps show, the limit that follows, and what it cost."""

from __future__ import annotations

import dataclasses
import os
import sys
import time
from typing import TYPE_CHECKING, Any

from .._reprise import MemoryBudget, StepReport, format_bytes, live_bytes
from .asked import Asked, Measured

if TYPE_CHECKING:
    from ..compiled._run import RunGraphs

# Of the device's bytes, for steps that are measured.
_MOST_OF_DEVICE = 0.9
# Plans of compiled graphs that are measured after the first; each saves what the one before lacked, and a tenth more. The
# last one saves all that graphs can.
_MOST_CORRECTIONS = 3
_MORE = 1.1
# So many steps of every optimizer are measured, or so many stretches in all where one steps seldom or never.
_ROUNDS, _MOST_MEASURED = 2, 12
# After each plan, so many more.
_MORE_ROUNDS, _MORE_MEASURED = 1, 4
# Of the bytes of a step: what was live before it has to change by more until the limit does.
_CHANGE = 0.01
# Limits of earlier steps whose budgets are kept.
_MOST_LIMITS = 4


def rank() -> str | None:
    """This process's rank where a launcher such as torchrun has started several."""
    return os.environ.get("RANK") if os.environ.get("WORLD_SIZE", "1") != "1" else None


def say(text: str) -> None:
    """One line on standard error, which names the rank where there are several."""
    place = "" if rank() is None else f" [rank {rank()}]"
    # One write, between which no other process can come.
    sys.stderr.write(f"reprise{place}: {text}\n")
    sys.stderr.flush()


class Refused(SystemExit):
    """No step can run within the budget that was asked for. The exit code is 2."""


@dataclasses.dataclass
class Total:
    """Sums over all stretches; bytes and seconds."""

    steps: int = 0
    peak: int = 0
    peak_between: int = 0
    dropped: int = 0
    dropped_bytes: int = 0
    replayed: int = 0
    seconds_lost: float = 0.0

    def add(self, report: StepReport, *, is_training: bool) -> None:
        self.steps += is_training
        if is_training:
            self.peak = max(self.peak, report.peak)
        else:
            self.peak_between = max(self.peak_between, report.peak)
        self.dropped += report.dropped
        self.dropped_bytes += report.dropped_bytes
        self.replayed += report.replayed
        self.seconds_lost += report.replay_time + report.pack_time + report.own_time


class RunBudgets:
    """Until every optimizer has stepped twice, but for at most 12 steps, steps may pass a limit in which they cannot run,
    and then the least bytes are known. A budget that depends on a plain step gives these steps all of the device. The first
    step is not measured: optimizers have no state yet, and what the script made before it may still be there. Among the
    others, the step with the highest peak counts: several optimizers have steps that differ.

    Compiled graphs are planned next: they and the tape save the same part of what each can. Then another step of every
    optimizer is measured."""

    def __init__(self, asked: Asked, device: str) -> None:
        self.limit: int | None = None
        self.found: Measured | None = None
        self.refusal: str | None = None
        self.measured_peak = 0
        self.total = Total()
        self.began = time.perf_counter()
        self._asked, self._device = asked, device
        self._training: MemoryBudget | None = None
        self._between: MemoryBudget | None = None
        self._live = 0
        self._highest = 0  # of the limits
        self._others: list[tuple[int, MemoryBudget, MemoryBudget]] = []  # limits of earlier steps, with their budgets
        self._plain_live = self._plain_peak = self._least = 0
        self._has_dropped = False
        self._measured = 0  # stretches, the first included
        self._graphs: RunGraphs | None = None
        self._corrections = 0
        self._until_rounds, self._until_measured = _ROUNDS, _MOST_MEASURED

    def graphs(self) -> RunGraphs:
        """Those that the script compiles. Imports what torch compiles with."""
        if self._graphs is None:
            from ..compiled._run import RunGraphs

            self._graphs = RunGraphs(self._device, lambda: self.limit, self._say_unplanned)
        return self._graphs

    @staticmethod
    def _say_unplanned(why: str) -> None:
        say(f"a compiled graph is not planned, and keeps what the compiler chose: {why}")

    def training(self) -> MemoryBudget:
        if self.refusal is not None:
            raise Refused(2)  # the script has caught the first one
        live = live_bytes(self._device)
        if self.found is not None:
            self._follow(live)
        else:
            self._live = live
            if self._asked.is_above_live and self.limit != self._live + self._asked.bytes:
                self._training = None  # the optimizer has made its state meanwhile
        if self._training is None:
            self._begin()
        if self._graphs is not None:
            self._graphs.step_begins()
        assert self._training is not None
        return self._training

    def between(self) -> MemoryBudget:
        if self._between is None:
            self._begin()
        assert self._between is not None
        return self._between

    def trained(self, budget: MemoryBudget, rounds: int) -> None:
        report = budget.report()
        if self.found is not None:
            self.total.add(report, is_training=True)
            return
        self._measured += 1
        self.measured_peak = max(self.measured_peak, report.peak)
        if not self._is_divided:
            self._has_dropped |= report.dropped + report.packed > 0
        if self._measured == 1:
            return
        if not self._is_divided and report.peak > self._plain_peak:
            self._plain_live, self._plain_peak = self._live, report.peak
        # Finding the least takes a moment, and a limit that dropped nothing suffices.
        if self._has_dropped or self._asked.needs_plain_steps or self._is_divided:
            self._least = max(self._least, budget.least or 0)
        found = Measured(self._plain_live, self._plain_peak, self._least)
        if rounds < self._until_rounds and self._measured < self._until_measured:
            return
        if self._divides(found, report):
            self._until_rounds, self._until_measured = rounds + _MORE_ROUNDS, self._measured + _MORE_MEASURED
        else:
            self._settle(found)

    @property
    def _is_divided(self) -> bool:
        """Whether compiled graphs were planned by what steps showed."""
        return self._graphs is not None and self._graphs.saving is not None

    def _divides(self, found: Measured, report: StepReport) -> bool:
        """Plans the graphs of the last step. Whether a step with other plans is to be measured."""
        graphs = self._graphs
        of_graphs = graphs.can_save() if graphs is not None else 0
        if graphs is None or of_graphs == 0:
            return False
        saving = graphs.saving
        if self._asked.is_least:
            saving = 1.0
        elif saving is None:
            plain = report.peak + report.dropped_bytes
            of_tape = max(0, plain - found.least) if found.least else 0
            saving = max(0, plain + graphs.saved() - self._asked.limit(found)) / (of_tape + of_graphs)
        elif found.least > self._asked.limit(found) and self._corrections < _MOST_CORRECTIONS:
            self._corrections += 1
            more = _MORE * (found.least - self._asked.limit(found)) / of_graphs
            saving = 1.0 if self._corrections == _MOST_CORRECTIONS else saving + more
        if self._is_divided and (graphs.saving == 1 or saving == graphs.saving) or not graphs.plan_again(saving):
            return False
        self._least = 0
        self.limit = None if self._asked.is_least else self._asked.limit(found)
        self._begin()
        return True

    def idled(self, budget: MemoryBudget) -> None:
        self.total.add(budget.report(), is_training=False)

    def _begin(self) -> None:
        """Budgets for the steps that are measured."""
        options: dict[str, Any] = {"device": self._device, "on_exceeded": "pass"}
        if self._asked.needs_plain_steps and self.limit is None:
            self._training = MemoryBudget.fraction_of_device(_MOST_OF_DEVICE, **options)
            self._between = MemoryBudget.fraction_of_device(_MOST_OF_DEVICE, plan_repeated_steps=False, **options)
            return
        if not self._asked.needs_plain_steps:
            self.limit = self._asked.limit_before_measuring(live_bytes(self._device))
        assert self.limit is not None
        self._training = MemoryBudget(self.limit, **options)
        self._between = MemoryBudget(self.limit, plan_repeated_steps=False, **options)

    def _settle(self, found: Measured) -> None:
        self.found = found
        if self._asked.share and self._has_dropped:
            self._refuse(f"--budget {self._asked.text} is a share of what a plain step needs, which does not fit into this "
                         "machine; give bytes, or least")
        refusal = self._asked.refusal(found)
        if refusal is not None:
            self._refuse(refusal)
        if self._asked.needs_plain_steps:
            say(self._asked.describe(found))
        self._live = found.live
        self._keep_within(self._asked.limit(found))

    def _keep_within(self, limit: int) -> None:
        self.limit, self._highest = limit, max(limit, self._highest)
        self._training = MemoryBudget(limit, device=self._device, on_exceeded="pass" if self._asked.is_least else "raise")
        self._between = MemoryBudget(limit, device=self._device, on_exceeded="pass", plan_repeated_steps=False)

    def _follow(self, live: int) -> None:
        """A limit that is above what is live follows it: some optimizers keep more with each step. Steps of several optimizers may
        take turns with what they keep, so that the budgets of a few limits are kept, with what they have learned."""
        assert self.limit is not None and self._training is not None and self._between is not None
        room = self.limit - self._live
        if not self._asked.follows_live or abs(live - self._live) <= _CHANGE * room:
            return
        plan = self._training.plan()
        self._others = [*self._others, (self.limit, self._training, self._between)][-_MOST_LIMITS:]
        for at, (limit, training, between) in enumerate(self._others):
            if abs(limit - room - live) <= _CHANGE * room:
                del self._others[at]
                self.limit, self._training, self._between = limit, training, between
                break
        else:
            self._keep_within(live + room)
            if plan is not None and plan.limit <= self.limit:
                self._training.use(plan, learn_other_step=True)
        self._live = self.limit - room

    def _refuse(self, text: str) -> None:
        self.refusal = text
        say(f"error: {text}")
        raise Refused(2)

    def line(self) -> str:
        total, seconds = self.total, time.perf_counter() - self.began
        if self.limit is None or self.found is None:
            return f"the script ended before a limit was known, after {self._measured} steps; " \
                   f"peak {format_bytes(self.measured_peak)}"
        if total.steps == 0:
            return f"no step came to its end within the limit of {format_bytes(self.limit)}; the {self._measured} steps that " \
                   f"were measured had a peak of {format_bytes(self.measured_peak)}"
        limit = self._highest  # it may have followed what was live
        text = f"peak {format_bytes(total.peak)} of {format_bytes(limit)} in {total.steps} steps, dropped {total.dropped} " \
               f"values ({format_bytes(total.dropped_bytes)}), replayed {total.replayed} operators, " \
               f"{total.seconds_lost:.2f} s lost ({100 * total.seconds_lost / seconds:.1f}% of the run)"
        if self._asked.is_least and total.peak > limit:
            text += "; some steps needed more than the least that was measured"
        saved = self._graphs.saved() if self._graphs is not None else 0
        if saved:
            text += f"; compiled graphs save {format_bytes(saved)} of a step"
        if total.peak_between > limit:
            text += f"; between the steps {format_bytes(total.peak_between)}"
        return text

    def report(self) -> dict[str, Any]:
        graphs = self._graphs.report() if self._graphs is not None else []
        return {"budget": self._asked.text, "device": self._device, "limit": self.limit, "refused": self.refusal,
                "plain": self.found and dataclasses.asdict(self.found), "measured_peak": self.measured_peak,
                "seconds": time.perf_counter() - self.began, "graphs": [dataclasses.asdict(each) for each in graphs],
                **dataclasses.asdict(self.total)}
