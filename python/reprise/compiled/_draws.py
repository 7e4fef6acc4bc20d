"""The order in which a compiled forward draws random numbers.

Draws of one generator depend on nothing that inductor sees, so that it puts them where memory is least. Under another plan that
could be in another order, and the numbers would be others than without a budget.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from unittest.mock import patch

import torch
from torch import fx

from ._kinds import is_random


def may_draw(node: fx.Node) -> bool:
    """Operators of other libraries do not say whether they draw."""
    target = node.target
    return isinstance(target, torch._ops.OpOverload) and (
        is_random(node) or target.namespace not in ("aten", "prims", "_c10d_functional"))


def draws_in(nodes: Sequence[Any], names: frozenset[str]) -> list[str]:
    """The order in which operators of these names run. `nodes`: of inductor's scheduler."""
    found = {origin.name: None for node in nodes for origin in _origins(node) if origin.name in names}
    return list(found)


@contextlib.contextmanager
def drawn_in_order() -> Iterator[Callable[[Sequence[str]], None]]:
    """Inductor keeps the order, of operators by name, that is given to what this yields, in forwards that it compiles inside."""
    from torch._inductor import config, scheduler
    from torch._inductor.virtualized import V

    place: dict[str, int] = {}
    depend = scheduler.Scheduler.compute_dependencies

    def keep(order: Sequence[str]) -> None:
        place.update({name: at for at, name in enumerate(order)})
        if order:  # no function has that name: the entry only changes the key of stored code
            marked = {**config.unsafe_marked_cacheable_functions, "drawn in order, by reprise": " ".join(order)}
            config.unsafe_marked_cacheable_functions = marked

    def depend_in_order(self: Any) -> Any:
        draws: dict[int, Any] = {}
        for node in () if V.graph.is_backward else self.nodes:
            for at in (place[origin.name] for origin in _origins(node) if origin.name in place):
                draws.setdefault(at, node)  # those after it are the results of one operator
        nodes = [draws[at] for at in sorted(draws)]
        for before, after in zip(nodes, nodes[1:]):
            if before is not after:
                V.graph.additional_buffer_deps[after.get_name()].add(before.get_outputs()[0].get_name())
        return depend(self)

    unchanged = config.unsafe_marked_cacheable_functions
    with (patch.object(scheduler.Scheduler, "compute_dependencies", depend_in_order),
          config.patch(unsafe_marked_cacheable_functions=unchanged)):
        yield keep


def _origins(node: Any) -> Any:
    """None but of operators that run by themselves: loops draw from seeds."""
    return node.node.origins if node.is_extern() and node.node is not None else ()
