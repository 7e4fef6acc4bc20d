"""What a region raises: the texts of torch.utils.checkpoint, so that code which reads them still does."""

from __future__ import annotations

import re
from typing import Any, Callable, NoReturn

import torch.utils.checkpoint

from ._older import add_note

_torch: Any = torch.utils.checkpoint
CheckpointError = torch.utils.checkpoint.CheckpointError

_TIP: str = getattr(_torch, "_debug_tip_msg", "")
_READ_TWICE = (
    "torch.utils.checkpoint: Unpack is being triggered for a tensor that was already unpacked once. "
    "{}If you are calling ctx.saved_tensors in backward, make sure to do so only once. Otherwise please "
    "open an issue with details on your use case."
)
_OVERLAP = (
    "Performing two backward calls that overlap (i.e. require the same saved activation in order to "
    "compute gradients) is not allowed while under the torch.utils.checkpoint.GraphExecGroup context. "
)


class StopRecomputation(getattr(_torch, "_StopRecomputationError", Exception)):  # type: ignore[misc]
    """Leaves a function that is run again, once all that backward needs is there. Let it pass."""


def text_of(
    kind: str, text: str, before: int, now: int, differences: list[tuple[int, dict[str, Any], dict[str, Any]]]
) -> str:
    """torch's text for a mismatch of this kind, or `text` where torch does not look for it."""
    if kind == "fewer saved":
        return (
            "torch.utils.checkpoint: A different number of tensors was saved during the original forward and "
            f"recomputation.\nNumber of tensors saved during forward: {before}\n"
            f"Number of tensors saved during recomputation: {now}.\n{_TIP}"
        )
    if kind == "more saved":
        return (
            "torch.utils.checkpoint: trying to save more tensors during recomputation than during the original "
            f"forward pass.\n{_TIP}"
        )
    if kind == "other metadata":
        listed = "".join(
            f"tensor at position {index}:\nsaved metadata: {saved}\nrecomputed metadata: {recomputed}\n"
            for index, saved, recomputed in differences
        )
        return (
            "torch.utils.checkpoint: Recomputed values for the following tensors have different metadata than "
            f"during the forward pass.\n{listed}.\n{_TIP}"
        )
    if kind == "read twice":
        return _READ_TWICE.format("")
    if kind == "read twice in group":
        return _READ_TWICE.format(_OVERLAP)
    if kind == "changed argument":
        return (
            "one of the variables needed for gradient computation has been modified by an inplace operation: "
            + text
        )
    if kind == "not accumulating":
        return (
            "When use_reentrant=True, torch.utils.checkpoint is incompatible with .grad() or passing an `inputs` "
            "parameter to .backward(). To resolve this error, you can either set use_reentrant=False, or call "
            ".backward() without passing the `inputs` argument."
        )
    if kind == "no gradient":
        return "none of output has requires_grad=True, this checkpoint() is not necessary"
    return text


def refuse(
    kind: str,
    text: str,
    before: int,
    now: int,
    differences: list[tuple[int, dict[str, Any], dict[str, Any]]],
    explain: Callable[[CheckpointError], NoReturn] | None,
) -> NoReturn:
    """Raises the CheckpointError of a region; `explain` raises one that has the operators of both runs.

    The texts are torch's, which knows no names. So the name of a region (reprise.named) is a note.
    """
    error = CheckpointError(text_of(kind, text, before, now, differences))
    named = re.match(r"checkpoint\(\) of region '(.*?)': ", text)
    if named:
        add_note(error, f"The region is named '{named[1]}'.")
    if explain is not None:
        explain(error)
    raise error
