"""torch.utils.checkpoint.GraphExecGroup over the library's groups."""

from __future__ import annotations

from typing import Any

import torch

from . import _reprise

# LibTorch's own slot for the group in force, where this torch has one.
_get = getattr(torch._C, "_get_graph_exec_group", None)
_set = getattr(torch._C, "_set_graph_exec_group", None)


class GraphExecGroup:
    """Inside it each region is recomputed at most once, however many backward calls there are.

    The calls must read disjoint parts of the graph, even with retain_graph=True. Reentrant regions know no groups.
    Raises RuntimeError inside another group.
    """

    _current: GraphExecGroup | None = None  # without LibTorch's slot

    def __init__(self) -> None:
        self._group = _reprise.GraphExecGroup()

    def __enter__(self) -> GraphExecGroup:
        current = self._get_current_group()
        if current is not None:
            raise RuntimeError(f"GraphExecGroup contexts cannot be nested. Already inside group {current}")
        self._group.enter()
        self._set_current_group(self)
        return self

    def __exit__(self, *error: Any) -> None:
        self._set_current_group(None)
        self._group.exit()

    @classmethod
    def _get_current_group(cls) -> GraphExecGroup | None:
        group: GraphExecGroup | None = _get() if _get is not None else GraphExecGroup._current
        return group

    @classmethod
    def _set_current_group(cls, group: GraphExecGroup | None) -> None:
        if _set is not None:
            _set(group)
        else:
            GraphExecGroup._current = group
