"""Selective checkpointing by policies of Python."""

import functools
import gc
import importlib
import weakref

import pytest
import torch
from torch._library.effects import EffectType
from torch.utils import _python_dispatch

import reprise
from reprise import _checkpoint_selective
from reprise._checkpoint_selective import with_output
from reprise.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

aten = torch.ops.aten
SAVE, RECOMPUTE = CheckpointPolicy.MUST_SAVE, CheckpointPolicy.PREFER_RECOMPUTE


RUNS = []
graphs = []


@torch.library.custom_op("reprise_tests::product", mutates_args=())
def product(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    RUNS.append(None)
    return x.mm(w)


def backward_of_product(ctx, gradient):
    x, w = ctx.saved_tensors
    return gradient.mm(w.t()), x.t().mm(gradient)


product.register_autograd(
    backward_of_product, setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs))
PRODUCT = torch.ops.reprise_tests.product.default


def contexts(policy, **options):
    return functools.partial(create_selective_checkpoint_contexts, policy, **options)


def keep_products(context, op, *args, **kwargs):
    return op is PRODUCT


@pytest.mark.parametrize("policy, runs", [
    ([PRODUCT], 2), (keep_products, 2), (lambda *args, **kwargs: SAVE if args[1] is PRODUCT else RECOMPUTE, 2),
    ([aten.sin.default], 4)])
def test_kept_products_are_not_made_again(policy, runs):
    x, w = torch.randn(4, 4, requires_grad=True), torch.randn(4, 4, requires_grad=True)

    def function(x, w):
        return product(product(x, w).sin(), w).cos()

    expected = torch.autograd.grad(function(x, w).sum(), (x, w))
    RUNS.clear()
    y = checkpoint(function, x, w, use_reentrant=False, context_fn=contexts(policy))
    found = torch.autograd.grad(y.sum(), (x, w))
    assert len(RUNS) == runs
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def test_a_policy_is_asked_in_forward_with_what_the_operator_took_and_gave():
    asked = []

    def policy(context, op, *args, **kwargs):
        asked.append((op, args, kwargs, context.op_output, context.is_recompute))
        return RECOMPUTE

    x = torch.randn(4, requires_grad=True)
    y = checkpoint(
        lambda x: x.double().sum(0, keepdim=True).sin(), x, use_reentrant=False, context_fn=contexts(policy))
    asked_in_forward = len(asked)
    y.sum().backward()
    assert len(asked) == asked_in_forward
    by_op = {op: rest for op, *rest in asked}
    args, kwargs, output, is_recompute = by_op[aten._to_copy.default]
    assert kwargs == {"dtype": torch.float64} and isinstance(args[0], torch.Tensor)
    assert output.dtype is torch.float64 and is_recompute is False
    args, kwargs, _, _ = by_op[aten.sum.dim_IntList]
    assert args[1:] == ([0], True) and kwargs == {}


def test_an_error_of_a_policy_passes_through():
    class Mine(Exception):
        pass

    def policy(context, op, *args, **kwargs):
        raise Mine

    with pytest.raises(Mine):
        checkpoint(torch.sin, torch.randn(3, requires_grad=True), use_reentrant=False, context_fn=contexts(policy))


def test_a_kept_result_that_was_changed_is_an_error_unless_that_is_allowed():
    def function(x):
        return x.sin().mul_(2).cos().exp()

    x = torch.randn(3, requires_grad=True)
    (expected,) = torch.autograd.grad(function(x).sum(), x)
    y = checkpoint(function, x, use_reentrant=False, context_fn=contexts([aten.sin.default]))
    with pytest.raises(RuntimeError, match="has been mutated"):
        y.sum().backward()
    y = checkpoint(
        function, x, use_reentrant=False, context_fn=contexts([aten.sin.default], allow_cache_entry_mutation=True))
    (found,) = torch.autograd.grad(y.sum(), x)
    assert torch.equal(found, expected)


@pytest.mark.parametrize("function", [
    lambda x: x.sin().mul_(2).cos().exp(),
    lambda x: x.sin()[2:].mul_(2).cos().exp(),
    lambda x: x.sin().mul_(2).narrow(0, 1, 3).expand(4, 3).cos() * x[:3],
    lambda x: torch.view_as_complex(x.sin().mul_(2).view(3, 2)).conj().cos().abs()])
def test_torch_s_modes_hand_out_a_changed_result_as_in_torch_s_own_regions(function):
    policy = functools.partial(
        torch.utils.checkpoint.create_selective_checkpoint_contexts, [aten.sin.default], allow_cache_entry_mutation=True)
    values = torch.randn(6)

    def gradient(region):
        x = values.clone().requires_grad_()
        region(function, x, use_reentrant=False, context_fn=policy).sum().backward()
        return x.grad

    assert torch.equal(gradient(checkpoint), gradient(torch.utils.checkpoint.checkpoint))


def test_a_write_that_only_a_recomputation_makes_is_an_error_and_taken_back():
    buffer, runs = torch.ones(3), []

    def function(x):
        runs.append(None)
        if len(runs) > 1:
            buffer.add_(1)
        return (x * 2).add_(1) * buffer

    y = checkpoint(function, torch.ones(3, requires_grad=True), use_reentrant=False)
    with pytest.raises(RuntimeError, match="has been modified by an inplace operation"):
        y.sum().backward()
    assert torch.equal(buffer, torch.ones(3))


def test_an_operator_that_writes_is_made_again_whatever_the_policy_says():
    def function(x):
        return torch.relu_(x * 2).sin()

    x = torch.randn(8, requires_grad=True)
    (expected,) = torch.autograd.grad(function(x).sum(), x)
    y = checkpoint(function, x, use_reentrant=False, context_fn=contexts(lambda *args, **kwargs: SAVE), early_stop=False)
    with pytest.raises(RuntimeError, match="has been mutated"):
        y.sum().backward()  # the product, whose result relu_ changes
    y = checkpoint(function, x, use_reentrant=False, context_fn=contexts([aten.relu_.default]))
    (found,) = torch.autograd.grad(y.sum(), x)
    assert torch.equal(found, expected)


def test_kept_results_die_with_their_graph_and_after_backward():
    x = torch.ones(1 << 18, requires_grad=True)

    def above(then):
        """Bytes that are live after `then(y)`, above those before the region, in units of x."""
        before = reprise.live_bytes()
        y = [checkpoint(lambda x: x.cos().exp().sin(), x, use_reentrant=False, context_fn=contexts([aten.exp.default]))]
        then(y)
        x.grad = None
        return round((reprise.live_bytes() - before) / x.nbytes)

    gc.disable()
    try:
        assert above(list.clear) == 0  # the graph is gone
        assert above(graphs.append) == 2  # it is there
        assert above(lambda y: (y[0].sum().backward(retain_graph=True), graphs.append(y))) == 1
    finally:
        gc.enable()
        graphs.clear()


def test_a_region_is_recomputed_once():
    x = torch.randn(3, requires_grad=True)
    y = checkpoint(lambda x: x.sin().cos(), x, use_reentrant=False, context_fn=contexts([aten.sin.default])).sum()
    y.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="Trying to backward an extra time"):
        y.backward()


@pytest.mark.parametrize("policy", ["MUST_CPU_OFFLOAD", "PREFER_CPU_OFFLOAD"])
def test_offloading_what_is_in_host_memory_keeps_it(policy):
    x = torch.randn(3, requires_grad=True)
    (expected,) = torch.autograd.grad(x.sin().cos().sum(), x)
    answer = getattr(CheckpointPolicy, policy)
    y = checkpoint(
        lambda x: x.sin().cos(), x, use_reentrant=False, context_fn=contexts(lambda *args, **kwargs: answer))
    assert torch.equal(torch.autograd.grad(y.sum(), x)[0], expected)


@torch.library.custom_op("reprise_tests::counted", mutates_args=())
def counted(x: torch.Tensor) -> torch.Tensor:
    RUNS.append(None)
    return x.clone()


counted.register_autograd(lambda ctx, gradient: gradient.clone(), setup_context=lambda ctx, inputs, output: None)


@pytest.mark.parametrize("policy, runs", [
    ("PREFER_RECOMPUTE", 1), ("MUST_CPU_OFFLOAD", 1), ("MUST_SAVE", 1), ("MUST_RECOMPUTE", 2)])
def test_operators_in_torch_s_table_of_effects_run_once_unless_the_policy_insists(policy, runs):
    answer = getattr(CheckpointPolicy, policy)

    def runs_of_a_step():
        RUNS.clear()
        x = torch.randn(3, requires_grad=True)
        y = checkpoint(lambda x: counted(x.sin()).cos(), x, use_reentrant=False,
                       context_fn=contexts(lambda context, op, *args, **kwargs: RECOMPUTE if "counted" not in str(op) else answer))
        y.sum().backward()
        assert torch.equal(x.grad, -x.sin().sin() * x.cos())
        return len(RUNS)

    counted.register_effect(EffectType.ORDERED)
    try:
        assert runs_of_a_step() == runs
    finally:
        counted.register_effect(None)
    assert runs_of_a_step() == (2 if "RECOMPUTE" in policy else 1)


def test_hooks_around_see_what_is_kept_if_they_are_respected():
    packed = []

    def run(respect):
        packed.clear()
        x = torch.randn(3, requires_grad=True)
        with torch.autograd.graph.saved_tensors_hooks(lambda t: packed.append(t) or t, lambda t: t):
            y = checkpoint(
                lambda x: x.sin().cos(), x, use_reentrant=False, context_fn=contexts([aten.sin.default]),
                respect_saved_tensors_hooks=respect)
        return y, len(packed)

    assert run(True)[1] > run(False)[1]
    with pytest.warns(FutureWarning, match="respect_saved_tensors_hooks"):
        run(None)


@pytest.mark.parametrize("policy, error, text", [
    ([torch.sin], ValueError, "Expected op in `op_list` to be an OpOverload"),
    ([aten.sin], ValueError, "change it to `torch.ops.aten.mm.default`"),
    (3, TypeError, "either a function or a list of ops"),
])
def test_what_is_no_policy_is_refused(policy, error, text):
    with pytest.raises(error, match=text):
        create_selective_checkpoint_contexts(policy)


def test_a_policy_is_told_the_output_where_torch_s_class_knows_none():
    class Older:
        def __init__(self, *, is_recompute):
            self.is_recompute = is_recompute

    told = with_output(Older)(is_recompute=False, op_output=3)
    assert isinstance(told, Older) and (told.is_recompute, told.op_output) == (False, 3)
    assert with_output(type(told)) is type(told)


def test_a_program_that_looks_for_torch_s_modes_finds_them(monkeypatch):
    monkeypatch.setattr(_checkpoint_selective, "_shows_modes", False)
    importlib.import_module("torch._higher_order_ops.wrap")
    exec("reprise.checkpoint._CachingTorchDispatchMode", {"__name__": "torch._dynamo.utils", "reprise": reprise})
    assert not _checkpoint_selective._shows_modes
    with pytest.warns(UserWarning, match="test_checkpoint_selective takes torch's private dispatch modes .* take longer"):
        caching = reprise.checkpoint._CachingTorchDispatchMode
    modes, sines = [], []

    def function(x):
        mode = _python_dispatch._get_current_dispatch_mode()
        modes.append(type(mode))
        x = x.cos().sin()
        if modes[-1] is caching:
            kept = mode.storage[aten.sin.default][0].val
            sines.append(weakref.ref(kept))
            assert not kept.requires_grad
        return x.exp()

    def run():
        return checkpoint(function, torch.ones(1, requires_grad=True), use_reentrant=False, context_fn=contexts(lambda *_, **__: SAVE))

    gc.disable()
    try:
        run()
        assert sines[-1]() is None
        y = run()
        assert sines[-1]() is not None
        y.sin().backward(retain_graph=True)
        assert sines[-1]() is None
    finally:
        gc.enable()
    assert modes == [caching, caching, reprise.checkpoint._CachedTorchDispatchMode]
