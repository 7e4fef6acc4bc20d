"""Operators with ordered effects: torch keeps a table of them in Python, of which the library learns here.

A selective region keeps what they return, unless the policy says MUST_RECOMPUTE, and does not run them again. torch's own
regions do so from 2.15 on.
"""

from __future__ import annotations

import functools
from typing import Any

from torch._library import effects, simple_registry
from torch._library.utils import RegistrationHandle

from . import _reprise

_Holder: Any = effects.EffectHolder
_entries: dict[str, Any] = simple_registry.singleton._data


def _declare(holder: Any) -> None:
    # c10d's collectives return before they are done, so their results are no place to go on from.
    if not holder.qualname.startswith("c10d::"):
        _reprise.declare_ordered_effects(holder.qualname.removesuffix(".default"), holder.effect is not None)


def follow() -> None:
    """Called once: declares the operators that are in torch's table, and those that will be registered or taken back."""
    for entry in list(_entries.values()):
        if entry.effect.effect is not None:
            _declare(entry.effect)
    register = _Holder.register

    @functools.wraps(register)
    def register_and_declare(self: Any, effect: Any) -> RegistrationHandle:
        handle = register(self, effect)
        _declare(self)

        def take_back() -> None:
            handle.destroy()
            _declare(self)

        return RegistrationHandle(take_back)

    _Holder.register = register_and_declare
