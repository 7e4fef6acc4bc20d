"""What the steps of a budget show of one call of a graph."""

from __future__ import annotations

import weakref

import torch

from .._reprise import PeakScope
from ._joint import Joint, Measured, Others
from ._schedule import Halves

# Bytes of the scalars around graphs: the loss, its gradient, seeds.
SCALARS = 4096


class Call:
    """One call of a graph's forward whose backward is still to come. It ends with its backward, or with its outputs."""

    def __init__(self, place: int, live: int, device: str | torch.device | None, sizes: dict[str, int]) -> None:
        self.place, self.live_before = place, live  # among the calls of the step, and bytes
        self.sizes = sizes
        self._device = device
        self._since: PeakScope | None = None
        self._outputs: list[weakref.ref[torch.Tensor]] = []
        self._kept: tuple[bool, ...] = ()

    def made(self, outputs: list[torch.Tensor]) -> None:
        self._outputs = [weakref.ref(each) for each in outputs]
        self._since = PeakScope(self._device)

    def held(self) -> tuple[bool, ...]:
        return tuple(each() is not None for each in self._outputs)

    def first_backward_begins(self) -> None:
        self._kept = self.held()

    def measure(self, halves: Halves, joint: Joint, live: int, freed: tuple[bool, ...]) -> Measured | None:
        """When its backward begins and so many bytes are live. None where its sizes tell nothing of those that a plan is for."""
        is_known = len(self._outputs) == len(joint.forward_outputs)
        held, kept = (self.held(), self._kept) if is_known else ((True,) * len(joint.forward_outputs), ())
        freed = freed if len(freed) == len(joint.tangents) else ()
        beside = live - self.live_before - halves.between_with(self.sizes, Others(measured=Measured(0, held)))
        beside -= sum(joint.bytes_with(at, self.sizes) for at, is_freed in zip(joint.tangents, freed) if is_freed)
        between = 0
        if self._since:
            self._since.__exit__(None, None, None)
            between = self._since.peak_above_start
        growth = joint.sizes.growth(self.sizes)
        if growth is None:
            return None
        return Measured(_rounded(beside * growth), held, _rounded(between * growth), kept, freed)


def _rounded(count: float) -> int:
    """So that the next process finds the plan that was made for it."""
    return max(0, -(-int(count) // SCALARS)) * SCALARS
