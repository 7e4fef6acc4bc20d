"""Seconds and workspaces of operators: each kind is timed once on a machine, on tensors of its own.

Draws on a CPU are timed as inductor's code. Other loops are timed as eager operators on data in the nearest cache, without what the
call of an operator takes: a compiler that merges loops saves that, and most traffic of memory."""

from __future__ import annotations

import contextlib
import ctypes
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import unset_fake_temporarily

from .._reprise import PeakScope
from . import _cost_cache
from ._kinds import Kind, name_of
from ._sizes import value_of
from ._vectors import VECTORIZED

_REPEATS = 20
# Seconds for the repeats: noise is small beside longer operators.
_LONG = 0.01
# Elements of a loop that is timed: on a CPU few enough for the nearest cache. On an accelerator its traffic is subtracted.
_SAMPLE, _SAMPLE_OF_DEVICE = 1 << 14, 1 << 24
# Bytes that are copied: more than caches hold.
_TRAFFIC_SAMPLE, _TRAFFIC_SAMPLE_OF_DEVICE = 1 << 24, 1 << 28
# Calls between two waits for an accelerator, whose launches overlap with them.
_IN_FLIGHT = 10
# Libraries whose operators do nothing but compute. Others may send, print or count: a collective waits for other ranks.
_PURE = frozenset("aten prims inductor_prims rngprims mkldnn onednn quantized quantized_decomposed".split())

# What inductor's loops on a CPU draw by. Eager operators draw otherwise.
_DRAWS = """
#include <torch/csrc/inductor/cpp_prefix.h>
extern "C" {vectorized} void draw(float* drawn, int64_t count) {{
  for (int64_t at = 0; at < count; ++at) drawn[at] = {function}(1, at);
}}
"""

Layouts = dict[fx.Node, tuple[int, ...]]  # strides of arguments


class Costs:
    def __init__(self) -> None:
        self._table: _cost_cache.Table | None = None
        self._new: _cost_cache.Table = {}

    def save(self) -> None:
        if self._new:
            _cost_cache.write(self._new)
            self._new = {}

    def _known(self, time_it: Callable[[], list[float]], *key: Any) -> list[float]:
        if self._table is None:
            self._table = _cost_cache.read()
        text = repr((torch.get_num_threads(), *key))
        if text not in self._table:
            self._table[text] = self._new[text] = time_it()
        return self._table[text]

    def traffic(self, device: torch.device) -> float:
        """Nanoseconds a byte that a loop reads or writes."""
        def time_it() -> list[float]:
            with _real():
                count = _TRAFFIC_SAMPLE if device.type == "cpu" else _TRAFFIC_SAMPLE_OF_DEVICE
                source = torch.zeros(count // 4, device=device)
                target = torch.empty_like(source)
                target.copy_(source)
                return [_nanoseconds(lambda: target.copy_(source), device) / (2 * count)]

        return self._known(time_it, "traffic", device.type)[0]

    def call(self, node: fx.Node, strides: Sequence[tuple[int, ...]] | None = None) -> tuple[int, int]:
        """Nanoseconds, and the bytes that the operator needs beside its arguments and results. `strides`: of each tensor that
        is an argument, where they are not the graph's. Operators of other libraries are not called."""
        if not isinstance(node.target, torch._ops.OpOverload) or node.target.namespace not in _PURE:
            return self._moving(node), 0
        layouts = dict(zip(_tensors_of(node), strides, strict=True)) if strides is not None else {}
        nanoseconds, workspace = self._known(lambda: self._time_call(node, layouts), "call", *_key_of(node, layouts))
        return int(nanoseconds), int(workspace)

    def _time_call(self, node: fx.Node, layouts: Layouts) -> list[float]:
        device = _device_of(node)
        try:
            with _real():
                arguments, named = _filled(node.args, layouts=layouts), _filled(node.kwargs, layouts=layouts)

                def run() -> Any:
                    return node.target(*arguments, **named)  # type: ignore[operator]

                if device.type != "cpu":
                    run()  # the first call makes what stays, such as a workspace of cuBLAS
                with PeakScope(device) as scope:
                    result = run()
                made = _bytes_in(result)
                del result
                return [round(_nanoseconds(run, device)), max(0, scope.peak_above_start - made)]
        except Exception:  # not every operator runs on invented values; it moves its bytes at least
            return [self._moving(node), 0]

    def _moving(self, node: fx.Node) -> int:
        """Nanoseconds in which its bytes move."""
        moved = sum(_bytes_in(value_of(each)) for each in (node, *node.all_input_nodes))
        return round(moved * self.traffic(_device_of(node)))

    def loop(self, node: fx.Node, elements: int) -> float:
        """Nanoseconds of the arithmetic."""
        value = value_of(node)
        value = value if isinstance(value, torch.Tensor) else value[0]
        key = ("loop", str(node.target), value.dtype, value.device.type, *(node.args[2:] if name_of(node) == "inductor_random" else ()))
        return self._known(lambda: [self._time_loop(node, value)], *key)[0] * elements

    def _time_loop(self, node: fx.Node, value: torch.Tensor) -> float:
        if name_of(node) == "inductor_random":
            draw = _inductors_draw(str(node.args[2])) if value.device.type == "cpu" else None

            def run(elements: int) -> Any:
                drawn = torch.empty(elements, device=value.device)
                return (lambda: draw(drawn.data_ptr(), elements)) if draw else drawn.uniform_
        elif not isinstance(node.target, torch._ops.OpOverload) or torch.Tag.pointwise not in node.target.tags:
            return 0.0  # it moves bytes, and computes nothing to speak of
        else:
            def run(elements: int) -> Any:
                arguments, named = _filled(node.args, elements), _filled(node.kwargs, elements)
                return lambda: node.target(*arguments, **named)  # type: ignore[operator]
        try:
            with _real():
                is_cpu = value.device.type == "cpu"
                count = _SAMPLE if is_cpu else _SAMPLE_OF_DEVICE
                call, many = (_nanoseconds(run(elements), value.device) for elements in (1, count))
                tensors = 1 + len(_tensors_of(node))
                moving = 0.0 if is_cpu else self.traffic(value.device) * value.dtype.itemsize * tensors
                return max(0.0, (many - call) / count - moving)
        except Exception:
            return 0.0


COSTS = Costs()


class _real:
    """Real tensors, no gradients, and generators that are as before."""

    def __enter__(self) -> None:
        self._parts: list[Any] = [unset_fake_temporarily(), torch.no_grad(), torch.random.fork_rng()]
        for part in self._parts:
            part.__enter__()

    def __exit__(self, *error: Any) -> None:
        for part in reversed(self._parts):
            part.__exit__(*error)


def _inductors_draw(kind: str) -> Callable[[int, int], Any] | None:
    """Writes so many numbers to an address. `kind`: "rand" or "randn". It takes seconds to compile."""
    with contextlib.suppress(Exception):  # no compiler
        from torch._inductor import cpp_builder
        from torch._inductor.codecache import CppCodeCache

        function = "randn_cpu" if kind == "randn" else "normalized_rand_cpu"
        vectorized = VECTORIZED if kind == "rand" and cpp_builder.is_gcc() else ""
        draw = CppCodeCache.load(_DRAWS.format(function=function, vectorized=vectorized)).draw
        draw.argtypes = ctypes.c_void_p, ctypes.c_int64
        return draw  # type: ignore[no-any-return]
    return None


def _nanoseconds(run: Any, device: torch.device) -> float:
    if device.type != "cpu":
        return _nanoseconds_of_device(run, device)
    clock = time.thread_time  # other processes do not disturb it
    best, spent = float("inf"), 0.0
    for _ in range(_REPEATS):
        begin = clock()
        run()
        best = min(best, clock() - begin)
        spent += clock() - begin
        if spent > _LONG:
            break
    return best * 1e9


def _nanoseconds_of_device(run: Any, device: torch.device) -> float:
    run()
    best = float("inf")
    for _ in range(3):
        torch.accelerator.synchronize(device)
        begin = time.perf_counter()
        for _ in range(_IN_FLIGHT):
            run()
        torch.accelerator.synchronize(device)
        best = min(best, (time.perf_counter() - begin) / _IN_FLIGHT)
    return best * 1e9


def _device_of(node: fx.Node) -> torch.device:
    for each in (node, *node.all_input_nodes):
        value = value_of(each)
        value = value[0] if isinstance(value, (list, tuple)) and value else value
        if isinstance(value, torch.Tensor):
            return value.device
    return torch.device("cpu")


def _tensors_of(node: fx.Node) -> list[fx.Node]:
    return [each for each in node.all_input_nodes if isinstance(value_of(each), torch.Tensor)]


def _key_of(node: fx.Node, layouts: Layouts) -> Any:
    def key(value: Any) -> Any:
        strides = layouts.get(value) if isinstance(value, fx.Node) else None
        value = value_of(value) if isinstance(value, fx.Node) else value
        if isinstance(value, torch.Tensor):
            return tuple(value.shape), strides or value.stride(), value.dtype, value.device.type
        if isinstance(value, (list, tuple)):
            return tuple(key(each) for each in value)
        return str(value)

    return str(node.target), key(node.args), tuple((name, key(value)) for name, value in node.kwargs.items())


def _filled(value: Any, elements: int | None = None, layouts: Layouts = {}) -> Any:
    """Tensors of the same form, or flat ones of that many elements."""
    strides = layouts.get(value) if isinstance(value, fx.Node) else None
    value = value_of(value) if isinstance(value, fx.Node) else value
    if isinstance(value, torch.Tensor):
        fill = 0.5 if value.dtype.is_floating_point or value.dtype.is_complex else 0
        if elements is not None:
            return torch.full([elements if value.numel() > 1 else 1], fill, dtype=value.dtype, device=value.device)
        made = torch.empty_strided(value.shape, strides or value.stride(), dtype=value.dtype, device=value.device)
        return made.fill_(fill)
    if isinstance(value, dict):
        return {name: _filled(each, elements, layouts) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_filled(each, elements, layouts) for each in value)
    return value


def _bytes_in(value: Any) -> int:
    if isinstance(value, torch.Tensor):
        return value.numel() * value.dtype.itemsize
    if isinstance(value, (list, tuple)):
        return sum(_bytes_in(each) for each in value)
    return 0


def loops(kind: Kind) -> bool:
    return kind in (Kind.LOOP, Kind.REDUCTION)
