"""Whether the loops of a plan compute as those of the compiler's own plan.

Inductor puts the dimensions of a loop in order by all that the loop reads from memory, and all that it merges into one kernel decides
what is vector code. Under another plan these may be others. Sums would then be added up in another order, and functions have
other last bits.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator
from typing import Any

import sympy  # type: ignore[import-untyped]
from torch import fx
from torch.utils._sympy.functions import FloorDiv, ModularIndexing

from ._joint import Functions, InMemory, Joint, Loops, Order, Vectors
from ._kinds import Kind, is_scatter, kind_of, name_of
from ._layouts import EXACT
from ._sizes import numbers

# Places at which orders are compared.
_PARTS = 17
_ANY = 1000
# More that have the same bits with and without vector code.
_SAME = EXACT | frozenset(
    "arange full_like zeros_like ones_like rsqrt sqrt reciprocal eq ne lt le gt ge logical_and logical_or logical_not "
    "bitwise_and bitwise_or bitwise_not maximum minimum clamp clamp_min clamp_max gather index embedding cat "
    "constant_pad_nd slice_scatter select_scatter copy repeat sign floor ceil round trunc fma tril triu inductor_random "
    "inductor_lookup_seed inductor_force_stride_order".split())
_MERGED = (Kind.LOOP, Kind.VIEW, Kind.ITEM)


def loops_of(nodes: list[Any], joint: Joint) -> tuple[Loops, InMemory]:
    """Those that add up, and the layouts of what they read. `nodes`: of a schedule."""
    from torch._inductor import ir
    from torch._inductor.loop_body import MemoryUsageType
    from torch._inductor.virtualized import V

    loops: Loops = {}
    strides: InMemory = {}
    for each in _merged(nodes):
        data = getattr(each.node, "data", None)
        adds_at = isinstance(data, ir.Scatter) and data.scatter_mode is not None
        name = _name_of(each.node, joint, is_scatter if adds_at else _is_sum) if adds_at or each.is_reduction() else None
        if name is None:
            continue
        body = each._body
        written = [place for index in body.get_write_exprs() for place in _places_alone(index)]
        added = {variable: size for variable, size in body.var_ranges.items() if variable not in written}
        for load in body.memory_usage[MemoryUsageType.LOAD]:
            buffer = V.graph.try_get_buffer(load.buffer_name)
            read = load.buffer_name if load.buffer_name in joint.named else _name_of(buffer, joint, _is_no_call)
            if read is not None:
                loops.setdefault(name, {})[read] = _order(body.indexing_exprs[load.index_name], added)
                strides[read] = numbers(buffer.maybe_get_stride()) if buffer else None
    return loops, strides


def functions_of(nodes: list[Any], joint: Joint) -> Functions:
    """Where functions are computed on a CPU of which vector code has other bits. `nodes`: of a schedule."""
    found: Functions = {}
    for each in _merged(nodes):
        if each.get_device().type != "cpu":
            continue
        names = [node.name for node in map(_node_of(joint), each.node.origins) if node is not None and _has_other_bits(node)]
        if names:
            form = _form(each._body)
            for name in names:
                found.setdefault(name, set()).add(form)
    return found


def _merged(nodes: list[Any]) -> Iterator[Any]:
    """The loops of a schedule before they were merged."""
    from torch._inductor.scheduler import SchedulerNode

    return (each for node in nodes if not node.is_extern() for each in node.get_nodes() if isinstance(each, SchedulerNode))


def _node_of(joint: Joint) -> Callable[[fx.Node], fx.Node | None]:
    return lambda origin: joint.nodes[joint.named[origin.name]] if origin.name in joint.named else None


def _has_other_bits(node: fx.Node) -> bool:
    return kind_of(node) is Kind.LOOP and name_of(node) not in _SAME


def _form(body: Any) -> str:
    """Empty for a loop that goes through contiguous memory: all of it is vector code."""
    from torch._inductor.virtualized import V

    if _is_contiguous(body, -1):
        return ""
    known, indices = V.graph.sizevars.remove_precomputed_replacements, [*body.get_read_exprs(), *body.get_write_exprs()]
    return f"{[str(known(size)) for size in body.var_ranges.values()]} {sorted({str(known(index)) for index in indices})}"


def _is_contiguous(body: Any, place: int) -> bool:
    """Along that dimension."""
    from torch._inductor.virtualized import V

    variables = list(body.var_ranges)
    return all(index.free_symbols <= set(variables) and not index.has(FloorDiv, ModularIndexing) and
               all(stride in (0, 1) for stride in V.graph.sizevars.stride_vars(index, variables[place:][:1], variables))
               for index in (*body.get_read_exprs(), *body.get_write_exprs()))


def vectors_of(nodes: list[Any], joint: Joint) -> Vectors:
    """Along which dimensions the loops that add up are vector code. On a CPU all that is merged into one kernel decides that."""
    from torch._inductor.codegen import cpp

    found: Vectors = {}
    for node in nodes:
        if node.is_extern() or node.get_device() is None or node.get_device().type != "cpu":
            continue
        outer: Any = node
        for kernel in outer.get_outer_nodes() if isinstance(node, cpp.OuterLoopFusedSchedulerNode) else (node,):
            inside = list(_merged([kernel]))
            sums = {_name_of(each.node, joint, _is_sum) for each in inside if each.is_reduction()} - {None}
            if sums:
                along = _vectorized(inside)
                again = {origin.name for each in inside for origin in each.node.origins if origin.name in joint.named}
                found.update(dict.fromkeys(sums, (along, frozenset(again))))  # type: ignore[arg-type]
    return found


def _vectorized(inside: list[Any]) -> tuple[int, ...]:
    """Dimensions of the loops of one kernel, counted from the last."""
    from torch._inductor.codegen import cpp
    from torch._inductor.codegen.common import DataTypePropagation

    sizes = {tuple(each._body.var_ranges.values()) for each in inside}
    if len(sizes) == 1:
        for place in range(-1, -1 - len(*sizes), -1):
            if all(_is_contiguous(each._body, place) for each in inside):
                return (place,)
    if all(_is_contiguous(each._body, -1) for each in inside):
        return (-1,)
    for each in inside:
        DataTypePropagation.propagate_scheduler_node(each)
    loops = [functools.partial(lambda node, *variables: node._body(*variables), each) for each in inside]
    _, along, *_ = cpp.TilingSelect().select_tiling(loops, [each.group[1] for each in inside])
    most = max(len(group) + len(added) for group, added in (each.group[1] for each in inside))
    return tuple(each - most if each >= 0 else each for each in along)


def keep_vectors(joint: Joint, default: set[int]) -> bool:
    """Where the newest plan adds up by other vector code than the compiler's own, what the default hands over of all that the kernel
    computes again is kept. True where this call has changed that."""
    before = len(joint.must_keep)
    for name, (along, again) in joint.newest_vectors.items():
        expected = joint.layouts.vectors.get(name, along) if joint.layouts else along
        if along != expected:
            made = {at for at in map(joint.named.__getitem__, again) if joint.in_forward[at]}
            new = (made & default) - joint.must_keep
            joint.must_keep |= new or _until(default, made, joint.users, joint.in_forward.__getitem__)
    return len(joint.must_keep) > before


def keep_functions(joint: Joint, default: set[int], of_forward: Callable[[Joint], Functions]) -> bool:
    """Where the newest plan computes a function again in another kind of loop than the compiler's own plan, what the default hands over
    of its results is kept. True where this call has changed that. `of_forward`: gives the functions of the default's forward,
    which takes long."""
    if joint.layouts is None:
        return False
    before = len(joint.must_keep)
    others = _other_functions(joint, joint.layouts.functions)
    if not joint.layouts.knows_forward and (others or joint.layouts.in_memory is not None):
        functions = {name: forms | joint.layouts.functions.get(name, set()) for name, forms in of_forward(joint).items()}
        joint.layouts = dataclasses.replace(joint.layouts, functions={**joint.layouts.functions, **functions}, knows_forward=True)
        others = _other_functions(joint, joint.layouts.functions)
    joint.must_keep |= _until(default, others, joint.users, joint.in_forward.__getitem__)
    return len(joint.must_keep) > before


def _other_functions(joint: Joint, known: Functions) -> set[int]:
    assert joint.layouts is not None
    more = set() if joint.layouts.knows_forward else {""}
    return {joint.named[name] for name, forms in joint.newest_functions.items() if joint.in_forward[joint.named[name]] and
            not forms <= known.get(name, set()) | more}


def keep_operands(joint: Joint, default: set[int]) -> bool:
    """Where loops of the newest plan add up in another order than the compiler's own, these read the same from memory from now on,
    in the same layout. Where that does not suffice, what the default hands over is kept: what the loops are computed from, and what
    else is computed from what they read. True where this call has changed that."""
    def state() -> tuple[int, ...]:
        return len(joint.in_memory), len(joint.must_keep), len(joint.must_repeat)

    before = state()
    for name, expected in (joint.layouts.loops if joint.layouts else {}).items():
        found = joint.newest_loops.get(name, {})
        others = {joint.named[read] for read, order in found.items() if order != expected.get(read, order)}
        if not others:
            continue
        missing, more = ({joint.named[each] for each in one.keys() - two.keys()} for one, two in ((expected, found), (found, expected)))
        made = {each for each in (others | more) - default if joint.in_forward[each] and joint.is_operator(each)}
        not_kept = {each for each in made - joint.must_keep if not joint.is_once(each)}
        if others | missing <= joint.in_memory and not_kept <= joint.must_repeat:
            joint.must_keep |= _until(default, {joint.named[name]}, joint.inputs, lambda at: joint.kinds[at] in _MERGED)
            joint.must_keep |= _until(default, made, joint.users, joint.in_forward.__getitem__)
        joint.in_memory |= others | missing
        joint.must_repeat |= not_kept
    if state() == before:
        return False
    joint.backward_order = joint.order_of_backward()
    return True


def _until(ends: set[int], begin: set[int], next_ones: list[list[int]], goes_on: Callable[[int], bool]) -> set[int]:
    """Which of the ends are reached."""
    seen, unseen = set(begin), list(begin)
    while unseen:
        for each in next_ones[unseen.pop()]:
            if each not in seen:
                seen.add(each)
                unseen += [each] if each not in ends and goes_on(each) else []
    return seen & ends


def _places_alone(index: Any) -> list[Any]:
    """The variables of an index that no other one shares a dimension with. Others may meet at one place."""
    from torch._inductor.virtualized import V

    variables = sorted(index.free_symbols, key=str)
    strides = V.graph.sizevars.stride_vars(index, variables)
    return [each for each, stride in zip(variables, strides) if strides.count(stride) == 1]


def _order(index: Any, added: dict[Any, Any]) -> Order:
    from torch._inductor.virtualized import V

    if len(added) == 1 and not index.has(FloorDiv, ModularIndexing):
        return tuple(map(_number, V.graph.sizevars.stride_vars(index, list(added), sorted(index.free_symbols, key=str))))
    sizes = [_number(each) for each in added.values()]
    count = math.prod(sizes)

    def place(step: int) -> int:
        digits = {}
        for variable, size in reversed(list(zip(added, sizes))):
            digits[variable], step = sympy.Integer(step % size), step // size
        return _number(index.xreplace(digits))

    begin = place(0)
    steps = sorted({1, 2, 3, *(count * part // _PARTS for part in range(1, _PARTS)), count - 1} & set(range(1, count)))
    places = tuple(place(each) - begin for each in steps)
    return places[:1] if all(each == step * places[0] for step, each in zip(steps, places)) else places


def _number(size: Any) -> int:
    """Of sizes that vary, any one will do, as long as it is the same for both plans. So it is for the other dimensions."""
    from torch._inductor.virtualized import V

    known = V.graph.sizevars.remove_precomputed_replacements(sympy.sympify(size))
    return int(known.xreplace({each: sympy.Integer(_ANY + sum(map(ord, each.name))) for each in known.free_symbols}))


def _name_of(buffer: Any, joint: Joint, is_kind: Callable[[fx.Node], bool]) -> str | None:
    """Of the joint graph's node whose result a buffer holds. The operator that asked for the buffer may be among its origins."""
    places = [joint.named[each.name] for each in getattr(buffer, "origins", ()) if each.name in joint.named]
    last = max((at for at in places if is_kind(joint.nodes[at])), default=None)
    return None if last is None else joint.nodes[last].name


def _is_no_call(node: fx.Node) -> bool:
    return kind_of(node) is not Kind.CALL


def _is_sum(node: fx.Node) -> bool:
    return kind_of(node) is Kind.REDUCTION

