"""reprise.checkpoint as a drop-in for torch.utils.checkpoint: regions of Python functions."""

import contextlib
import gc
import subprocess
import sys
import threading
import warnings
import weakref

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import reprise
from reprise.checkpoint import CheckpointError, CheckpointFunction, GraphExecGroup, checkpoint, create_selective_checkpoint_contexts

BOTH = pytest.mark.parametrize("reentrant", [False, True])


def gradients(run, *inputs, seed=5):
    """Of the sum of what `run` returns."""
    for each in inputs:
        each.grad = None
    torch.manual_seed(seed)
    run(*inputs).sum().backward()
    return [each.grad for each in inputs]


def same(found, expected):
    return all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


@given(layers=st.integers(1, 4), rows=st.integers(1, 5), dropout=st.sampled_from([0.0, 0.5]), reentrant=st.booleans())
@settings(max_examples=30, deadline=None)
def test_gradients_are_bitwise_those_of_the_plain_step(layers, rows, dropout, reentrant):
    model = nn.Sequential(*[nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Dropout(dropout)) for _ in range(layers)])
    x = torch.randn(rows, 8, requires_grad=True)
    expected = gradients(lambda x, *_: model(x), x, *model.parameters())
    found = gradients(lambda x, *_: checkpoint(model, x, use_reentrant=reentrant), x, *model.parameters())
    assert same(found, expected)


@BOTH
def test_the_function_runs_once_in_forward_and_once_in_backward(reentrant):
    calls = []

    def function(x):
        calls.append(x)
        return x.sin()

    x = torch.randn(3, requires_grad=True)
    y = checkpoint(function, x, use_reentrant=reentrant)
    assert len(calls) == 1
    y.sum().backward()
    assert len(calls) == 2


def test_nothing_runs_after_the_call_that_made_what_backward_needs():
    calls = []

    def tail(x):
        calls.append(x)
        return x.clone()

    x = torch.randn(3, requires_grad=True)
    checkpoint(lambda x: tail(x.sin().cos()), x, use_reentrant=False).sum().backward()
    assert len(calls) == 1
    checkpoint(lambda x: tail(x.sin().cos()), x, use_reentrant=False, early_stop=False).sum().backward()
    assert len(calls) == 3


def test_an_early_stop_passes_handlers_of_runtime_errors_and_context_managers():
    left = []

    class Manager:
        def __enter__(self):
            return self

        def __exit__(self, kind, *_):
            left.append(kind)

    def function(x):
        with Manager():
            try:
                y = x.sin()
                torch.relu(y.cos())
                for _ in range(3):
                    y = torch.clone(y)
            except RuntimeError:
                left.append("handled")
            return y

    x = torch.randn(300_000, requires_grad=True)
    expected = gradients(function, x)
    left.clear()
    assert same(gradients(lambda x: checkpoint(function, x, use_reentrant=False), x), expected)
    assert "handled" not in left and len(left) == 2 and left[0] is None


PROFILED = """
import cProfile
import torch
import reprise.checkpoint as checkpoint

x = torch.randn(8, 8, requires_grad=True)

def steps():
    for _ in range(3):
        checkpoint(lambda x: x.sin().cos(), x, use_reentrant=False).sum().backward()

steps()
cProfile.Profile().runcall(steps)
"""


def test_a_profiler_of_python_runs_around_regions_that_stop_early():
    """CPython 3.11 goes round for ever there once an exception for a thread was taken back."""
    subprocess.run([sys.executable, "-c", PROFILED], check=True, timeout=300)


@BOTH
def test_functions_and_results_are_freed_without_a_run_of_gc(reentrant):
    class Held:
        pass

    def make():
        held = Held()
        x = torch.randn(3, requires_grad=True)
        y = checkpoint(lambda x, held=held: x.sin().cos(), x, use_reentrant=reentrant)
        return weakref.ref(held), weakref.ref(y), y

    gc.disable()
    try:
        held, result, y = make()
        assert held() is not None
        del y
        assert held() is None and result() is None
        held, result, y = make()
        y.sum().backward()
        del y
        assert held() is None and result() is None
    finally:
        gc.enable()


def test_a_function_that_is_left_inside_a_context_manager_is_freed_without_a_run_of_gc():
    """CPython 3.10's contextlib holds the exception in a frame that the exception holds."""
    class Held:
        pass

    @contextlib.contextmanager
    def scope():
        yield

    seen = []

    def function(x):
        held = Held()
        seen.append(weakref.ref(held))
        with scope():
            y = x.sin().cos()
            return y + 1

    gc.disable()
    try:
        checkpoint(function, torch.randn(3, requires_grad=True), use_reentrant=False).sum().backward()
        assert [each() for each in seen] == [None, None]
    finally:
        gc.enable()


@BOTH
def test_errors_of_the_function_keep_their_type_in_both_runs(reentrant):
    class Mine(Exception):
        pass

    runs = []

    def function(x, fails_in):
        runs.append(None)
        if len(runs) == fails_in:
            raise Mine
        return x.sin()

    x = torch.randn(3, requires_grad=True)
    with pytest.raises(Mine):
        checkpoint(function, x, 1, use_reentrant=reentrant)
    runs.clear()
    y = checkpoint(function, x, 2, use_reentrant=reentrant)
    with pytest.raises(Mine):
        y.sum().backward()
    runs.clear()
    checkpoint(function, x, 9, use_reentrant=reentrant).sum().backward()


def test_custom_functions_on_several_threads_do_not_deadlock():
    class Square(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        def backward(ctx, gradient):
            (x,) = ctx.saved_tensors
            return 2 * x * gradient

    x = torch.randn(5, requires_grad=True)
    y = checkpoint(lambda x: torch.dropout(Square.apply(Square.apply(x).sin()), 0.5, True), x, use_reentrant=False).sum()
    (expected,) = torch.autograd.grad(y, x, retain_graph=True)
    found = []

    def work():
        for _ in range(20):
            found.append(torch.autograd.grad(y, x, retain_graph=True)[0])

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 60 and same(found, [expected] * 60)


@pytest.mark.parametrize("second, options, text", [
    (lambda x: x.sin(), {}, "A different number of tensors was saved"),
    (lambda x: x.sin().sin().sin(), {"early_stop": False}, "trying to save more tensors during recomputation"),
    (lambda x: x[:2].sin().cos(), {}, "have different metadata"),
    (lambda x: (x + 1).sin().cos(), {"determinism_check": "values"}, "values differ"),
])
def test_a_recomputation_that_differs_is_an_error_with_torchs_text(second, options, text):
    functions = [lambda x: x.sin().cos(), second]
    x = torch.randn(4, requires_grad=True)
    y = checkpoint(lambda x: functions.pop(0)(x), x, use_reentrant=False, **options)
    with pytest.raises(CheckpointError, match=text):
        y.sum().backward()


def test_debug_shows_the_operators_of_both_runs():
    functions = [lambda x: x.sin().cos(), lambda x: x.exp()]
    x = torch.randn(4, requires_grad=True)
    y = checkpoint(lambda x: functions.pop(0)(x), x, use_reentrant=False, debug=True)
    with pytest.raises(CheckpointError, match="Detected non-determinism") as caught:
        y.sum().backward()
    assert "aten.sin" in str(caught.value) and "aten.exp" in str(caught.value)


@BOTH
def test_a_changed_argument_is_an_error(reentrant):
    x = torch.randn(3, requires_grad=True) * 1
    y = checkpoint(torch.sin, x, use_reentrant=reentrant)
    with torch.no_grad():
        x.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_running_statistics_are_updated_once():
    norm = nn.BatchNorm1d(4)
    x = torch.randn(8, 4, requires_grad=True)
    checkpoint(norm, x, use_reentrant=False).sum().backward()
    assert norm.num_batches_tracked.item() == 1


def test_the_default_device_of_forward_is_in_force_again():
    devices = []

    def function(x):
        devices.append(torch.empty(1).device.type)
        return x.sin()

    x = torch.randn(3, requires_grad=True)
    with torch.device("meta"):
        y = checkpoint(function, x, use_reentrant=False)
    y.backward(torch.ones(3))
    assert devices == ["meta", "meta"]


def test_contexts_are_entered_around_both_runs():
    entered = []

    class Context:
        def __init__(self, name):
            self.name = name

        def __enter__(self):
            entered.append(self.name)

        def __exit__(self, *_):
            entered.append(self.name)

    x = torch.randn(3, requires_grad=True)
    y = checkpoint(torch.sin, x, use_reentrant=False, context_fn=lambda: (Context("first"), Context("again")))
    assert entered == ["first", "first"]
    y.sum().backward()
    assert entered == ["first", "first", "again", "again"]
    with pytest.raises(ValueError, match="only supported when use_reentrant=False"):
        checkpoint(torch.sin, x, use_reentrant=True, context_fn=lambda: (Context("first"), Context("again")))


def test_a_group_recomputes_each_region_once():
    runs = []

    def function(x, y):
        runs.append(None)
        return x.sin().cos(), y.sin().cos()

    x, y = torch.randn(3, requires_grad=True), torch.randn(3, requires_grad=True)
    first, second = checkpoint(function, x, y, use_reentrant=False)
    with GraphExecGroup():
        first.sum().backward()
        second.sum().backward()
        with pytest.raises(RuntimeError, match="cannot be nested"), GraphExecGroup():
            pass
    assert len(runs) == 2


def test_the_decorator_wraps_functions_and_methods():
    class Holder:
        factor = 2.0

        @checkpoint(use_reentrant=False)
        def scaled(self, x):
            """Scales."""
            return self.factor * x.sin()

    x = torch.randn(3, requires_grad=True)
    assert same(gradients(Holder().scaled, x), gradients(lambda x: 2.0 * x.sin(), x))
    assert Holder.scaled.__doc__ == "Scales."


@BOTH
def test_warnings_are_torchs(reentrant):
    with pytest.warns(UserWarning, match="the use_reentrant parameter should be passed explicitly"):
        checkpoint(torch.sin, torch.randn(3, requires_grad=True))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        checkpoint(torch.sin, torch.randn(3, requires_grad=True), use_reentrant=reentrant)
    with pytest.warns(UserWarning, match="None of the inputs have requires_grad=True"):
        checkpoint(torch.sin, torch.randn(3), use_reentrant=True)


def test_a_reentrant_region_refuses_what_torchs_refuses():
    x = torch.randn(3, requires_grad=True)
    with pytest.raises(RuntimeError, match="torch.utils.checkpoint is incompatible"):
        torch.autograd.grad(checkpoint(torch.sin, x, use_reentrant=True).sum(), x)
    with pytest.raises(RuntimeError, match="none of output has requires_grad=True"):
        CheckpointFunction.apply(lambda x: x.detach(), True, x).sum().backward()
    with pytest.raises(ValueError, match="Unexpected keyword arguments: scale"):
        checkpoint(torch.sin, x, use_reentrant=True, scale=1)


def test_fake_tensors_take_torchs_own_function():
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        x = torch.randn(3, requires_grad=True)
        y = checkpoint(torch.sin, x, use_reentrant=False)
        y.sum().backward()
    assert x.grad.shape == (3,)


def test_a_region_runs_operators_that_call_functions():
    def step(x):
        return torch.cond(x.sum() > 0, lambda x: x.sin().exp(), lambda x: x.cos().exp(), (x,)).square()

    def keeping_sines():
        return create_selective_checkpoint_contexts([torch.ops.aten.sin.default])

    x = torch.linspace(-1, 2, 6, requires_grad=True)
    for options in ({}, {"determinism_check": "values"}, {"context_fn": keeping_sines}):
        assert same(gradients(lambda x: checkpoint(step, x, use_reentrant=False, **options), x), gradients(step, x))


def test_a_chain_runs_in_segments_and_within_bytes():
    torch.manual_seed(0)
    model = nn.Sequential(*[
        nn.Sequential(nn.Linear(128, 512), nn.GELU(), nn.Dropout(0.1), nn.Linear(512, 128)) for _ in range(6)])
    x = torch.randn(256, 128, requires_grad=True)
    expected = gradients(lambda x, *_: model(x), x, *model.parameters())
    for segments in (3, "20MB"):
        def run(x, *_, segments=segments):
            return reprise.checkpoint_sequential(model, segments, x, use_reentrant=False)
        assert same(gradients(run, x, *model.parameters()), expected)
    with pytest.raises(reprise.BudgetError, match="raise the budget"):
        reprise.checkpoint_sequential(model, "1kB", x)
    with pytest.raises(reprise.UsageError, match="takes one tensor and returns one"):
        reprise.checkpoint_sequential([lambda x: (x, x)], "20MB", x)


def test_what_a_function_switches_by_hand_is_put_back_where_it_is_left():
    switch, is_on, seen = torch.set_autocast_cache_enabled, torch.is_autocast_cache_enabled, []
    x = torch.randn(4, requires_grad=True) * 1
    x.register_hook(lambda gradient: seen.append(is_on()))
    function = lambda x: (switch(False), x.sin().cos(), switch(True))[1]  # noqa: E731
    checkpoint(function, x, use_reentrant=False).sum().backward()  # leaves it after cos()
    assert (seen, is_on()) == ([True], True)
