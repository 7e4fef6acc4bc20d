"""What CPython 3.10 lacks."""

from __future__ import annotations


def add_note(error: BaseException, text: str) -> None:
    """Tracebacks show it from CPython 3.11 on."""
    if hasattr(error, "add_note"):
        error.add_note(text)
    else:
        setattr(error, "__notes__", [*getattr(error, "__notes__", []), text])
