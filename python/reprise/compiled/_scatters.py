"""Operators that add up at places that other results give: which of these may meet."""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Any

from torch import fx

from ._kinds import Kind, kind_of, name_of
from ._sizes import any_number


def adds_at_most_one(node: fx.Node) -> bool:
    """Whether a scatter adds no two values at one place, so that it has one order: as max pooling's backward does whose windows do not
    overlap."""
    if name_of(node) != "scatter_add":
        return False
    index: Any = node.args[2]
    while kind_of(index) is Kind.VIEW:
        index = index.args[0]
    if name_of(index) != "_low_memory_max_pool_offsets_to_indices":
        return False
    _, kernel, _, stride, _, dilation = index.args
    return all((size - 1) * gap + 1 <= step for size, gap, step in zip(kernel, dilation, stride))


def places_alone(index: Any, meets: Collection[range]) -> list[Any]:
    """The variables of an index that no other one shares a dimension with. Others may meet at one place, as may all whose steps in
    memory are among those of `meets`."""
    from torch._inductor.virtualized import V

    variables = sorted(index.free_symbols, key=str)
    strides = list(map(any_number, V.graph.sizevars.stride_vars(index, variables)))
    return [each for each, stride in zip(variables, strides)
            if strides.count(stride) == 1 and not any(stride in steps for steps in meets)]


def steps_of_scatter(node: Any, buffer: Any) -> list[range]:
    """How far apart in memory the places are along the dimensions in which an operator adds at places that it reads or computes."""
    into = next((each for each in node.args[1:] if not isinstance(each, fx.Node)), ())  # a dimension, or an index for some
    at = [place for place, index in enumerate(into) if index is not None] if isinstance(into, (list, tuple)) else [into]
    sizes, strides = (list(map(any_number, each)) for each in (buffer.get_size(), buffer.get_stride()))
    if not all(isinstance(each, int) and each < len(sizes) for each in at):
        return [range(1, math.prod(sizes))]
    return [range(strides[each], strides[each] * sizes[each]) for each in at]
