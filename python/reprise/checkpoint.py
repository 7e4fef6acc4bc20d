"""A drop-in for torch.utils.checkpoint: its names, signatures, warnings and error texts, run by the library's regions.

    from reprise.checkpoint import checkpoint

    h = checkpoint(block, h, use_reentrant=False)

`reprise.install()` puts this module in place of torch.utils.checkpoint for the whole process, so that libraries which
checkpoint through it (Hugging Face, FSDP's checkpoint_wrapper, the composable API) use it unchanged.

What differs from torch:

- Tensors that a function writes to (BatchNorm's running statistics) are restored for the recomputation and updated
  once a step. torch updates them twice.
- Generators other than the default ones are replayed as well. So are oneDNN's, the threads' and the rounding settings.
- ``determinism_check="values"`` compares hashes of what both runs save, but for subclasses that dispatch by themselves (DTensor).
- ``checkpoint_sequential(model, "400MB", x)`` plans what to recompute for a number of bytes.
- Selective checkpointing: see :func:`create_selective_checkpoint_contexts`.
- A reentrant region refuses ``create_graph=True``. torch's gives wrong second derivatives.

Under tracers (torch.compile, compiled autograd, torch.fx, fake and functional tensors, torch.func, torch.jit.trace)
torch's own function runs instead, and a warning says so once.

Names that torch.utils.checkpoint has and this module does not define, such as private ones, are torch's.
"""

from __future__ import annotations

import functools
import inspect
import sys
import types
import warnings
from typing import Any, Callable

import torch.utils.checkpoint
from torch._C._dynamo.eval_frame import get_eval_frame_callback as _eval_frame_callback
from torch.compiler import is_dynamo_compiling as _is_dynamo_compiling
from torch.fx import traceback as _fx_traceback

from . import _checkpoint_effects, _reprise
from ._checkpoint_errors import CheckpointError, StopRecomputation, refuse as _refuse
from ._checkpoint_group import GraphExecGroup
from ._checkpoint_region import (
    PRESERVE_RANDOM, REENTRANT, Contexts, debugs as _debugs, flags_of as _flags_of, hooks_flag as _hooks_flag,
    noop_context_fn, region as _open_region, run as _run, torchs as _torchs)
from ._checkpoint_selective import (
    MODES as _MODES, SAC_IGNORED_OPS, CheckpointPolicy, SelectiveCheckpointContext, create_selective_checkpoint_contexts,
    pair_of as _pair_of, show_modes as _show_modes)
from ._checkpoint_sequential import checkpoint_sequential
from ._checkpoint_traced import TRACED_TENSORS, compiled_autograd_is_on as _compiled_autograd_is_on

_torch: Any = torch.utils.checkpoint  # before install() can replace it

# Settings and helpers are torch's own objects: what is set through one module holds for the other.
DefaultDeviceType = _torch.DefaultDeviceType
check_backward_validity = _torch.check_backward_validity
detach_variable = _torch.detach_variable
get_device_states = _torch.get_device_states
set_device_states = _torch.set_device_states
set_checkpoint_debug_enabled = _torch.set_checkpoint_debug_enabled
set_checkpoint_early_stop = _torch.set_checkpoint_early_stop

__all__ = [
    "CheckpointError", "CheckpointFunction", "CheckpointPolicy", "DefaultDeviceType", "GraphExecGroup", "SAC_IGNORED_OPS",
    "SelectiveCheckpointContext", "check_backward_validity", "checkpoint", "checkpoint_sequential",
    "create_selective_checkpoint_contexts", "detach_variable", "get_device_states", "noop_context_fn",
    "set_checkpoint_debug_enabled", "set_checkpoint_early_stop", "set_device_states",
]

_reprise.set_checkpoint_parts(StopRecomputation, _refuse, TRACED_TENSORS)
_checkpoint_effects.follow()
_region = _reprise.region
_SPECIAL = _reprise.special
# Whether torch's own function has this option, as from 2.15 on; its texts changed with it.
_HAS_HOOKS_OPTION = "respect_saved_tensors_hooks" in inspect.signature(_torch.checkpoint).parameters
_NO_REENTRANT = (
    "torch.utils.checkpoint: the use_reentrant parameter should be passed explicitly. "
    f"{'In a future release' if _HAS_HOOKS_OPTION else 'Starting in PyTorch 2.9'}, calling "
    "checkpoint without use_reentrant will raise an exception. use_reentrant=False is recommended, but if you need to "
    "preserve the current default behavior, you can pass use_reentrant=True. Refer to docs for more details on the "
    "differences between the two variants.")


def _of_torch(respect_saved_tensors_hooks: bool | None) -> dict[str, Any]:
    """The option for torch's own function, which up to 2.14 always passes the hooks by."""
    return {"respect_saved_tensors_hooks": respect_saved_tensors_hooks} if _HAS_HOOKS_OPTION else {}


class CheckpointFunction(_torch.CheckpointFunction):  # type: ignore[misc]
    """The reentrant variant as an autograd function: ``apply(run_function, preserve_rng_state, *args)``."""

    @classmethod
    def apply(cls, run_function: Callable[..., Any], preserve_rng_state: bool, *args: Any) -> Any:
        if cls is CheckpointFunction:
            flags = REENTRANT | (PRESERVE_RANDOM if preserve_rng_state else 0)
            result = _region(run_function, args, None, flags, None)
            if result is not _SPECIAL:
                return result
            if not _torchs(args, {}):
                return _reprise.region_anyway(run_function, args, None, flags, None)
        return super().apply(run_function, preserve_rng_state, *args)


class _Checkpointed:
    """A function with the options of its regions: what ``checkpoint(use_reentrant=False)(function)`` returns."""

    def __init__(self, function: Callable[..., Any], **options: Any) -> None:
        self.function = function
        self.options = options
        functools.update_wrapper(self, function, updated=())

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return _checkpoint(self.function, args, kwargs, **self.options)

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        bind = getattr(self.function, "__get__", None)
        if instance is None or bind is None:
            return self
        return _Checkpointed(bind(instance, owner), **self.options)


def checkpoint(
    function: Callable[..., Any] | None = None,
    *args: Any,
    use_reentrant: bool | None = None,
    preserve_rng_state: bool = True,
    context_fn: Contexts = noop_context_fn,
    determinism_check: str = "default",
    debug: bool = False,
    early_stop: bool = True,
    respect_saved_tensors_hooks: bool | None = None,
    **kwargs: Any,
) -> Any:
    """Runs ``function(*args, **kwargs)`` as a region: forward keeps its arguments, and backward runs it again.

    Without a function it returns a decorator: ``checkpoint(use_reentrant=False)(function)``, for methods too.

    use_reentrant: False is recommended. True runs forward without a graph and a backward of its own inside backward.
    preserve_rng_state: replay random draws (dropout).
    context_fn: returns two context managers, for forward and for the recomputation. Not with use_reentrant.
    determinism_check: "default" compares number, shapes, dtypes and devices of what both runs save, "values" also their
        values, "none" the number alone.
    debug: put the operators of both runs into the error. Not with use_reentrant.
    early_stop: stop the recomputation when all that backward needs is there.
    respect_saved_tensors_hooks: show results that selective checkpointing keeps to the saved_tensors_hooks around the
        region. None is False with a FutureWarning where there are hooks.

    Raises CheckpointError in backward if the recomputation saved other tensors than forward, and RuntimeError if an
    argument was changed in place meanwhile. Errors of the function pass through.
    """
    if function is None and not args:
        if kwargs:
            raise ValueError("Unexpected keyword arguments: " + ",".join(kwargs))
        return functools.partial(
            _Checkpointed, use_reentrant=use_reentrant, preserve_rng_state=preserve_rng_state, context_fn=context_fn,
            determinism_check=determinism_check, debug=debug, early_stop=early_stop,
            respect_saved_tensors_hooks=respect_saved_tensors_hooks)
    return _checkpoint(
        function, args, kwargs, use_reentrant, preserve_rng_state, context_fn, determinism_check, debug, early_stop,
        respect_saved_tensors_hooks)


def _checkpoint(
    function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], use_reentrant: bool | None, preserve_rng_state: bool,
    context_fn: Contexts, determinism_check: str, debug: bool, early_stop: bool, respect_saved_tensors_hooks: bool | None,
) -> Any:
    if _is_dynamo_compiling():
        return _torch.checkpoint(
            function, *args, use_reentrant=use_reentrant, preserve_rng_state=preserve_rng_state, context_fn=context_fn,
            determinism_check=determinism_check, debug=debug, early_stop=early_stop, **_of_torch(respect_saved_tensors_hooks),
            **kwargs)
    if use_reentrant is None:
        warnings.warn(_NO_REENTRANT, stacklevel=3)
        use_reentrant = True
    if use_reentrant:
        if kwargs:
            raise ValueError("Unexpected keyword arguments: " + ",".join(kwargs))
        if context_fn is not noop_context_fn or debug is not False or respect_saved_tensors_hooks is not None:
            names = ("`context_fn`, `debug`, or `respect_saved_tensors_hooks`"
                     if _HAS_HOOKS_OPTION or respect_saved_tensors_hooks is not None else "`context_fn` or `debug`")
            raise ValueError(f"Passing {names} is only supported when use_reentrant=False.")
        if _eval_frame_callback() is None and not _compiled_autograd_is_on():
            return CheckpointFunction.apply(function, preserve_rng_state, *args)
        _torchs(args, kwargs)
        return _torch.CheckpointFunction.apply(function, preserve_rng_state, *args)
    # torch runs regions of compiled models with preserve_rng_state=False, as compilers make the draws again. Backend "eager" does not.
    preserves = preserve_rng_state or _fx_traceback.has_preserved_node_meta()
    if _eval_frame_callback() is None and not _compiled_autograd_is_on() and not _debugs(debug):
        flags = _flags_of(preserves, determinism_check, early_stop)
        selective = None
        if context_fn is not noop_context_fn:
            contexts = context_fn()
            pair = _pair_of(contexts)
            if pair is None:
                context_fn = lambda: contexts  # noqa: E731
            else:
                selective = pair.selective()
                flags |= _hooks_flag(respect_saved_tensors_hooks, contexts, 3)
        if context_fn is noop_context_fn or selective is not None:
            result = _region(function, args, kwargs, flags, selective)
            if result is not _SPECIAL:
                return result
            if selective is not None:
                context_fn = lambda: contexts  # noqa: E731
    if _torchs(args, kwargs):
        return _torch.checkpoint(
            function, *args, use_reentrant=False, preserve_rng_state=preserve_rng_state, context_fn=context_fn,
            determinism_check="none" if determinism_check == "none" else "default", debug=debug, early_stop=early_stop,
            **_of_torch(respect_saved_tensors_hooks), **kwargs)
    return _run(
        function, args, kwargs, preserve_rng_state=preserves, context_fn=context_fn,
        determinism_check=determinism_check, debug=debug, early_stop=early_stop,
        respect_saved_tensors_hooks=respect_saved_tensors_hooks)


def _checkpoint_without_reentrant_generator(
    fn: Any, preserve_rng_state: bool = True, context_fn: Contexts = noop_context_fn, determinism_check: str = "default",
    debug: bool = False, early_stop: bool = True, *args: Any,
    respect_saved_tensors_hooks: bool | None = None, **kwargs: Any,
) -> Any:
    """The form that hooks of modules drive up to torch 2.14."""
    return _checkpoint_without_reentrant_generator_impl(
        fn, args, kwargs, preserve_rng_state=preserve_rng_state, context_fn=context_fn, determinism_check=determinism_check,
        debug=debug, early_stop=early_stop, respect_saved_tensors_hooks=respect_saved_tensors_hooks)


def _checkpoint_without_reentrant_generator_impl(
    fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any], *, preserve_rng_state: bool = True,
    context_fn: Contexts = noop_context_fn, determinism_check: str = "default", debug: bool = False, early_stop: bool = True,
    respect_saved_tensors_hooks: bool | None = None,
) -> Any:
    """What hooks of modules drive: a region whose function runs between the generator's first and second step."""
    if _torchs(args, kwargs):
        return _torch._checkpoint_without_reentrant_generator(
            fn, preserve_rng_state, context_fn, "none" if determinism_check == "none" else "default", debug, early_stop, *args,
            **_of_torch(respect_saved_tensors_hooks), **kwargs)
    return _open_region(
        fn, args, kwargs, preserve_rng_state=preserve_rng_state, context_fn=context_fn, determinism_check=determinism_check,
        debug=debug, early_stop=early_stop, respect_saved_tensors_hooks=respect_saved_tensors_hooks)


def __getattr__(name: str) -> Any:
    if name in _MODES:
        _show_modes(str(sys._getframe(1).f_globals.get("__name__")))
    return getattr(_torch, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *dir(_torch)})


class _CallableModule(types.ModuleType):
    """reprise.checkpoint(function, x) is reprise.checkpoint.checkpoint(function, x)."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return checkpoint(*args, **kwargs)


sys.modules[__name__].__class__ = _CallableModule
