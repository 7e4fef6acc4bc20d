"""Where torch.utils.checkpoint's own function must run: under tracers, which see Python's operators alone."""

from __future__ import annotations

import sys
import warnings
from typing import Any

import torch
from torch._C._dynamo.eval_frame import get_eval_frame_callback
from torch._subclasses.fake_tensor import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor

from . import _reprise

TRACED_TENSORS = (FakeTensor, FunctionalTensor)
_said: set[str] = set()


def compiled_autograd_is_on() -> bool:
    """Whether backward calls are being compiled, whose tracer takes saved-tensor hooks of Python alone."""
    module = sys.modules.get("torch._dynamo.compiled_autograd")
    return module is not None and bool(module.compiled_autograd_enabled or module.in_compiled_autograd_region)


def is_compiled() -> bool:
    """Whether TorchDynamo or compiled autograd has a part in what this thread runs."""
    return get_eval_frame_callback() is not None or compiled_autograd_is_on()


def reason_for_torch(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
    """What makes it torch's own function that must run; None where a region of reprise can."""
    if get_eval_frame_callback() is not None:
        return "torch.compile"
    if compiled_autograd_is_on():
        return "compiled autograd"
    reason: str | None = _reprise.why_torch(args, kwargs)
    return reason


def say_once(reason: str) -> None:
    """Warns, once a process and reason, that torch's function runs in place of a region of reprise."""
    if reason in _said or torch.compiler.is_compiling():
        return
    _said.add(reason)
    warnings.warn(
        f"reprise.checkpoint: under {reason} the function of torch.utils.checkpoint runs instead of a region of "
        "reprise, as it would without it (this is said once)", stacklevel=4)
