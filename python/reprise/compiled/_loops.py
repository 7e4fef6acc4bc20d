"""Whether the loops of a plan compute as those of the compiler's own plan.

Inductor puts the dimensions of a loop in order by all that the loop reads from memory, and all that it merges into one kernel decides
what is vector code. Under another plan these may be others. Sums would then be added up in another order, and functions have
other last bits.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import sympy  # type: ignore[import-untyped]
import torch
from torch import fx
from torch.utils._pytree import tree_leaves
from torch.utils._sympy.functions import FloorDiv, ModularIndexing

from ._again import original_name
from ._joint import InMemory, Joint, Layouts, Loops, Order, Vectors
from ._kinds import Kind, is_scatter, kind_of, name_of
from ._layouts import SAME, laid_out
from ._scatters import adds_at_most_one, places_alone, steps_of_scatter
from ._sizes import any_number, numbers
from ._vectors import Code, code_of, computes_functions

# Places at which orders are compared.
_PARTS = 17
_MERGED = (Kind.LOOP, Kind.VIEW, Kind.ITEM)


def loops_of(nodes: list[Any], joint: Joint) -> tuple[Loops, InMemory]:
    """Those that add up, and the layouts of what they read. `nodes`: of a schedule."""
    from torch._inductor import ir
    from torch._inductor.loop_body import MemoryUsageType
    from torch._inductor.virtualized import V

    loops: Loops = {}
    strides: InMemory = {}
    for each in _merged(nodes):
        name = _sum_of(each, joint)
        if name is None:
            continue
        body = each._body
        meets = steps_of_scatter(joint.nodes[joint.named[name]], each.node) if not each.is_reduction() else ()
        written = [place for index in body.get_write_exprs() for place in places_alone(index, meets)]
        added = {variable: size for variable, size in body.var_ranges.items() if variable not in written}
        for load in body.memory_usage[MemoryUsageType.LOAD]:
            buffer = V.graph.try_get_buffer(load.buffer_name)
            read = load.buffer_name if load.buffer_name in joint.named else (
                _item_of(buffer, joint) if isinstance(buffer, ir.MultiOutput) else _name_of(buffer, joint, _is_no_call))
            if read is not None:
                loops.setdefault(name, {})[read] = _order(body.indexing_exprs[load.index_name], body.var_ranges, added, buffer)
                strides[read] = numbers(buffer.maybe_get_stride()) if buffer else None
    return loops, strides


def calls_of(nodes: list[Any], joint: Joint) -> tuple[Loops, InMemory]:
    """Operators of backward that run by themselves, and the layouts in which they read their arguments. `nodes`: of a schedule."""
    from torch._inductor import ir

    calls: Loops = {}
    strides: InMemory = {}
    for call in (each.node for each in nodes if each.is_extern() and isinstance(each.node, ir.ExternKernel)):
        origins = [each for each in call.origins if each.name in joint.named and not joint.in_forward[joint.named[each.name]] and
                   kind_of(each) is Kind.CALL]
        read = [each for each in call.inputs if isinstance(each, ir.IRNode)]
        arguments = [laid_out(each) for node in origins for each in tree_leaves((node.args, node.kwargs)) if isinstance(each, fx.Node)]
        if isinstance(call, ir.MultiOutput) or len(origins) != 1 or len(read) != len(arguments):
            continue  # one of several results, or a kernel for several operators
        found = calls.setdefault(origins[0].name, {})
        for argument, each in zip(arguments, read):
            layout, name = numbers(each.maybe_get_stride()), original_name(argument)
            if layout is not None and name in joint.named:
                sizes = numbers(each.maybe_get_size()) or layout
                found[name] = (*found.get(name, ()), *(stride for stride, size in zip(layout, sizes) if size != 1))
                strides[name] = layout
    return calls, strides


def kernels_of(nodes: list[Any], joint: Joint) -> tuple[dict[str, int], InMemory]:
    """By name, the first kernel that computes it, and the strides of the first result in memory. `nodes`: of a schedule."""
    first: dict[str, int] = {}
    strides: InMemory = {}
    for number, kernel in enumerate(nodes):
        for each in _merged([kernel]):
            for origin in each.node.origins:
                if origin.name in joint.named:
                    first.setdefault(origin.name, number)
            name = _name_of(each.node, joint, _is_no_call)
            if name is not None:
                strides.setdefault(name, numbers(each.node.maybe_get_stride()))
    return first, strides


def _sum_of(loop: Any, joint: Joint) -> str | None:
    """The name of what the loop adds up."""
    from torch._inductor import ir

    data = getattr(loop.node, "data", None)
    adds_at = isinstance(data, ir.Scatter) and data.scatter_mode is not None
    if not adds_at and not loop.is_reduction():
        return None
    name = _name_of(loop.node, joint, is_scatter if adds_at else _is_sum)
    return None if name is not None and adds_at_most_one(joint.nodes[joint.named[name]]) else name


def _merged(nodes: list[Any]) -> Iterator[Any]:
    """The loops of a schedule before they were merged."""
    from torch._inductor.scheduler import SchedulerNode

    return (each for node in nodes if not node.is_extern() for each in node.get_nodes() if isinstance(each, SchedulerNode))


def vectors_of(nodes: list[Any], joint: Joint) -> tuple[Vectors, dict[str, int]]:
    """In what vector code a CPU computes sums, and functions of which such code has other bits. All that is merged into one kernel
    decides that. And how many elements the vectors have that are added to a sum, by its name. `nodes`: of a schedule."""
    from torch._inductor.codegen import cpp
    from torch._inductor.cpu_vec_isa import pick_vec_isa

    found: Vectors = {}
    elements: dict[str, set[int]] = {}
    if not pick_vec_isa():  # none was found, or the user's options allow none
        return found, {}
    for node in nodes:
        if node.is_extern() or node.get_device() is None or node.get_device().type != "cpu":
            continue
        outer: Any = node
        for kernel in outer.get_outer_nodes() if isinstance(node, cpp.OuterLoopFusedSchedulerNode) else (node,):
            inside = list(_merged([kernel]))
            computed = {origin.name for each in inside for origin in each.node.origins if origin.name in joint.named}
            if any(map(_has_other_bits, (joint.nodes[joint.named[name]] for name in computed))):
                code = code_of(inside)
                for name, form in (each for loop in inside for each in _forms(loop, code, joint)):
                    found.setdefault(name, {}).setdefault(form, set()).update(computed)
                for loop in inside:
                    of = _sum_of(loop, joint)
                    if of is not None and _adds_vectors(loop, code):
                        elements.setdefault(of, set()).add(code.elements)
    return found, {name: min(each) for name, each in elements.items() if len(each) == 1}


def _has_other_bits(node: fx.Node) -> bool:
    """Whether vector code may compute other bits than scalar code. Of integers both compute the same."""
    values = [each.meta.get("val") for each in (node, *node.all_input_nodes)]
    if not any(value.is_floating_point() or value.is_complex() for value in values if isinstance(value, torch.Tensor)):
        return False
    return _adds_up(node) or kind_of(node) is Kind.LOOP and name_of(node) not in SAME


def _adds_vectors(loop: Any, code: Code) -> bool:
    """Whether it adds up along the vectors. One along a dimension that stays has elements of several sums."""
    group, added = loop.group[1]
    return loop.is_reduction() and bool(added) and any(each >= len(group) for each in code.along)


def _forms(loop: Any, code: Code, joint: Joint) -> Iterator[tuple[str, str]]:
    """The names of what one of a kernel's loops computes, with the form of the code."""
    from torch._inductor.virtualized import V

    known = V.graph.sizevars.remove_precomputed_replacements
    sizes = [known(sympy.sympify(size)) for part in loop.group[1] for size in part]
    along = [each for each in code.along if each < len(sizes)]
    is_whole = not code.has_scalar_rest or all(sizes[each] % code.elements == 0 for each in along)
    if name := _sum_of(loop, joint):
        places = [each - len(sizes) for each in code.along]
        if not loop.is_reduction():
            yield name, str(places if places != [-1] else [])  # along the last dimension as without vectors: one after another
        else:
            adds_up = _adds_vectors(loop, code)
            by_weights = " vectors" * (loop.node.get_reduction_type().startswith("welford") and bool(places))
            rest = " and others" * (not is_whole and bool(adds_up or by_weights))
            yield name, f"{places if adds_up else []}{f' of {code.elements}' * adds_up}{by_weights}{rest}"
    for origin in loop.node.origins if computes_functions(loop) else ():
        node = joint.nodes[joint.named[origin.name]] if origin.name in joint.named else None
        if node is None or _adds_up(node) or not _has_other_bits(node):
            continue
        if not along or len(along) < len(code.along):
            yield node.name, "scalar"
        elif is_whole and math.prod(sizes) == tree_leaves(node.meta["val"])[0].numel():
            yield node.name, ""
        else:
            yield node.name, f"{along}{'' if is_whole else f' of {code.elements}'} {sizes}"


def keep_vectors(joint: Joint, default: set[int], forward: Callable[[Joint], Vectors]) -> bool:
    """Where the newest plan computes a sum or a function by other vector code than the compiler's own, what the default hands over is kept:
    what is computed from a function that runs again, or all that the kernel computes again. Where that does not suffice, all loops
    around are split as in the default. True where this call has changed that. `forward`: gives what is known of the default's forward, which
    takes long."""
    if joint.layouts is None:
        return False
    before = _state(joint)
    kept = _computed_from_other_code(joint, joint.layouts, default)
    if joint.layouts.vectors_of_forward is None and (kept or joint.newest_vectors_of_forward):
        joint.layouts = dataclasses.replace(joint.layouts, vectors_of_forward=forward(joint))
        kept = _computed_from_other_code(joint, joint.layouts, default)
    joint.must_keep |= kept
    # What the default computes in one layout and copies to another is computed in the first.
    joint.in_memory |= {each for each in _computed_beside(joint, joint.newest_vectors, joint.layouts.vectors)
                        if joint.nodes[each].name in joint.layouts.copied}
    if _state(joint) != before:
        return True
    of_default = {name: forms.keys() for name, forms in (joint.layouts.vectors_of_forward or {}).items()}
    others = _computed_beside(joint, joint.newest_vectors_of_forward, of_default) | _computed_beside(
        joint, joint.newest_vectors, joint.layouts.vectors)
    made = {each for each in others if joint.in_forward[each]}
    sizes = sorted({joint.bytes[each] for each in made & default - joint.must_keep})
    smallest = {each for each in made & default if joint.bytes[each] in sizes[:1]}
    for kept in (smallest, _until(default, made, joint.users, joint.in_forward.__getitem__)):
        if not kept <= joint.must_keep:
            joint.must_keep |= kept
            return True
    if others:
        _split_as_default(joint, default, others)
    return _state(joint) != before


def computes_otherwise(joint: Joint) -> bool:
    """Whether the newest plan adds up in another order than the compiler's own, or by other vector code."""
    layouts = joint.layouts
    if layouts is None:
        return False
    of_forward = {name: forms.keys() for name, forms in (layouts.vectors_of_forward or {}).items()}
    is_reordered = any(order != expected.get(read, order) for name, expected in layouts.loops.items()
                       for read, order in joint.newest_loops.get(name, {}).items())
    return is_reordered or bool(_computed_beside(joint, joint.newest_vectors_of_forward, of_forward) or
                                _computed_beside(joint, joint.newest_vectors, layouts.vectors))


def _computed_beside(joint: Joint, found: Vectors, expected: Mapping[str, Collection[str]]) -> set[int]:
    """What kernels compute that compute something by other vector code than expected."""
    return {joint.named[each] for name, forms in found.items()
            for form in forms.keys() - set(expected.get(name, forms.keys())) for each in forms[form]}


def _computed_from_other_code(joint: Joint, layouts: Layouts, default: set[int]) -> set[int]:
    """What the default hands over, as far as forward computes it from functions that the newest plan runs again by other code."""
    def runs_again(at: int) -> bool:
        return joint.in_forward[at] and not joint.is_once(at)

    stored = default | {joint.named[name] for name in layouts.in_memory or ()}
    found: set[int] = set()
    for name, forms in joint.newest_vectors.items():
        at = joint.named[name]
        if not joint.in_forward[at] or _adds_up(joint.nodes[at]):
            continue
        of_forward = {"": set()} if layouts.vectors_of_forward is None else layouts.vectors_of_forward.get(name, {})
        for each in _until(stored, {at}, joint.users, runs_again):
            merged = {form for form, computed in of_forward.items() if joint.nodes[each].name in computed}
            if forms.keys() != (merged or of_forward.keys()):
                found |= {each} if each in default else _until(default, {each}, joint.users, runs_again)
    return found


def _adds_up_by_other_code(joint: Joint, layouts: Layouts, name: str) -> bool:
    """Whether backward adds up in another form of vector code than the compiler's own plan."""
    forms = joint.newest_vectors.get(name, {}).keys()
    return not forms <= layouts.vectors.get(name, forms)


def _state(joint: Joint) -> tuple[int, ...]:
    return len(joint.in_memory), len(joint.must_keep), len(joint.must_repeat)


def _split_as_default(joint: Joint, default: set[int], begin: set[int]) -> None:
    """What is computed by loops around these is handed over as in the default: first at least as much, then no more."""
    around, unseen = set(begin), list(begin)
    while unseen:
        at = unseen.pop()
        for each in {*joint.inputs[at], *joint.users[at]} - around:
            around.add(each)
            unseen += [each] * (joint.kinds[each] in _MERGED or _adds_up(joint.nodes[each]))
    around = {each for each in around if joint.in_forward[each] and joint.is_operator(each)}
    if around & default <= joint.must_keep:
        joint.must_repeat |= {each for each in around - joint.must_keep if not joint.is_once(each)}
        joint.backward_order = joint.order_of_backward()
    joint.must_keep |= around & default


def keep_operands(joint: Joint, default: set[int]) -> bool:
    """Where loops of the newest plan add up in another order than the compiler's own, or by other vector code, these read the
    same from memory from now on, in the same layout. Where that does not suffice, what the default hands over is kept: what the loops are computed from, and what
    else is computed from what they read. In the end all loops around a sum are split as in the default. True where this call has changed
    that."""
    if joint.layouts is None:
        return False
    before = _state(joint)
    differing: set[int] = set()
    in_memory, repeated = set(joint.in_memory), set(joint.must_repeat)  # of the newest plan
    for name, expected in joint.layouts.loops.items():
        found = joint.newest_loops.get(name, {})
        others = {joint.named[read] for read, order in found.items() if order != expected.get(read, order)}
        read = set(found)
        if others:
            differing.add(joint.named[name])
        elif _adds_up_by_other_code(joint, joint.layouts, name):
            read &= expected.keys()
        else:
            continue
        # A loop goes through memory in the order that suits most of what it reads. What has another layout may be the rest.
        others |= {joint.named[each] for each in read if joint.newest_operands.get(each) != joint.layouts.operands.get(each)}
        missing, more = ({joint.named[each] for each in one.keys() - two.keys()} for one, two in ((expected, found), (found, expected)))
        made = {each for each in (others | more) - default if joint.in_forward[each] and joint.is_operator(each)}
        not_kept = {each for each in made - joint.must_keep if not joint.is_once(each)}
        if others | missing <= in_memory and not_kept <= repeated:
            joint.must_keep |= _until(default, {joint.named[name]}, joint.inputs, lambda at: joint.kinds[at] in _MERGED)
            joint.must_keep |= _until(default, made, joint.users, joint.in_forward.__getitem__)
        joint.in_memory |= others | missing
        joint.must_repeat |= not_kept
    if _state(joint) == before and differing:
        _split_as_default(joint, default, differing)
    if _state(joint) == before:
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


def _order(index: Any, variables: Collection[Any], added: dict[Any, Any], buffer: Any) -> Order:
    """The places of the elements that are added up, from the first, as if what is read were contiguous: under another plan it may be in
    another layout."""
    from torch._inductor.virtualized import V

    layout = _other_layout(buffer)
    if len(added) == 1 and not layout and not index.has(FloorDiv, ModularIndexing):
        return tuple(map(any_number, V.graph.sizevars.stride_vars(index, list(added), sorted(index.free_symbols, key=str))))
    sizes = [any_number(each) for each in added.values()]
    count = math.prod(sizes)

    def place(step: int) -> int:
        digits = dict.fromkeys(variables, sympy.Integer(0)) if layout else {}
        for variable, size in reversed(list(zip(added, sizes))):
            digits[variable], step = sympy.Integer(step % size), step // size
        at = any_number(index.xreplace(digits))
        element = 0 if layout else at
        for stride, weight in layout:
            element, at = element + at // stride * weight, at % stride
        return element

    begin = place(0)
    steps = sorted({1, 2, 3, *(count * part // _PARTS for part in range(1, _PARTS)), count - 1} & set(range(1, count)))
    places = tuple(place(each) - begin for each in steps)
    return places[:1] if all(each == step * places[0] for step, each in zip(steps, places)) else places


def _other_layout(buffer: Any) -> list[tuple[int, int]]:
    """The strides of a buffer, from the largest, with those of a contiguous one. Empty where it is contiguous, or sizes vary."""
    sizes, strides = (numbers(each()) for each in (buffer.maybe_get_size, buffer.maybe_get_stride)) if buffer else (None, None)
    if sizes is None or strides is None:
        return []
    weights = [math.prod(sizes[at + 1:]) for at in range(len(sizes))]
    found = [(stride, weight) for size, stride, weight in zip(sizes, strides, weights) if size != 1 and stride]
    return sorted(found, reverse=True) if any(stride != weight for stride, weight in found) else []


def _name_of(buffer: Any, joint: Joint, is_kind: Callable[[fx.Node], bool]) -> str | None:
    """Of the joint graph's node whose result a buffer holds. The operator that asked for the buffer may be among its origins."""
    places = [joint.named[each.name] for each in getattr(buffer, "origins", ()) if each.name in joint.named]
    last = max((at for at in places if is_kind(joint.nodes[at])), default=None)
    return None if last is None else joint.nodes[last].name


def _item_of(buffer: Any, joint: Joint) -> str | None:
    """The name of that result of an operator which a buffer holds. The buffer's origins name the operator alone."""
    calls = [joint.named[each.name] for each in buffer.origins if each.name in joint.named and kind_of(each) is Kind.CALL]
    places = [place for _, place in buffer.indices]
    users = joint.users[max(calls)] if calls else []
    return next((joint.nodes[at].name for at in users if [joint.nodes[at].args[1]] == places), None)


def _is_no_call(node: fx.Node) -> bool:
    return kind_of(node) is not Kind.CALL


def _is_sum(node: fx.Node) -> bool:
    return kind_of(node) is Kind.REDUCTION


def _adds_up(node: fx.Node) -> bool:
    return _is_sum(node) or is_scatter(node)
