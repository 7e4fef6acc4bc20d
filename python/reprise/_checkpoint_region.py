"""A region with everything that torch.utils.checkpoint can have around its function: contexts, modes, debugging."""

from __future__ import annotations

import contextlib
import warnings
from typing import Any, Callable, ContextManager, Generator

import torch
import torch.overrides
import torch.utils.checkpoint
from torch.utils._device import DeviceContext

from . import _reprise
from ._checkpoint_selective import SelectivePair, pair_of
from ._checkpoint_traced import reason_for_torch, say_once

REENTRANT, PRESERVE_RANDOM, EARLY_STOP, CHECK_NOTHING, CHECK_VALUES, OWN_CONTEXTS, RESPECT_HOOKS = 1, 2, 4, 8, 16, 32, 64
CHECKS = {"default": 0, "none": CHECK_NOTHING, "values": CHECK_VALUES}

_torch: Any = torch.utils.checkpoint  # before install() can replace it
_overrides: Any = torch.overrides
noop_context_fn = _torch.noop_context_fn
Contexts = Callable[[], "tuple[ContextManager[Any], ContextManager[Any]]"]


def flags_of(preserve_rng_state: bool, determinism_check: str, early_stop: bool) -> int:
    """What the C++ side wants to know, in bits."""
    check = CHECKS.get(determinism_check)
    if check is None:
        raise ValueError(
            f"determinism_check should be one of {list(CHECKS)}, but got {determinism_check}")
    forced = _torch._enable_checkpoint_early_stop
    return (
        check
        | (PRESERVE_RANDOM if preserve_rng_state else 0)
        | (EARLY_STOP if (early_stop if forced is None else forced) else 0)
    )


def debugs(debug: bool) -> bool:
    """Whether a region that was asked for `debug` does so."""
    forced = _torch._checkpoint_debug_enabled
    return bool(debug if forced is None else forced)


def hooks_flag(respect_saved_tensors_hooks: bool | None, contexts: tuple[Any, Any], stacklevel: int) -> int:
    """RESPECT_HOOKS if kept results go through the saved-tensor hooks around the region."""
    if respect_saved_tensors_hooks is None and pair_of(contexts) is not None and _reprise.has_python_hooks():
        warnings.warn(
            "A saved_tensors_hooks context (e.g. save_on_cpu) is active around a selective activation checkpoint region. "
            "Tensors that SAC saves currently bypass these hooks, but a future release will route them through the hooks like "
            "any other saved tensor. Silence this warning and choose the behavior explicitly by passing "
            "respect_saved_tensors_hooks=True|False to torch.utils.checkpoint.checkpoint.", FutureWarning, stacklevel=stacklevel + 1)
    return RESPECT_HOOKS if respect_saved_tensors_hooks else 0


def _device_context() -> ContextManager[Any]:
    for mode in reversed(_overrides._get_current_function_mode_stack()):
        if isinstance(mode, DeviceContext):
            return mode
    return contextlib.nullcontext()


def _again(function: Callable[..., Any], *contexts: ContextManager[Any]) -> Callable[..., Any]:
    used = [context for context in contexts if type(context) is not contextlib.nullcontext]
    if not used:
        return function

    def run_again(*args: Any, **kwargs: Any) -> None:
        with contextlib.ExitStack() as stack:
            for context in used:
                stack.enter_context(context)
            function(*args, **kwargs)

    return run_again


def region(
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    *,
    preserve_rng_state: bool,
    context_fn: Contexts,
    determinism_check: str,
    debug: bool,
    early_stop: bool,
    respect_saved_tensors_hooks: bool | None,
) -> Generator[None, None, None]:
    """A region whose function the caller runs between the generator's first and second step."""
    explain = None
    if debugs(debug):
        if context_fn is not noop_context_fn:
            raise ValueError("debug=True is incompatible with non-default context_fn")
        context_fn, explain = _torch._get_debug_context_and_cb()
    flags = flags_of(preserve_rng_state, determinism_check, early_stop)
    _torch._infer_device_type(*args)  # for its warning
    contexts = context_fn()
    if not torch.is_grad_enabled():
        yield
        return
    pair: SelectivePair | None = pair_of(contexts)
    if pair is not None and not any(_is_subclass(arg) for arg in (*args, *kwargs.values())):
        forward_context: ContextManager[Any] = contextlib.nullcontext()
        again = _again(function, _device_context())
        selective = pair.selective()
        flags |= hooks_flag(respect_saved_tensors_hooks, contexts, 4)
    else:
        forward_context, recompute_context = contexts
        if type(recompute_context) is not contextlib.nullcontext:
            flags |= OWN_CONTEXTS
        again = _again(function, recompute_context, _device_context())
        selective = None
    opened = _reprise.OpenRegion(again, explain, args, kwargs, flags, selective)
    suppressed = False
    try:
        with forward_context:
            try:
                yield
            except BaseException:
                suppressed = True
                raise
        if suppressed:
            raise RuntimeError(
                "torch.utils.checkpoint: the forward context provided by context_fn suppressed an exception raised "
                "during the checkpointed forward. This is not supported because checkpoint cannot return a value for "
                "a failed forward.")
        opened.end()
    finally:
        opened.close()


def _is_subclass(arg: Any) -> bool:
    return isinstance(arg, torch.Tensor) and torch._C._dispatch_keys(arg).has(torch._C.DispatchKey.Python)


def run(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], **options: Any) -> Any:
    """Runs the function as a region by the generator."""
    generator = region(function, args, kwargs, **options)
    next(generator)
    try:
        result = function(*args, **kwargs)
    except BaseException as error:
        generator.throw(error)
        raise
    for _ in generator:
        raise AssertionError("reprise.checkpoint: the generator of a region yielded twice")
    return result


def torchs(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether torch's own function must run; says so."""
    reason = reason_for_torch(args, kwargs)
    if reason is None:
        return False
    if reason != "a scope that forbids saved-tensor hooks":  # torch's function raises
        say_once(reason)
    return True
