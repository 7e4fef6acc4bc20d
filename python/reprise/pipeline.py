"""A model cut into stages that work on micro-batches at the same time.

    pipe = reprise.Pipeline(model, balance=[3, 3], chunks=8, schedule="1f1b")
    loss, _ = pipe.step(x, target, torch.nn.functional.mse_loss)
    optimizer.step()

docs/pipeline.md has what C++ and Python share: modes, schedules, bytes, limits.
"""

from __future__ import annotations

import itertools
from typing import Any, Callable, Iterator, Literal, NamedTuple, Sequence, Union

import torch

from . import _reprise
from . import checkpoint as _checkpoint  # noqa: F401  (layers that are run again are left as its functions are)
from ._checkpoint_errors import StopRecomputation
from ._checkpoint_region import flags_of
from ._layers import state_of
from ._older import add_note

Value = Union[torch.Tensor, "tuple[torch.Tensor | None, ...]", "list[torch.Tensor | None]"]
Model = Union[torch.nn.Sequential, Sequence[torch.nn.Module]]
Loss = Callable[[Any, Any], torch.Tensor]

Norm = Union[torch.nn.BatchNorm1d, torch.nn.BatchNorm2d, torch.nn.BatchNorm3d]
_NORMS = (torch.nn.BatchNorm1d, torch.nn.BatchNorm2d, torch.nn.BatchNorm3d)


class Skippable:
    """A base of modules with skip connections, beside torch.nn.Module."""

    def stashes(self) -> Sequence[str]:
        """The names that forward() stashes, each time."""
        return ()

    def pops(self) -> Sequence[str]:
        """The names that forward() pops, each time."""
        return ()


class _Layer:
    """What the C++ side reads and calls of one module."""

    def __init__(self, module: torch.nn.Module, norms: list[_reprise.NormStandIn]) -> None:
        self._module = module
        self.name = type(module).__name__
        self.parameters = list(module.parameters())
        self.buffers = list(module.buffers())
        skips = [each for each in module.modules() if isinstance(each, Skippable)]
        self.stashes = [name for each in skips for name in each.stashes()]
        self.pops = [name for each in skips for name in each.pops()]
        self.norms = norms

    place = ""  # in the pipeline, for errors

    def state(self) -> Callable[[], None]:
        return state_of(self._module)

    def __call__(self, value: Value) -> Any:
        try:
            return self._run(value)
        except Exception as error:
            if self.place and not isinstance(error, StopRecomputation) and self.place not in getattr(error, "__notes__", ()):
                add_note(error, self.place)
            raise

    def _run(self, value: Value) -> Any:
        return self._module(value)

    def move(self, device: torch.device) -> None:
        """Tensors keep their identity, also buffers, which Module.to() would replace."""
        before = [dict(each._buffers) for each in self._module.modules()]
        self._module.to(device)
        for each, buffers in zip(self._module.modules(), before):
            for name, buffer in buffers.items():
                if buffer is not None and each._buffers[name] is not buffer:
                    buffer.data = each._buffers[name]  # type: ignore[assignment]
                    each._buffers[name] = buffer

    def train(self, on: bool) -> None:
        self._module.train(on)

    def is_training(self) -> bool:
        return self._module.training


class _LayerThatDefers(_Layer):
    """Its BatchNorm modules do not count batches: the pipeline does when the mini-batch is done."""

    def __init__(self, module: torch.nn.Module, stand_ins: dict[Norm, _reprise.NormStandIn]) -> None:
        self._norms: list[Norm] = [
            each for each in module.modules() if isinstance(each, _NORMS) and each.running_mean is not None]
        super().__init__(module, [stand_ins.setdefault(norm, _reprise.NormStandIn()) for norm in self._norms])

    def _run(self, value: Value) -> Any:
        counts = [norm._buffers["num_batches_tracked"] for norm in self._norms]
        for norm in self._norms:
            norm._buffers["num_batches_tracked"] = None
        try:
            return self._module(value)
        finally:
            for norm, count in zip(self._norms, counts):
                norm._buffers["num_batches_tracked"] = count


class _Layers(list[_Layer]):
    """The C++ side refers weakly to this list, so that Python's collector sees who refers to whom."""

    on_event: Callable[[_reprise.PipelineEvent], None] | None = None


def _modules_of(model: Model) -> list[torch.nn.Module]:
    return list(model)


class StepResult(NamedTuple):
    """What a step has made, without history."""

    loss: torch.Tensor
    outputs: Any = None


class Pipeline:
    """A model cut into stages, each on a worker, and its mini-batches into micro-batches.

        pipe = Pipeline(model, balance=[3, 3], chunks=8)
        torch.nn.functional.mse_loss(pipe(x), target).backward()

    model: an nn.Sequential or a list of modules, whose layers take and return a tensor, or a tuple of tensors.
    balance: the number of layers of each stage; balance_by_time() and balance_by_bytes() choose it.
    devices: of each worker; layers are moved there. None: a worker on the CPU for each stage.
    chunks: micro-batches of a mini-batch, which is cut along its first dimension.
    checkpoint: which micro-batches run again before their backward: "except_last", "always" or "never".
    checkpoint_stop: in its place, the first micro-batch that does not.
    bytes: in place of both, the most bytes of each worker's stages ("400MB"), or a list with one for each worker. What
        stages keep is then planned.
    schedule: the order of step(): a name of reprise.schedules.names(), or a PipelineSchedule. forward() is "gpipe".
    deferred_batch_norm: running statistics of BatchNorm count mini-batches, and not micro-batches.
    threads: inside operators of each worker; 0: as many as the caller has. Choose cores / workers.
    on_event: called with a PipelineEvent when an action ends, on the worker's thread.
    preserve_rng_state, determinism_check, early_stop, debug, selective: of stages that run again, as of
        reprise.checkpoint; `selective` is the policy or list of create_selective_checkpoint_contexts().

    Layers are called on the workers' threads, each under the interpreter's lock, which torch's operators release.
    The gradients are bitwise those of the micro-batches one after another. Interrupts (Ctrl-C) are raised when the
    step has ended. Raises UsageError for a balance, a schedule or devices that do not fit the model, for parameters
    that two stages share, and for skips without their counterpart.
    """

    def __init__(
        self,
        model: Model,
        *,
        balance: Sequence[int],
        devices: Sequence[str | torch.device] | None = None,
        chunks: int = 1,
        checkpoint: Literal["except_last", "always", "never"] = "except_last",
        checkpoint_stop: int | None = None,
        bytes: int | str | Sequence[int | str] | None = None,
        schedule: str | _reprise.PipelineSchedule = "gpipe",
        deferred_batch_norm: bool = False,
        threads: int = 0,
        on_event: Callable[[_reprise.PipelineEvent], None] | None = None,
        preserve_rng_state: bool = True,
        determinism_check: Literal["default", "none", "values"] = "default",
        early_stop: bool = True,
        debug: bool = False,
        selective: Any = None,
    ) -> None:
        self._stand_ins: dict[Norm, _reprise.NormStandIn] = {}
        self._layers = _Layers(
            _LayerThatDefers(module, self._stand_ins) if deferred_batch_norm else _Layer(module, [])
            for module in _modules_of(model))
        self._layers.on_event = on_event
        self._own = _reprise.OwnedPipeline(self._layers, {
            "balance": list(balance), "devices": list(devices or ()), "chunks": chunks, "checkpoint": checkpoint,
            "checkpoint_stop": checkpoint_stop, "bytes": bytes, "schedule": schedule,
            "deferred_batch_norm": deferred_batch_norm, "threads": threads, "observed": on_event is not None,
            "region_flags": flags_of(preserve_rng_state, determinism_check, early_stop), "debug": debug,
            "selective": _policy(selective)})
        stages = [stage for stage, count in enumerate(balance) for _ in range(count)]
        for index, (layer, stage) in enumerate(zip(self._layers, stages)):
            layer.place = f"Raised by layer {index} ({layer.name}) of the pipeline, in stage {stage}."

    def __repr__(self) -> str:
        return f"<Pipeline: {len(self._layers)} layers in {self.stages} stages>"

    def __call__(self, input: Value) -> Any:
        return self.forward(input)

    def forward(self, input: Value) -> Any:
        """The model's output for a mini-batch; backward of it runs backward of all stages.

        Raises UsageError for values that cannot be cut, and inside of a checkpointed region. The first error of a layer
        comes out as it is, with a note that names the layer and its stage, and the next call works. Backward raises UsageError with create_graph=True and for gradients
        of chosen tensors (torch.autograd.grad).
        """
        self._follow()
        output = self._own.forward(input)
        # Layers must be there as long as backward may run them again.
        for tensor in output if isinstance(output, tuple) else (output,):
            if tensor is not None and tensor.grad_fn is not None:
                tensor.grad_fn.metadata["reprise.Pipeline"] = self
                break
        return output

    def step(
        self, input: Value, target: Value, loss: Loss, *, reduction: Literal["mean", "sum"] = "mean", outputs: bool = False
    ) -> StepResult:
        """Forward and backward of a mini-batch, as the schedule has them. Gradients accumulate.

        loss: called with output and target of a micro-batch; returns a tensor with one element.
        reduction: of the losses of micro-batches: their mean, weighted by samples, or their sum.
        outputs: also return the model's outputs.
        """
        self._follow()
        return StepResult(*self._own.step(input, target, loss, reduction, outputs))

    def plan(
        self, input: torch.Tensor, target: torch.Tensor | None = None, loss: Loss | None = None
    ) -> _reprise.PipelineResidency:
        """What stages keep of such a mini-batch, in step(), or without a loss in forward() and its backward."""
        return self._own.plan(input, target, loss)

    def timeline(self) -> _reprise.PipelineTimeline:
        """What the last forward(), its backward, or the last step() did."""
        return self._own.timeline()

    def train(self, mode: bool = True) -> Pipeline:
        """Puts all layers in training mode, or in evaluation mode, as torch.nn.Module.train() does; returns the pipeline.

        Raises UsageError while the pipeline runs.
        """
        self._own.train(mode)
        return self

    def eval(self) -> Pipeline:
        """train(False)."""
        return self.train(False)

    @property
    def training(self) -> bool:
        """Whether any layer is in training mode."""
        return self._own.is_training()

    def parameters(self) -> Iterator[torch.nn.Parameter]:
        """The parameters of all layers, in order, for an optimizer."""
        return itertools.chain.from_iterable(layer.parameters for layer in self._layers)

    @property
    def stages(self) -> int:
        """The number of stages that the model is cut into."""
        return self._own.stages()

    def checkpoint_stop(self, micro_batches: int) -> int:
        """The first micro-batch, of so many, that is not checkpointed. It depends on grad mode and training mode."""
        return self._own.checkpoint_stop(micro_batches)

    def schedule(self, micro_batches: int) -> _reprise.PipelineSchedule:
        """The schedule that step() runs for so many micro-batches."""
        return self._own.schedule(micro_batches)

    def _follow(self) -> None:
        for norm, stand_in in self._stand_ins.items():
            if norm.running_mean is not None and norm.running_var is not None:
                stand_in.follow(norm.running_mean, norm.running_var, norm.num_batches_tracked, norm.momentum)


def _policy(selective: Any) -> Any:
    if selective is None:
        return None
    from ._checkpoint_selective import SelectivePair

    return SelectivePair(selective, False).selective()


def balance_by_time(
    model: Model, micro_batch: torch.Tensor, stages: int, bytes_per_stage: int | str | None = None, *, repetitions: int = 5
) -> list[int]:
    """The number of layers of each stage, so that the slowest stage is fastest.

    Each layer runs `repetitions` times on the micro-batch, forward and backward. bytes_per_stage: the most that a stage's
    parameters, their gradients, and what one micro-batch keeps may take. Raises BudgetError, with the least bytes that
    would do.
    """
    return _reprise.balance_by_time(_measured(model), micro_batch, stages, bytes_per_stage, repetitions)


def balance_by_bytes(model: Model, micro_batch: torch.Tensor, stages: int, *, repetitions: int = 5) -> list[int]:
    """The number of layers of each stage, so that the largest stage is smallest."""
    return _reprise.balance_by_bytes(_measured(model), micro_batch, stages, repetitions)


def _measured(model: Model) -> _Layers:
    return _Layers(_Layer(module, []) for module in _modules_of(model))
