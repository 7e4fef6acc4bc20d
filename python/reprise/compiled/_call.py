"""What the steps of a budget show of one call of a graph."""

from __future__ import annotations

import dataclasses
import time
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.multiprocessing import reductions

from .._reprise import PeakScope, _FreedBlocksUse, default_device
from ._joint import Joint, Measured, Others
from ._schedule import Halves

# Bytes of the scalars around graphs: the loss, its gradient, seeds.
SCALARS = 4096


@dataclasses.dataclass(frozen=True)
class Shown:
    """What a whole call took: bytes above those live before it, until its backward had ended, and the seconds of both halves.
    An accelerator's are not known, where calls return before they end."""

    peak: int
    seconds: float | None


class WatchedCall:
    """One call of a graph's forward whose backward is still to come. It ends with its backward, or with its outputs."""

    compilations = 0  # of all graphs, counted when they begin and when they end

    def __init__(self, device: str | torch.device | None) -> None:
        self._is_timed = torch.device(device or default_device()).type == "cpu"
        self._compilations = WatchedCall.compilations
        self._whole = PeakScope(device)
        self._freed_blocks: _FreedBlocksUse | None = _FreedBlocksUse()
        self._seconds = 0.0

    def forward_begins(self) -> None:
        self._begin = time.perf_counter()

    backward_begins = forward_begins

    def forward_ends(self) -> None:
        self._seconds += time.perf_counter() - self._begin

    def shown(self) -> Shown | None:
        """When its backward has ended. None where something was compiled meanwhile, which takes bytes of its own."""
        self.forward_ends()
        self._whole.__exit__(None, None, None)
        self._freed_blocks = None
        if self._compilations != WatchedCall.compilations:
            return None
        return Shown(self._whole.peak_above_start, self._seconds if self._is_timed else None)


class Call(WatchedCall):
    def __init__(self, place: int, live: int, device: str | torch.device | None, sizes: dict[str, int], ended_before: int) -> None:
        """`ended_before`: calls whose backward had ended."""
        super().__init__(device)
        self.ended_before = ended_before
        self.place, self.live_before = place, live  # among the calls of the step, and bytes
        self.sizes = sizes
        self._device = device
        self._since: PeakScope | None = None
        self._outputs: list[Callable[[], bool]] = []  # whether somebody has them
        self._kept: tuple[bool, ...] = ()

    def made(self, outputs: list[torch.Tensor], handed_over: tuple[bool, ...]) -> None:
        """`handed_over`: of each output, whether its memory is kept for backward as well."""
        if len(handed_over) != len(outputs):
            handed_over = (True,) * len(outputs)
        self._outputs = [_watched(*each) for each in zip(outputs, handed_over)]
        self._since = PeakScope(self._device)

    def held(self) -> tuple[bool, ...]:
        return tuple(each() for each in self._outputs)

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


def _watched(output: torch.Tensor, is_handed_over: bool) -> Callable[[], bool]:
    """Gives whether somebody has the tensor, or a view of it, such as a later graph hands to its backward. Of memory that this graph
    keeps itself, views cannot be told from its own."""
    tensor = weakref.ref(output)
    if is_handed_over or output.layout is not torch.strided:
        return lambda: tensor() is not None
    weak: Any = reductions.StorageWeakRef
    memory = weak(output.untyped_storage())
    return lambda: tensor() is not None or not memory.expired()


def _rounded(count: float) -> int:
    """So that the next process finds the plan that was made for it."""
    return max(0, -(-int(count) // SCALARS)) * SCALARS
