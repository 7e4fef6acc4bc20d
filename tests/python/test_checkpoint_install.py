"""reprise.install(): libraries that use torch.utils.checkpoint use reprise.checkpoint."""

import contextlib
import copy
import functools
import inspect

import pytest
import torch
import torch.utils.checkpoint
from torch import nn
from torch.distributed._composable import checkpoint as composable
from torch.distributed.algorithms._checkpoint import checkpoint_wrapper as wrapping

import reprise
import reprise.checkpoint as ours

THEIRS = torch.utils.checkpoint


@pytest.fixture
def installed():
    reprise.install()
    yield
    reprise.uninstall()


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(6, 6), nn.GELU(), nn.Dropout(0.3))

    def forward(self, x, *, fails=False):
        if fails:
            raise RuntimeError("in forward")
        return self.inner(x)


def gradients(model, x):
    torch.manual_seed(4)
    model.zero_grad()
    model(x).sum().backward()
    return [parameter.grad for parameter in model.parameters()]


def test_all_names_of_torch_are_there_with_their_parameters():
    assert set(THEIRS.__all__) <= set(ours.__all__)
    for name in THEIRS.__all__:
        mine, other = getattr(ours, name), getattr(THEIRS, name)
        if inspect.isfunction(other):
            assert set(inspect.signature(other).parameters) <= set(inspect.signature(mine).parameters), name
    assert ours._infer_device_type is THEIRS._infer_device_type
    with pytest.raises(AttributeError):
        ours.there_is_no_such_name


def test_installing_replaces_the_module_and_names_that_others_imported(installed):
    assert torch.utils.checkpoint is ours
    assert wrapping.torch_utils_checkpoint is ours.checkpoint
    reprise.uninstall()
    assert torch.utils.checkpoint is THEIRS
    assert wrapping.torch_utils_checkpoint is THEIRS.checkpoint
    reprise.install()
    reprise.install()
    from torch.utils.checkpoint import checkpoint

    assert checkpoint is ours.checkpoint


@pytest.mark.parametrize("kind", ["REENTRANT", "NO_REENTRANT"])
def test_the_checkpoint_wrapper_gives_the_gradients_of_the_plain_module(installed, kind):
    model = Block()
    x = torch.randn(3, 6, requires_grad=True)
    expected = gradients(copy.deepcopy(model), x)
    wrapped = wrapping.checkpoint_wrapper(model, checkpoint_impl=wrapping.CheckpointImpl[kind])
    assert all(torch.equal(a, b) for a, b in zip(gradients(wrapped, x), expected, strict=True))


def test_the_composable_form_gives_the_gradients_of_the_plain_module(installed):
    model = nn.Sequential(Block(), Block())
    x = torch.randn(3, 6)
    expected = gradients(copy.deepcopy(model), x)
    composable(model[0])
    composable(model[1])
    assert all(torch.equal(a, b) for a, b in zip(gradients(model, x), expected, strict=True))


def test_a_module_that_fails_in_the_composable_form_leaves_nothing_in_force(installed):
    block = composable(Block())
    x = torch.randn(3, 6)
    with pytest.raises(RuntimeError, match="in forward"):
        block(x, fails=True)
    y = (x.requires_grad_() * 1).sin()
    y.sum().backward()  # saves what it saves, in no region
    gradients(block, torch.randn(3, 6))


def test_the_composable_form_takes_contexts_and_checks_and_forgets_a_region_that_fails(installed):
    class Changes(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear, self.runs, self.entered = nn.Linear(6, 6), 0, []

        def forward(self, x):
            self.runs += 1
            if "raise" in self.entered and self.runs == 2:
                raise RuntimeError("in the recomputation")
            return self.linear(x.repeat(2, 1) if "widen" in self.entered and self.runs == 2 else x).sin()

    @contextlib.contextmanager
    def noted(block, name):
        block.entered.append(name)
        yield

    def run(*entered, **options):
        block = Changes()
        composable(block, context_fn=lambda: (noted(block, "forward"), noted(block, "again")), **options)
        block.entered += entered
        loss = block(torch.randn(3, 6)).sum()
        try:
            loss.backward()
        finally:
            assert composable.state(block)._ac_generator is None
        return block

    assert run().entered == ["forward", "again"]
    with pytest.raises(RuntimeError, match="in the recomputation"):
        run("raise")
    with pytest.raises(THEIRS.CheckpointError, match="different metadata"):
        run("widen")
    with pytest.raises(RuntimeError) as caught:  # of autograd, which gets tensors of other shapes
        run("widen", determinism_check="none")
    assert not isinstance(caught.value, THEIRS.CheckpointError)


@pytest.mark.parametrize("kind", ["REENTRANT", "NO_REENTRANT"])
def test_wrapped_modules_take_keywords_and_keep_their_names_in_states(installed, kind):
    wrap = functools.partial(wrapping.checkpoint_wrapper, checkpoint_impl=wrapping.CheckpointImpl[kind])
    model, plain = nn.Sequential(Block(), Block()), nn.Sequential(Block(), Block())
    wrapping.apply_activation_checkpointing(model, checkpoint_wrapper_fn=wrap, check_fn=lambda m: isinstance(m, Block))
    assert all(isinstance(block, wrapping.CheckpointWrapper) for block in model)
    plain.load_state_dict(model.state_dict())
    x = torch.randn(3, 6, requires_grad=True)
    for _ in range(2):
        assert all(torch.equal(a, b) for a, b in zip(gradients(model, x), gradients(plain, x), strict=True))
    y = model[0](x=x, fails=False) if kind == "NO_REENTRANT" else model[0](x, fails=False)
    assert y.requires_grad
    model.load_state_dict(plain.state_dict())


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("options", [
    {}, {"context_fn": functools.partial(ours.create_selective_checkpoint_contexts, [torch.ops.aten.addmm.default])}])
def test_regions_of_compiled_models_draw_the_same_again(installed, backend, options):
    """Where a backend runs a region as it is, torch's own function draws dropout anew in backward."""
    torch._dynamo.reset()
    torch.manual_seed(1)
    model, x = nn.Sequential(Block(), Block()), torch.randn(4, 6)

    def regions(x):
        return torch.utils.checkpoint.checkpoint(model, x, use_reentrant=False, **options)

    def of(call):
        torch.manual_seed(4)
        return torch.autograd.grad(call(x).square().sum(), list(model.parameters()))

    assert all(map(torch.equal, of(torch.compile(regions, backend=backend)), of(model)))
