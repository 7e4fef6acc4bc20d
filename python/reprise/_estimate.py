"""estimate(): what a training step of a module needs, in bytes and seconds, before anything is allocated."""

from __future__ import annotations

import contextlib
from typing import Any, Callable, Iterator, Literal

import torch
from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily
from torch.nn.modules import module as modules
from torch.nn.parameter import is_lazy
from torch.utils._pytree import tree_any_only, tree_map_only

from . import _reprise
from ._reprise import Estimate, Machine


def estimate(
    module: torch.nn.Module,
    *inputs: Any,
    loss: Callable[[Any], torch.Tensor] | None = None,
    optimizer: Literal["sgd", "adamw"] | None = None,
    master_weights: bool = True,
    device: str | torch.device = "cpu",
    machine: Machine | None = None,
    shards: int = 1,
    **keywords: Any,
) -> Estimate:
    """Estimates one training step: ``loss(module(*inputs, **keywords)).backward()``.

        found = reprise.estimate(model, torch.empty(8, 1024, dtype=torch.long, device="meta"), optimizer="adamw")
        found.peak, found.kept[0]
        found.trace.simulate("8GiB").slowdown

    The step runs once on the meta device, whose tensors have shapes and no memory. The module's parameters and buffers
    are lent to it for the call. Inputs may have memory, be on the meta device or be fake tensors. A model that does not fit is
    built under ``with torch.device("meta")``.

    loss: takes what the module returns and returns one real number. None: the result itself, if it is one number, its
        attribute `loss`, if it has one, or the sum of its elements.
    optimizer: "sgd" (with momentum) counts one value a parameter as state, "adamw" two. Its step is not run.
    master_weights: for 16-bit parameters, the state and a copy of the parameters are in f32.
    device: "cpu" or "cuda": decides what operators save, and how the allocator rounds.
    machine: the rates for seconds; None: 1e12 operations and 1e11 bytes a second.
    shards: parameters, gradients and optimizer state are divided by this number of devices.

    Afterwards the module is as it was, and so are random generators. What forward assigns to plain attributes stays there
    without memory. Nobody else may use the module meanwhile.

    Raises UsageError for options out of range; for a step that needs values (`item()`, `nonzero`), or runs under
    autocast; for tensors outside of the module that require gradients; and for parameters that have no shape yet, or are
    registered by the step. Errors of forward pass through.
    """
    for name, parameter in [*module.named_parameters(), *module.named_buffers()]:
        if is_lazy(parameter):
            raise _reprise.UsageError(
                f"estimate(): \"{name}\" has no shape yet; run the module once, so that lazy parameters get theirs")

    inputs, keywords = _without_fakes((inputs, keywords))

    def run() -> torch.Tensor:
        try:
            with _names_of(module):
                result = module(*inputs, **keywords)
            found = loss(result) if loss is not None else _number_of(result)
        except RuntimeError as error:
            if "meta tensors" not in str(error) or isinstance(error, _reprise.Error):
                raise
            raise _reprise.UsageError(
                f"estimate(): the step reads a value, and tensors of an estimate have none ({error}); take a path that "
                "does not depend on values, or give the value as a number") from error
        if not isinstance(found, torch.Tensor):
            raise _reprise.UsageError(
                f"estimate(): the loss is a {type(found).__name__}; give loss=, a function of the module's result that "
                "returns a tensor of one number")
        return found

    with unset_fake_temporarily():
        return _reprise.estimate(module, run, device, machine or Machine(), optimizer or "none", master_weights, shards)


def _without_fakes(given: Any) -> Any:
    """Fake tensors become tensors of the meta device, on which the step runs."""

    def plain(value: FakeTensor) -> torch.Tensor:
        with unset_fake_temporarily():
            return torch.empty_strided(
                [*map(int, value.size())], [*map(int, value.stride())], dtype=value.dtype, device="meta",
                requires_grad=value.requires_grad)

    # Containers of other inputs stay the program's own.
    return tree_map_only(FakeTensor, plain, given) if tree_any_only(FakeTensor, lambda _: True, given) else given


def _number_of(result: Any) -> Any:
    result = getattr(result, "loss", result)
    return result.sum() if isinstance(result, torch.Tensor) and result.numel() != 1 else result


@contextlib.contextmanager
def _names_of(root: torch.nn.Module) -> Iterator[None]:
    """Operators run under the names of the modules that call them."""
    names = {module: name for name, module in root.named_modules()}
    scopes: list[tuple[torch.nn.Module, str, _reprise.Named | None]] = []

    def begin(module: torch.nn.Module, _: Any) -> None:
        outer = next((path for _, path, _ in reversed(scopes)), "")
        path = names.get(module, outer)
        name = path[len(outer) + 1:] if outer and path.startswith(outer + ".") else path if path != outer else ""
        scopes.append((module, path, _reprise.named(name).__enter__() if name else None))

    def end(module: torch.nn.Module, _: Any, result: Any) -> None:
        if scopes and scopes[-1][0] is module:
            named = scopes.pop()[2]
            if named is not None:
                named.__exit__(None, None, None)

    hooks = [modules.register_module_forward_pre_hook(begin), modules.register_module_forward_hook(end, always_call=True)]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
        while scopes:
            end(scopes[-1][0], None, None)
