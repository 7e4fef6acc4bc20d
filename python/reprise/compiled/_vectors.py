"""By what vector code inductor computes the loops of a kernel on a CPU.

Where all loops of a kernel read or write values of 16 bits, its vectors have twice as many elements, and a sum along them is added up in
another order. What is merged into a kernel depends on the plan. So the sums of a plan get vectors of as many elements as under the
compiler's own.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Iterator, Mapping
from typing import Any
from unittest.mock import patch

import torch
from torch import fx

from ._torch import stored_apart

# What inductor's loops do with the same bits in vectors and one by one.
_SAME = frozenset(
    "constant load load_seed rand rand_eager randn randint64 masked where index_expr value_expr to_dtype trunc_to_int ceil_to_int "
    "floor_to_int round_to_int to_dtype_bitcast identity indirect_indexing check_bounds store reduction store_reduction "
    "partial_accumulate abs sqrt rsqrt reciprocal relu minimum maximum logical_and logical_not logical_or logical_xor bitwise_and "
    "bitwise_not bitwise_or bitwise_xor bitwise_left_shift bitwise_right_shift signbit isinf isnan round floor sign trunc ceil neg "
    "eq ne lt gt le ge add sub mul and_ or_ xor truediv int_truediv truncdiv floordiv fma square".split())
# In the `meta` of a half's node: how many elements a vector has that is added to its sum.
_ELEMENTS = "reprise_elements"
# Of a function, for GCC.
VECTORIZED = '__attribute__((optimize("tree-loop-vectorize")))'


@dataclasses.dataclass(frozen=True)
class Code:
    """Of a kernel's loops."""

    along: tuple[int, ...] = ()  # the dimensions that vectors go along, from the first
    elements: int = 1  # of a vector
    has_scalar_rest: bool = False  # what does not fill a vector is computed one by one


def code_of(inside: list[Any]) -> Code:
    """As inductor's CppKernelProxy.codegen_functions() chooses it for a kernel of these loops, which are changed as there."""
    from torch._inductor import config
    from torch._inductor.codegen import cpp
    from torch._inductor.virtualized import V

    proxy: Any = object.__new__(cpp.CppKernelProxy)
    proxy.legalize_lowp_fp_dtype(inside)
    proxy.data_type_propagation(inside)
    loops = [functools.partial(lambda node, *variables: node._body(*variables), each) for each in inside]
    chosen: Any = cpp.TilingSelect().select_tiling(loops, [each.group[1] for each in inside])
    elements, along, *counted = chosen
    dimensions = max(([*group, *added] for group, added in (each.group[1] for each in inside)), key=len)
    if not dimensions or not along:
        return Code()
    has_scalar_rest = not config.cpp.enable_loop_tail_vec
    if counted:  # torch 2.13 has vectors for a small rest only if few of the operators need a mask
        (stats,) = counted
        unfit = stats.mask_op_count + sum(stats.non_contig_indexing_op_counter.values())
        is_unfit = unfit > stats.OVERHEAD_RATIO_THRESHOLD * sum(stats.op_counter.values())
        rest = V.graph.sizevars.optimization_hint(dimensions[along[-1]] % elements[0]) if is_unfit else 0
        has_scalar_rest |= is_unfit and 2 * rest <= elements[0]
    return Code(tuple(each % len(dimensions) for each in along), elements[0], has_scalar_rest)


def computes_functions(loop: Any) -> bool:
    """Whether it does anything of which vector code may have other bits. A loop that copies names what has been computed before it, too."""
    return any(each.op == "call_method" and each.target not in _SAME for each in loop._body.get_nodes())


def add_up_by(half: fx.GraphModule, elements: Mapping[str, int]) -> None:
    """Inductor is to add up by vectors of so many elements, by the name of the sum."""
    for node in half.graph.nodes:
        if node.op == "call_function" and node.name in elements:
            node.meta[_ELEMENTS] = elements[node.name]


@contextlib.contextmanager
def added_up(half: fx.GraphModule) -> Iterator[None]:
    """Inductor, which compiles that half inside, does as `add_up_by` has said, unless the sums of one kernel ask for different numbers."""
    from torch._inductor.codegen import cpp

    elements = {node.name: node.meta[_ELEMENTS] for node in half.graph.nodes if _ELEMENTS in node.meta}
    if not elements:
        yield
        return
    select = cpp.TilingSelect.select_tiling

    def select_as_default(self: Any, loops: list[Any], sizes: Any) -> Any:
        chosen, *rest = select(self, loops, sizes)
        functions = (getattr(each, "original_fn", each) for each in loops)
        found = (getattr(each.args[0], "node", None) for each in functions if isinstance(each, functools.partial))
        expected = {elements[origin.name] for each in found for origin in getattr(each, "origins", ()) if origin.name in elements}
        return (list(expected) * len(chosen) if len(expected) == 1 else chosen, *rest)

    with patch.object(cpp.TilingSelect, "select_tiling", select_as_default), stored_apart("added up, by reprise", repr(elements)):
        yield


@contextlib.contextmanager
def masks_in_vectors() -> Iterator[None]:
    """Vector code that inductor makes inside draws numbers and stores masks, such as those of dropout, faster and with the same bits. By
    itself inductor forbids GCC to vectorize the loop that draws, and a mask is converted element by element."""
    from torch._inductor import cpp_builder
    from torch._inductor.codegen import cpp

    kernel: Any = cpp.CppVecKernel
    overrides: Any = cpp.CppVecOverrides
    if not hasattr(kernel, "_get_store_line") or not hasattr(overrides, "rand"):
        yield  # another torch
        return
    store, rand = kernel._get_store_line, overrides.rand

    def store_bytes(self: Any, value: Any, var: str, index: Any, dtype: Any, *rest: Any, **named: Any) -> Any:
        is_mask = dtype is torch.bool and getattr(value, "dtype", None) is torch.bool
        if is_mask and self._try_get_const_stride(index, self.itervars[self.tiling_idx]) == 1:
            vectors = self._get_num_vectors(torch.float)
            value = f"at::vec::convert<uint8_t, 1, float, {vectors}>({value}.to<float, {vectors}>())"
            var = f"reinterpret_cast<uint8_t*>({var})"
        return store(self, value, var, index, dtype, *rest, **named)

    def rand_in_vectors(seed: Any, offset: Any) -> Any:
        code = rand(seed, offset)
        if cpp_builder.is_gcc():
            code._lines = [f"{each} {VECTORIZED}" if each == "[&]()" else each for each in code._lines]
        return code

    with (patch.object(kernel, "_get_store_line", store_bytes), patch.object(overrides, "rand", staticmethod(rand_in_vectors)),
          stored_apart("masks in vectors, by reprise", "")):
        yield
