"""A budget as it is written for `reprise run`, and the limit that it comes to.

| written    | means                                                                                |
| ---------- | ------------------------------------------------------------------------------------ |
| 400MB 8GiB | all bytes of the device's allocator                                                  |
| +2GB       | bytes above those live before a step                                                 |
| 40%        | that share of the activations: of what a plain step needs above what is live before  |
| least      | the least bytes in which the measured steps run, and 2 % more                        |
"""

from __future__ import annotations

import dataclasses

from .._reprise import UsageError, format_bytes, parse_bytes

_FORMS = "give bytes (8GiB, 400MB), bytes above those live before a step (+2GB), or a share of the activations (40%)"
_OR_LEAST = ", or least"
# Which value is dropped first depends on measured times.
_ROOM = 1.02


@dataclasses.dataclass(frozen=True)
class Measured:
    """What plain steps showed: bytes."""

    live: int  # before a step
    peak: int  # of a step
    least: int  # in which a step runs


@dataclasses.dataclass(frozen=True)
class Asked:
    text: str
    bytes: int = 0
    share: float = 0.0

    @staticmethod
    def parse(text: str, name: str = "--budget", *, has_least: bool = True) -> Asked:
        """Raises UsageError, which calls the budget `name`, for a text that is none."""
        forms = _FORMS + _OR_LEAST if has_least else _FORMS
        if text == "least" and has_least:
            return Asked(text)
        if text.endswith("%"):
            try:
                share = float(text[:-1]) / 100
            except ValueError:
                share = 0.0
            if not 0 < share <= 1 or text.startswith("+"):
                raise UsageError(f"{name} is '{text}': a share is above 0% and at most 100%; {forms}")
            return Asked(text, share=share)
        try:
            count = parse_bytes(text)
        except UsageError as error:
            raise UsageError(f"{name} is '{text}'; {forms}") from error
        if count <= 0:
            raise UsageError(f"{name} is '{text}': it must be above 0; {forms}")
        return Asked(text, bytes=count)

    @property
    def needs_plain_steps(self) -> bool:
        return self.bytes == 0

    @property
    def is_least(self) -> bool:
        """Later steps may pass the limit where nothing is left to drop: measured times decide what is dropped first."""
        return self.text == "least"

    @property
    def is_above_live(self) -> bool:
        return self.text.startswith("+")

    @property
    def follows_live(self) -> bool:
        """Whether the limit is of what a step needs above what is live before it."""
        return self.is_above_live or self.needs_plain_steps

    def limit_before_measuring(self, live: int) -> int:
        return live + self.bytes if self.is_above_live else self.bytes

    def limit(self, found: Measured) -> int:
        if self.share:
            return found.live + int((found.peak - found.live) * self.share)
        if self.is_least:
            return int(found.least * _ROOM)
        return self.limit_before_measuring(found.live)

    def describe(self, found: Measured) -> str:
        """What a plain step showed, and the limit."""
        plain = f"a plain step needs {format_bytes(found.peak - found.live)} above {format_bytes(found.live)} live before it"
        return f"{plain}; --budget {self.text} is a limit of {format_bytes(self.limit(found))}"

    def refusal(self, found: Measured) -> str | None:
        """The reason why no step can run; None if steps can."""
        limit = self.limit(found)
        if limit >= found.least:
            return None
        text = f"--budget {self.text} is {format_bytes(limit)} ({limit} bytes), and a step needs at least " \
               f"{format_bytes(found.least)} ({found.least} bytes)"
        if found.peak > found.live:
            text += f": {100 * (found.least - found.live) / (found.peak - found.live):.0f}% of its activations"
        return text + "; raise --budget, or make the batch smaller"
