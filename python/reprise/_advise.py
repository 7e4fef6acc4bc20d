"""advise(): what makes a training step of a module fit on a device, before anything is allocated.

    | the first of these that is true                | remedy                     |
    |------------------------------------------------|----------------------------|
    | the plain step fits                            | "off"                      |
    | the state alone does not fit                   | "shards", or with a batch  |
    | regions or a byte budget fit                   | the one of least time      |
    | fewer samples, or more shards, fit             | "smaller batch", "shards"  |
    | fewer samples and more shards together fit     | "smaller batch and shards" |
"""

from __future__ import annotations

import contextlib
import dataclasses
import html
from typing import Any, Callable, Iterable, Iterator, Literal, SupportsIndex

import torch

from . import _reprise
from ._estimate import estimate
from ._reprise import Estimate, Machine, format_bytes

Remedy = Literal["off", "regions", "budget", "smaller batch", "shards", "smaller batch and shards", "none"]

MOST_SHARDS = 1 << 20
SLOWEST = 2.0  # A budget under which a step takes longer than so many plain ones counts as too small.


@dataclasses.dataclass(frozen=True)
class Way:
    """One way to run the step in fewer bytes.

    name: "regions", each block in reprise.checkpoint(); or "budget", a reprise.MemoryBudget of the device's bytes.
    peak: the most bytes live at once.
    slowdown: the step's time divided by the plain step's; of a budget, once it has learned the step.
    slowdown_before_learning: of a budget, in its first steps; None: it may not fit before it has learned the step.
    """

    name: Literal["regions", "budget"]
    peak: int
    slowdown: float
    slowdown_before_learning: float | None = None


@dataclasses.dataclass(frozen=True)
class Advice:
    """What makes the step fit, and the figures that say so; str() of it is the text.

    remedy: "off" (the plain step fits), "regions", "budget", "smaller batch", "shards", "smaller batch and shards" or "none".
    way: the Way that the remedy takes, if any.
    words: sentences with the figures, the advice first.
    device_bytes: bytes that the device has for tensors.
    state: bytes of parameters, buffers, optimizer state and gradients, on one device.
    plain_peak, plain_activations: bytes of the step as it is.
    ways: all that were estimated, whether they fit or not.
    largest_batch: the most samples with which the way of least memory fits; None where none was found, or none was needed.
    least_shards: the fewest devices among which the state is divided so that it fits; None as above.
    together: (samples, devices), where only fewer samples and more devices together fit; else None.
    """

    remedy: Remedy
    way: Way | None
    words: tuple[str, ...]
    device_bytes: int
    state: int
    plain_peak: int
    plain_activations: int
    ways: tuple[Way, ...] = ()
    largest_batch: int | None = None
    least_shards: int | None = None
    together: tuple[int, int] | None = None

    def __str__(self) -> str:
        return "\n".join(self.words)

    def _repr_html_(self) -> str:
        rows = [("plain", self.plain_peak, 1.0), *((way.name, way.peak, way.slowdown) for way in self.ways)]
        cells = "".join(
            f"<tr><td>{name}</td><td>{html.escape(format_bytes(peak))}</td><td>{slowdown:.3f}</td>"
            f"<td>{'yes' if peak <= self.device_bytes else 'no'}</td></tr>" for name, peak, slowdown in rows)
        words = "".join(f"<p>{html.escape(word)}</p>" for word in self.words)
        return (f"{words}<table><caption>Advice: {html.escape(self.remedy)}</caption>"
                f"<tr><th>way</th><th>peak</th><th>slowdown</th><th>fits</th></tr>{cells}</table>")


def advise(
    module: torch.nn.Module,
    *inputs: Any,
    device_bytes: int | str,
    loss: Callable[[Any], torch.Tensor] | None = None,
    optimizer: Literal["sgd", "adamw"] | None = None,
    master_weights: bool = True,
    device: str | torch.device = "cpu",
    machine: Machine | None = None,
    shards: int = 1,
    blocks: Iterable[torch.nn.Module] | None = None,
    time_limit: float = 1.0,
    moves: int = 0,
    **keywords: Any,
) -> Advice:
    """Says what makes a training step fit into a device's bytes, with figures, before anything is allocated.

        with torch.device("meta"):
            model = GPT(layers=32, width=4096)
        tokens = torch.empty(8, 4096, dtype=torch.long, device="meta")
        print(reprise.advise(model, tokens, device_bytes="80GB", optimizer="adamw", device="cuda"))

    The step is estimated plainly and with each block in a region, and a byte budget is tried on its trace. If none of them
    fits, fewer samples and more shards are tried. Nothing is changed: take what the advice says by yourself.

    device_bytes: bytes that one device has for tensors: an int, or a text such as "80GB".
    loss, optimizer, master_weights, device, machine, shards: as of reprise.estimate().
    blocks: the modules that become regions. None: the items of each outermost ModuleList and Sequential.
    time_limit: seconds of each of the two searches for the cost of a budget; `moves` is a number of moves of the plan's search
        in its place, for the same answer each time.

    A batch is the first dimension of the first tensor of `inputs`. Smaller ones cut all tensors of that first dimension. A
    loss with tensors of its own does not follow; then the words say that batches were not tried.

    Raises UsageError for bytes that are none, and all errors of reprise.estimate(). Nobody else may use the module meanwhile.
    """
    is_share = isinstance(device_bytes, str) and device_bytes.strip().endswith("%")  # of what, no option says
    limit = 0 if is_share else _reprise.parse_bytes(device_bytes) if isinstance(device_bytes, str) else _index(device_bytes)
    if limit <= 0:
        raise _reprise.UsageError(f"advise(): device_bytes is {device_bytes!r}; give the bytes that a device has, as \"80GB\"")

    def measure(regions: bool, batch: int | None = None, shards: int = shards) -> Estimate:
        cut = _cut(inputs, keywords, batch)
        with _regions(regioned) if regions else contextlib.nullcontext():
            return estimate(module, *cut[0], loss=loss, optimizer=optimizer, master_weights=master_weights, device=device,
                            machine=machine, shards=shards, **cut[1])

    regioned = list(_blocks_of(module) if blocks is None else blocks)
    adviser = _Adviser(limit, measure, _batch_of(inputs), shards, bool(regioned))
    return adviser.advice(time_limit, moves)


def _index(value: SupportsIndex) -> int:
    try:
        return value.__index__()
    except AttributeError:
        raise _reprise.UsageError(f"advise(): device_bytes is {value!r}; give an int, or a text such as \"80GB\"") from None


def _blocks_of(module: torch.nn.Module) -> Iterator[torch.nn.Module]:
    if isinstance(module, (torch.nn.ModuleList, torch.nn.Sequential)) and len(module) > 1:
        yield from module.children()
        return
    for child in module.children():
        yield from _blocks_of(child)


@contextlib.contextmanager
def _regions(blocks: list[torch.nn.Module]) -> Iterator[None]:
    """Each block's forward runs in a region."""
    from .checkpoint import checkpoint

    def in_region(forward: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *args, **kwargs: checkpoint(forward, *args, use_reentrant=False, **kwargs)

    own = [(block, block.__dict__.get("forward")) for block in dict.fromkeys(blocks)]
    for block, _ in own:
        block.__dict__["forward"] = in_region(block.forward)
    try:
        yield
    finally:
        for block, forward in own:
            if forward is None:
                del block.__dict__["forward"]
            else:
                block.__dict__["forward"] = forward


def _batch_of(inputs: tuple[Any, ...]) -> int | None:
    return next((each.size(0) for each in inputs if isinstance(each, torch.Tensor) and each.dim() > 0), None)


def _cut(inputs: tuple[Any, ...], keywords: dict[str, Any], batch: int | None) -> tuple[list[Any], dict[str, Any]]:
    """The arguments for fewer samples; as they are for None."""
    whole = _batch_of(inputs)

    def cut(value: Any) -> Any:
        if batch is None or not isinstance(value, torch.Tensor) or value.dim() == 0 or value.size(0) != whole:
            return value
        return torch.empty_like(value[:batch], device="meta").requires_grad_(value.requires_grad)

    return [cut(each) for each in inputs], {name: cut(each) for name, each in keywords.items()}


def _more_time(slowdown: float) -> str:
    return f"{100 * (slowdown - 1):.1f} % more time"


class _Adviser:
    def __init__(self, limit: int, measure: Callable[..., Estimate], batch: int | None, shards: int, has_blocks: bool) -> None:
        self._limit, self._measure, self._batch, self._shards = limit, measure, batch, shards
        self._has_blocks = has_blocks
        self._notes: list[str] = []

    def advice(self, time_limit: float, moves: int) -> Advice:
        plain = self._measure(False)
        self._state = plain.parameters + plain.buffers + plain.optimizer_state + plain.gradients
        self._plain = plain
        ways = [*self._regions()]
        if plain.peak > self._limit and plain.trace.floor <= self._limit:
            ways += self._budget(time_limit, moves)
        self._ways = tuple(ways)
        if plain.peak <= self._limit:
            return self._told("off", None, [
                f"Leave checkpointing off: the plain step peaks at {format_bytes(plain.peak)}, and the device has "
                f"{format_bytes(self._limit)}."])
        fitting = [way for way in ways if way.peak <= self._limit]
        return self._take(fitting) if fitting else self._make_smaller()

    def _regions(self) -> Iterator[Way]:
        if not self._has_blocks:
            return
        try:
            found = self._measure(True)
        except _reprise.Error as error:
            self._has_blocks = False
            self._notes.append(f"Regions were not tried, because blocks do not run in them: {error}.")
        else:
            yield Way("regions", found.peak, found.seconds / self._plain.seconds)

    def _budget(self, time_limit: float, moves: int) -> Iterator[Way]:
        trace = self._plain.trace
        online = trace.simulate(
            self._limit, heuristic="h_up", slowdown_limit=SLOWEST, time_limit=0 if moves else time_limit, by_index=True)
        slowdowns = [online.slowdown] if online.outcome == "fits" else []
        plan = _reprise.hindsight(trace, self._limit, time_limit=time_limit, moves=moves)
        if plan.fits and plan.slowdown <= SLOWEST:
            slowdowns.append(plan.slowdown)
        if slowdowns:
            yield Way("budget", self._limit, min(slowdowns), online.slowdown if online.outcome == "fits" else None)
        elif online.outcome == "out of time":
            self._notes.append("Whether a byte budget fits is not known: the step has too many operators to see in time.")

    def _told(self, remedy: Remedy, way: Way | None, words: list[str], **found: Any) -> Advice:
        return Advice(remedy, way, tuple(words + self._notes), self._limit, self._state, self._plain.peak,
                      self._plain.activations, self._ways, **found)

    def _take(self, fitting: list[Way]) -> Advice:
        best = min(fitting, key=lambda way: way.slowdown)
        words = [f"Use {self._described(best)}.",
                 f"The plain step would need {format_bytes(self._plain.peak)}, and {format_bytes(self._plain.activations)} of that "
                 "are activations."]
        words += [f"Or {self._described(way)}." for way in fitting if way is not best]
        return self._told("regions" if best.name == "regions" else "budget", best, words)

    def _described(self, way: Way) -> str:
        if way.name == "regions":
            return (f"regions, each block in reprise.checkpoint(): the step peaks at {format_bytes(way.peak)} of "
                    f"{format_bytes(self._limit)}, for {_more_time(way.slowdown)}")
        before = way.slowdown_before_learning
        return (f"a byte budget, reprise.MemoryBudget({self._limit}): {_more_time(way.slowdown)} once it has learned the step, "
                + ("and it may not fit before" if before is None else f"{100 * (before - 1):.1f} % before"))

    def _make_smaller(self) -> Advice:
        regions = next((way for way in self._ways if way.name == "regions"), None)
        way = regions if regions is not None and regions.peak < self._plain.peak else None
        under = "with each block in a region" if way else "as it is"
        least = format_bytes(way.peak if way else self._plain.peak)
        batch = None if self._state > self._limit else self._largest_batch(way is not None, self._shards)
        shards = self._least_shards(way is not None, None)
        together = None
        if batch is None and shards is None and self._batch is not None and self._batch > 1:
            found = self._least_shards(way is not None, 1)
            if found is not None:
                together = (self._largest_batch(way is not None, found) or 1, found)
        if self._state > self._limit:
            words = [f"Divide the state: parameters, buffers, gradients and optimizer state are {format_bytes(self._state)} of the "
                     f"device's {format_bytes(self._limit)}, and checkpointing frees none of them."]
        else:
            words = [f"The step needs {least} {under}, and the device has {format_bytes(self._limit)}."]
        if batch is not None:
            words.append(f"With a batch of {batch} in place of {self._batch} it fits, {under}.")
        if shards is not None:
            words.append(f"With shards={shards} it fits, {under}.")
        if together is not None:
            words.append(f"With a batch of {together[0]} in place of {self._batch} and shards={together[1]} it fits, {under}.")
        remedy: Remedy = ("smaller batch" if batch is not None else "shards" if shards is not None
                          else "smaller batch and shards" if together is not None else "none")
        if remedy == "none":
            way = None
            words.append(f"Nothing fits, with up to {MOST_SHARDS} shards and the fewest samples: shorten the samples, or divide the "
                         "layers among devices.")
        return self._told(remedy, way, words, largest_batch=batch, least_shards=shards, together=together)

    def _fits(self, regions: bool, batch: int | None, shards: int) -> bool:
        return self._measure(regions, batch, shards).peak <= self._limit

    def _largest_batch(self, regions: bool, shards: int) -> int | None:
        """By bisection, since fewer samples need less."""
        works, fails = 0, self._batch or 0
        try:
            while fails - works > 1:
                middle = (works + fails) // 2
                works, fails = (middle, fails) if self._fits(regions, middle, shards) else (works, middle)
        except Exception as error:  # noqa: BLE001  (the program's own code may not run on fewer samples)
            self._notes.append(f"Smaller batches were not tried, because the step fails with them: {error}")
            self._batch = None
            return None
        return works or None

    def _least_shards(self, regions: bool, batch: int | None) -> int | None:
        """By powers of two, as machines have them."""
        fails, works = 0, 0
        while self._shards << (works + 1) <= MOST_SHARDS:
            works += 1
        if works == 0 or not self._fits(regions, batch, self._shards << works):
            return None
        while works - fails > 1:
            middle = (works + fails) // 2
            fails, works = (fails, middle) if self._fits(regions, batch, self._shards << middle) else (middle, works)
        return self._shards << works
