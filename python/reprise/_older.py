"""What CPython 3.10 lacks."""

from __future__ import annotations

from types import CodeType


def add_note(error: BaseException, text: str) -> None:
    """Tracebacks show it from CPython 3.11 on."""
    if hasattr(error, "add_note"):
        error.add_note(text)
    else:
        setattr(error, "__notes__", [*getattr(error, "__notes__", []), text])


def name_of(code: CodeType) -> str:
    """With its class, from CPython 3.11 on."""
    return str(getattr(code, "co_qualname", code.co_name))
