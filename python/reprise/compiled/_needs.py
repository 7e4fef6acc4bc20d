"""What the calls of a step need together: each runs over what those before it hand to backward."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from ._joint import Measured


@dataclasses.dataclass(frozen=True)
class Need:
    """Bytes of a call of a graph under its smallest plan and under the compiler's own, each time until the first backward of
    the step begins and from then on: in its peak, and between its halves. `graph` is the same number for calls of the same
    graph."""

    least_peaks: tuple[int, int]
    least_between: tuple[int, int]
    default_peaks: tuple[int, int]
    default_between: tuple[int, int]
    gradients: int
    graph: int = 0
    measured: Measured | None = None
    after: int = 0  # bytes that code outside of graphs takes before backward
    of_forward: int = 0  # of all results of forward

    def peak(self, share: float) -> float:
        return max(self.peaks(share))

    def peaks(self, share: float) -> tuple[float, float]:
        return _on_the_way(self.least_peaks, self.default_peaks, share)

    def between(self, share: float) -> tuple[float, float]:
        return _on_the_way(self.least_between, self.default_between, share)

    def scaled(self, factor: float) -> Need:
        """An estimate for larger sizes, of which nothing was measured."""
        counts: dict[str, Any] = {name: tuple(int(one * factor) for one in each) if isinstance(each, tuple) else int(each * factor)
                                  for name, each in vars(self).items() if name not in ("graph", "measured")}
        return Need(**counts, graph=self.graph)

    @staticmethod
    def read(written: dict[str, Any]) -> Need:
        fields: dict[str, Any] = {name: tuple(each) if isinstance(each, list) else each for name, each in written.items()}
        return Need(**fields)


def _on_the_way(least: tuple[int, int], most: tuple[int, int], share: float) -> tuple[float, float]:
    early, late = (low + share * max(0, high - low) for low, high in zip(least, most))
    return early, late


def stacked(halves: list[Any]) -> int:
    """Of graphs in the order of their forwards: each runs over what those before it hand to backward."""
    peak = between = late = 0
    gradients = sum(each.gradients for each in halves)
    for each in halves:
        gradients -= each.gradients
        later = 0 if each.others.measured else gradients
        peak = max(peak, between + each.forward, late + each.backward + later)
        between += each.between
        late += each.late
    return peak


def needs_of_step(between: Sequence[int], need: Callable[[int, int | None], Need]) -> list[Need]:
    """Of calls whose default plans hand over so many bytes. `need` gives that of a call by its place, for a smallest plan beside
    what others hand over. Among few calls the peak of each counts, and among many what each hands over."""
    count, handed_over = len(between), sum(between)
    if count < 2:
        return [need(at, None) for at in range(count)]
    several = [[need(at, beside) for at, beside in enumerate(every)]
               for every in ([0] * count, [handed_over - each for each in between])]
    return min(several, key=lambda needs: max(stacked_needs(needs, 0.0)))


def largest_share(needs: list[Need], room: int) -> float:
    """How far all graphs can be from their smallest plans towards the compiler's own, alike."""
    low, high = 0.0, 1.0
    for _ in range(20):
        share = (low + high) / 2
        low, high = (share, high) if max(stacked_needs(needs, share)) <= room else (low, share)
    return low


def stacked_needs(needs: list[Need], share: float) -> tuple[float, float]:
    """Until the first backward of the step begins, and from then on."""
    peaks, saved = [0.0, 0.0], [0.0, 0.0]
    gradients = sum(each.gradients for each in needs)
    for need in needs:
        gradients -= need.gradients
        for at, (peak, between) in enumerate(zip(need.peaks(share), need.between(share))):
            peaks[at] = max(peaks[at], saved[at] + peak + gradients * at)
            saved[at] += between
    return peaks[0], peaks[1]
