"""Calls of torch.autograd.backward() and grad(), seen from a replacement of these functions."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any


def keeps_graph(original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether the call leaves a graph that a later one may go through. Tensor.backward() gives both flags by position."""
    given = inspect.signature(original).bind(*args, **kwargs).arguments
    return bool(given.get("retain_graph") or given.get("create_graph"))
