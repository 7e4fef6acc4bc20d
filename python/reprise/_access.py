"""Python's ways to a tensor's bytes past operators, during steps: they bring dropped bytes back, and keep them in place
while somebody may look at them. Outside of steps they are as ever, but arrays and capsules are noted: they may be written to
at any time, so what a step computes from the tensor while one lives is not dropped, whenever it was made.

- numpy(), __array__: as long as the array lives.
- __dlpack__, to_dlpack(), untyped_storage() (also of pickling, torch.save, deepcopy, share_memory_()): as long as the
  capsule's tensor or the storage object lives. A copy by __dlpack__ has memory of its own, which steps do not see.
- data_ptr(): until the step ends.
- tolist(), apply_(), map_(), map2_(): during the call.
- float(), int(), bool(), complex() of a tensor, as torch.tensor() of a list of tensors asks for them: during the call.
- the kernels of compiled graphs: see _graphs.py.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch._C._dynamo import eval_frame

from . import _graphs
from ._reprise import Pin, hold, hold_until_step_ends, is_in_step, unseen, watch_profiler, watch_trace

_is_installed = False
_SKIP = eval_frame._FrameExecStrategy(eval_frame._FrameAction.SKIP, eval_frame._FrameAction.SKIP)


def _numpy(original: Callable[..., Any], tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    held = hold(tensor, writes_on=tensor.device.type == "cpu")  # else the array is a copy
    array = original(tensor, *args, **kwargs)
    # Views of the array hold it.
    weakref.finalize(array, _drop, held).atexit = False
    return array


def _drop(held: object) -> None:
    """The last reference ends here."""


def _tolist(original: Callable[..., Any], tensor: torch.Tensor) -> Any:
    held = hold(tensor)  # noqa: F841
    return original(tensor)


def _apply(original: Callable[..., Any], tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    held = [hold(each) for each in (tensor, *args, *kwargs.values()) if isinstance(each, torch.Tensor)]  # noqa: F841
    return original(tensor, *args, **kwargs)


def _number(original: Callable[..., Any], tensor: torch.Tensor) -> Any:
    try:
        return original(tensor)
    except RuntimeError as error:
        if "dropped by a reprise::MemoryBudget step" not in str(error) or tensor.numel() != 1:
            raise
    # torch.tensor() of a list reads elements with operators that steps do not see.
    with Pin(tensor):
        return original(tensor)


def _data_ptr(original: Callable[..., Any], tensor: torch.Tensor) -> Any:
    hold_until_step_ends(tensor)
    return original(tensor)


def _untyped_storage(original: Callable[..., Any], tensor: torch.Tensor) -> Any:
    storage = original(tensor)
    storage._reprise_hold = hold(tensor, is_its_storages=True)
    return storage


def _of_storage(original: Callable[..., Any], storage: torch.UntypedStorage, *args: Any) -> Any:
    """The storage holds its bytes, so that steps need not see these operators. The copy into shared memory must not make that
    memory the step's. To read an element torch makes another tensor on the storage, and steps keep a list of them."""
    return unseen(original, storage, *args)


def _dlpack(original: Callable[..., Any], tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    alias = tensor.detach().requires_grad_(tensor.requires_grad)  # __dlpack__ refuses one that requires gradients
    alias._reprise_hold = hold(tensor, writes_on=True)  # type: ignore[attr-defined]
    # A copy that the step saw could be dropped before its pointer is read.
    return unseen(functools.partial(original, alias, *args, **kwargs))


def _replace(owner: Any, name: str, during_step: Callable[..., Any], always: bool = False) -> None:
    """`always`: outside of steps, too."""
    original = getattr(owner, name)

    @functools.wraps(original)
    def replacement(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if always or is_in_step():
            return during_step(original, tensor, *args, **kwargs)
        return original(tensor, *args, **kwargs)

    # TorchDynamo compiles nothing of it, as of torch's own methods.
    eval_frame.set_code_exec_strategy(replacement.__code__, _SKIP)  # type: ignore[attr-defined]
    setattr(owner, name, replacement)


def _watch(owner: Any, begin: str, end: str, watch: Callable[[bool], None]) -> None:
    """From the one function of the owner to the other."""
    originals = getattr(owner, begin), getattr(owner, end)

    @functools.wraps(originals[0])
    def begins(*args: Any, **kwargs: Any) -> Any:
        watch(True)
        try:
            return originals[0](*args, **kwargs)
        except BaseException:
            watch(False)
            raise

    @functools.wraps(originals[1])
    def ends(*args: Any, **kwargs: Any) -> Any:
        try:
            return originals[1](*args, **kwargs)
        finally:
            watch(False)

    setattr(owner, begin, begins)
    setattr(owner, end, ends)


def install_at_import() -> None:
    """Once. An array may have been made, and a trace begun, when the first step is entered."""
    _replace(torch.Tensor, "numpy", _numpy, always=True)
    for owner, name in ((torch.Tensor, "__dlpack__"), (torch.utils.dlpack, "to_dlpack"), (torch, "to_dlpack"),
                        (torch._C, "_to_dlpack"), (torch._C, "_to_dlpack_versioned")):
        if hasattr(owner, name):
            _replace(owner, name, _dlpack, always=True)
    if hasattr(torch.profiler.profiler, "_enable_execution_trace_observer"):
        _watch(torch.profiler.profiler, "_enable_execution_trace_observer", "_disable_execution_trace_observer", watch_trace)


def install() -> None:
    """Called when a step is entered; the first call replaces the other methods of torch.Tensor."""
    global _is_installed
    if _is_installed:
        return
    _is_installed = True
    _graphs.install()
    for name, during_step in (("tolist", _tolist), ("data_ptr", _data_ptr), ("untyped_storage", _untyped_storage)):
        _replace(torch.Tensor, name, during_step)
    for name in ("apply_", "map_", "map2_"):
        _replace(torch.Tensor, name, _apply)
    for name in ("__float__", "__int__", "__index__", "__bool__", "__complex__"):
        _replace(torch.Tensor, name, _number)
    for name in ("_share_fd_cpu_", "_share_filename_cpu_", "__getitem__"):
        _replace(torch.UntypedStorage, name, _of_storage)
    _watch(torch.autograd.profiler, "_enable_profiler", "_disable_profiler", watch_profiler)
    if torch._C._autograd._profiler_enabled():
        watch_profiler(True)
