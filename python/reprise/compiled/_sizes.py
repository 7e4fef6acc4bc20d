"""Sizes of a graph that are not fixed: each is a symbol of torch's, and a plan is made for the upper end of its range.

Every size up to the upper end takes no more bytes than the plan says. A guard keeps larger ones out: torch compiles the graph
again for them, and that graph has a plan of its own.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import re
from collections.abc import Iterator
from typing import Any

import sympy  # type: ignore[import-untyped]
import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols
from torch.utils._sympy.value_ranges import ValueRanges, bound_sympy

from .._reprise import UsageError

_ANY = 1000
Symbolic = (torch.SymInt, torch.SymFloat, torch.SymBool)
# The first plan leaves an eighth above the size that it sees, and each later one twice as much as the one before.
_FIRST_ROOM = 8  # the part of it
_MOST_DOUBLED = 3
# Where a step's sizes are so much smaller than the upper end, nothing is concluded from its bytes for that.
MOST_GROWTH = 2.0


@dataclasses.dataclass
class Seen:
    """What was planned for one function's graphs: how often, and the largest upper ends by symbol."""

    plans: int = 0
    upper: dict[str, int] = dataclasses.field(default_factory=dict)

    def add(self, sizes: Sizes) -> None:
        upper = {str(symbol): most for symbol, most in sizes.upper.items()}
        self.plans += any(most > self.upper.get(symbol, 0) for symbol, most in upper.items())
        self.upper |= {symbol: max(most, self.upper.get(symbol, 0)) for symbol, most in upper.items()}


class Sizes:
    """`upper`: the largest value of each symbol that bytes depend on; empty where all sizes are fixed."""

    def __init__(self, nodes: list[fx.Node]) -> None:
        self._env: Any = None
        self.hints: dict[Any, int] = {}  # of this trace
        self.upper: dict[Any, int] = {}
        self._largest: dict[Any, int] = {}
        symbols: set[Any] = set()
        in_sizes: set[Any] = set()
        for node in nodes:
            for each in _symbolic_in(node.meta.get("val")):
                unknown = free_unbacked_symbols(each)
                if unknown:
                    raise UsageError(
                        f"reprise.compile: the size '{min(map(str, unknown))}' of '{node.name}' depends on data, so that no plan "
                        "can know it before the graph runs; leave that operator out of the compiled model, or leave memory_budget "
                        "out")
                self._env = each.node.shape_env
                symbols |= each.node.expr.free_symbols
            if isinstance(node.meta.get("val"), torch.Tensor):
                in_sizes |= getattr(_expression(node.meta["val"].numel()), "free_symbols", set())
        for symbol in sorted(symbols, key=str):
            hint = self._env.backed_var_to_val[symbol]
            if symbol in in_sizes and not hint.is_Integer:
                raise UsageError(f"reprise.compile: the size '{symbol}' is that of a ragged tensor, which no plan can know before the "
                                 "graph runs; compile with padded tensors, or leave memory_budget out")
            self.hints[symbol] = hint
        self._in_sizes = sorted(in_sizes, key=str)
        self._declared = self._find_declared() if in_sizes else {}
        self.resize({symbol: self._declared.get(symbol, int(self.hints[symbol])) for symbol in self._in_sizes})

    def _find_declared(self) -> dict[Any, int]:
        """What mark_dynamic was given as max."""
        found: dict[Any, int] = {}
        for each in self._env.tracked_fakes or ():
            constraints = getattr(each.symbolic_context, "constraint_sizes", None) or ()
            for size, constraint in zip(each.fake.shape, constraints) if isinstance(each.fake, torch.Tensor) else ():
                most = getattr(getattr(constraint, "vr", None), "upper", None)
                if most is not None and most.is_Integer and isinstance(size, torch.SymInt) and size.node.expr.is_Symbol:
                    found[size.node.expr] = int(most)
        return found

    def resize(self, upper: dict[Any, int]) -> None:
        self.upper = upper
        self._values = {**self.hints, **upper}
        self._ranges = {symbol: ValueRanges(min(self._env.var_to_range[symbol].lower, most), most) for symbol, most in upper.items()}
        self._largest = {}

    def upper_ends(self, seen: Seen) -> list[dict[Any, int]]:
        """What to plan for, the largest first: what mark_dynamic was given, what was planned before if it is enough, or some
        more than the size that is there. The last one leaves no room."""
        tried: list[dict[Any, int]] = []
        for known, rooms in ((seen.upper, [*reversed(range(min(seen.plans, _MOST_DOUBLED) + 1)), None]), ({}, [0, None])):
            for doubled in rooms:
                upper = {symbol: self._upper_of(symbol, doubled, known) for symbol in self._in_sizes}
                if upper not in tried:
                    tried.append(upper)
        return tried

    def _upper_of(self, symbol: Any, doubled: int | None, known: dict[str, int]) -> int:
        hint = int(self.hints[symbol])
        if symbol in self._declared:
            return self._declared[symbol]
        if hint <= known.get(str(symbol), 0):
            return known[str(symbol)]
        room = 0 if doubled is None else -(-hint * 2 ** doubled // _FIRST_ROOM)
        most = self._env.var_to_range[symbol].upper
        return min(hint + room, int(most)) if most.is_Integer else hint + room

    def guard(self) -> None:
        """Makes torch compile the graph again for larger sizes."""
        for symbol, most in self.upper.items():
            self._env.evaluate_expr(symbol <= most)

    def without_guards(self) -> Any:
        """A context in which planning adds none."""
        return self._env.suppress_guards() if self._env is not None else contextlib.nullcontext()

    # -- Values

    def value(self, given: Any) -> Any:
        """A tensor or number at the upper end."""
        if isinstance(given, Symbolic):
            return self._number(given.node.expr)
        if isinstance(given, torch.Tensor) and next(_symbolic_in(given), None) is not None:
            with _mode():
                shape, stride = ([max(0, self._number(_expression(each))) for each in each_of] for each_of in (given.shape, given.stride()))
                return torch.empty_strided(shape, stride, dtype=given.dtype, device=given.device)
        if isinstance(given, (list, tuple)):
            return [self.value(each) for each in given]
        return given

    def _number(self, expression: Any) -> Any:
        found = expression if isinstance(expression, int) else expression.xreplace(self._values)
        if isinstance(found, (int, float)):
            return found
        return int(found) if found.is_Integer else bool(found) if found.is_Boolean else float(found)

    def most(self, size: Any) -> int:
        """The largest number of elements in the range; some get fewer where others get more."""
        expression = _expression(size)
        if isinstance(expression, int):
            return expression
        if expression not in self._largest:
            bound = bound_sympy(expression, self._ranges).upper
            self._largest[expression] = max(0, int(bound) if bound.is_Integer else self._number(expression))
        return self._largest[expression]

    def actual(self, size: Any, sizes: dict[str, int]) -> int:
        """With the sizes of one call."""
        expression = _expression(size)
        if isinstance(expression, int):
            return expression
        return max(0, int(expression.xreplace({symbol: sizes.get(str(symbol), self.hints[symbol]) for symbol in expression.free_symbols})))

    def growth(self, sizes: dict[str, int]) -> float | None:
        """How many times the bytes of a call may be as many at the upper end: those of attention grow by the square. None where
        the call tells nothing of the upper end."""
        result = 1.0
        for symbol, most in self.upper.items():
            result *= (most / max(1, sizes.get(str(symbol), 1))) ** 2
        return result if result <= MOST_GROWTH else None

    # -- Names

    @property
    def named(self) -> dict[str, int]:
        """The upper ends as a user knows them: {"words.size(1)": 72}."""
        return {self._name(symbol): most for symbol, most in self.upper.items()}

    def _name(self, symbol: Any) -> str:
        sources = self._env.var_to_sources.get(symbol)
        if not sources:
            return str(symbol)
        return re.sub(r"\.size\(\)\[(\d+)\]", r".size(\1)", re.sub(r"L\['(\w+)'\]", r"\1", str(sources[0].name)))

    def key(self, has_hints: bool) -> Any:
        """What a plan depends on. `has_hints`: whether a compiler may choose by the sizes that it sees."""
        ranges = [(str(symbol), str(each)) for symbol, each in self._ranges.items()] if self.upper else []
        return ranges, [(str(symbol), str(each)) for symbol, each in self.hints.items()] if has_hints else None


class Binding:
    """Reads the symbols' values off the arguments of a call."""

    def __init__(self, module: Any) -> None:
        """`module`: as dynamo gives it to a backend; its inputs are the arguments."""
        self._places: dict[str, tuple[int, int | None]] = {}
        for place, node in enumerate(module.graph.find_nodes(op="placeholder")):
            value = node.meta.get("example_value", node.meta.get("val"))
            sizes = value.shape if isinstance(value, torch.Tensor) else [value]
            for dimension, each in enumerate(sizes):
                if isinstance(each, torch.SymInt) and each.node.expr.is_Symbol:
                    self._places[str(each.node.expr)] = place, dimension if isinstance(value, torch.Tensor) else None

    def sizes(self, values: Any) -> dict[str, int]:
        return {symbol: int(values[place] if dimension is None else values[place].shape[dimension])
                for symbol, (place, dimension) in self._places.items()}


@functools.cache
def _mode() -> FakeTensorMode:
    """Of all tensors that only have sizes; to make one takes long."""
    return FakeTensorMode()


def _symbolic_in(value: Any) -> Iterator[Any]:
    if isinstance(value, Symbolic):
        yield value
    elif isinstance(value, torch.Tensor) and value.layout is torch.strided:
        yield from (each for each in (*value.shape, *value.stride()) if isinstance(each, torch.SymInt))
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from _symbolic_in(each)


def _expression(size: Any) -> Any:
    """A number, or a term of symbols."""
    return size.node.expr if isinstance(size, Symbolic) else size


_MARK = "reprise"
# Bytes that allocators round to: those of LibTorch for CPUs, and for CUDA.
_UNIT, _UNIT_OF_DEVICE = 64, 512


def mark(node: fx.Node, sizes: Sizes) -> None:
    """So that the halves of the graph, whose nodes are copies, have the values of the upper end as well."""
    if not sizes.hints:
        return
    value = node.meta.get("val")
    count = sizes.most(value.numel()) * value.dtype.itemsize if isinstance(value, torch.Tensor) else 0
    node.meta[_MARK] = sizes.value(value), count


def value_of(node: fx.Node) -> Any:
    """What the node gives, with sizes that are known."""
    return node.meta[_MARK][0] if _MARK in node.meta else node.meta.get("val")


def bytes_of(node: fx.Node) -> int:
    """Of one tensor, as an allocator gives them out."""
    if _MARK in node.meta:
        return rounded(node.meta[_MARK][1], value_of(node))
    value = node.meta.get("val")
    return rounded(value.numel() * value.dtype.itemsize, value) if isinstance(value, torch.Tensor) else 0


def rounded(count: int, on: Any = None) -> int:
    """As the allocator of the tensor `on` gives them out, or of a device; None: a CPU's."""
    unit = _UNIT if getattr(getattr(on, "device", on), "type", "cpu") == "cpu" else _UNIT_OF_DEVICE
    return -(-count // unit) * unit


def numbers(sizes: Any) -> tuple[int, ...] | None:
    """None where they vary."""
    try:
        return None if sizes is None else tuple(int(each) for each in sizes)
    except TypeError:
        return None


def any_number(size: Any) -> int:
    """Of sizes that vary, any one will do, as long as it is the same for both plans. So it is for the other dimensions."""
    from torch._inductor.virtualized import V

    known = V.graph.sizevars.remove_precomputed_replacements(sympy.sympify(size))
    return int(known.xreplace({each: sympy.Integer(_ANY + sum(map(ord, each.name))) for each in known.free_symbols}))
