"""Errors and lives of pipelines: what comes out, what is refused, and what dies when."""

import contextlib
import gc
import os
import signal
import threading
import weakref

import pytest
import torch
from torch import nn

import reprise
from pipeline_testing import TWO, Returns, blocks, outcome, same


def test_layers_know_which_run_they_are_in_and_events_are_told():
    seen, events = [], []

    def spy(x):
        seen.append((reprise.is_checkpointing(), reprise.is_recomputing(), threading.get_ident() == caller))
        return x.sin()

    caller = threading.get_ident()
    pipe = reprise.Pipeline([Returns(spy)], balance=[1], chunks=2, on_event=events.append)
    pipe(torch.randn(2, 2, requires_grad=True)).sum().backward()
    assert seen == [(True, False, False), (False, False, False), (False, True, False)]
    assert [(str(each.action), each.recompute) for each in events] == [
        ("0F0", False), ("0F1", False), ("0B1", False), ("0B0", True), ("0B0", False)]
    timeline = pipe.timeline()
    assert len(timeline.workers) == 1 and len(timeline.workers[0].events) == 5 and timeline.time > 0
    assert timeline.text(columns=60).startswith("worker 0 ") and "<svg" in timeline.svg() and '"ph"' in timeline.chrome_trace()


def test_workers_have_the_callers_settings_and_parameters_their_hooks():
    seen = []

    def spy(x):
        seen.append((torch.mm(x, x).dtype, torch.get_num_threads()))
        return x

    pipe = reprise.Pipeline([Returns(spy), nn.Linear(4, 4)], balance=[1, 1], threads=1)
    calls = []
    next(pipe.parameters()).register_hook(lambda gradient: calls.append(threading.get_ident()))
    with torch.autocast("cpu", torch.bfloat16):
        output = pipe(torch.randn(4, 4, requires_grad=True))
    output.float().sum().backward()
    assert seen == [(torch.bfloat16, 1)] and len(calls) == 1


class Broken(Exception):
    pass


@pytest.mark.parametrize("kind", [Broken, KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
def test_the_first_exception_comes_out_as_itself_and_the_next_step_works(kind, schedule):
    left = [-1]

    def maybe(x):
        left[0] -= 1
        if left[0] == -1:
            raise kind("layer 3 broke")
        return x * 2

    model = blocks(1, dropout=0.0)
    model[3] = Returns(maybe)
    x = torch.randn(8, 8)
    pipe = reprise.Pipeline(model, balance=[2, 3], chunks=4, schedule=schedule)
    good = outcome(model, pipe.step(x, x, nn.functional.mse_loss).loss)
    for at in (1, 3, 6):  # in forward, and in a recomputation
        left[0] = at
        with pytest.raises(kind, match="layer 3 broke") as caught:
            pipe.step(x, x, nn.functional.mse_loss)
        assert any(entry.name == "maybe" for entry in caught.traceback)
        assert getattr(caught.value, "__notes__", []) == (
            ["Raised by layer 3 (Returns) of the pipeline, in stage 1."] if issubclass(kind, Exception) else [])
        left[0] = -1
        model.zero_grad()
        assert same(outcome(model, pipe.step(x, x, nn.functional.mse_loss).loss), good)
    for at in (4, 6):  # in a recomputation of a backward of the user's own
        left[0] = at
        output = pipe(x)
        with pytest.raises(kind, match="layer 3 broke") as caught:
            output.sum().backward()
        assert len(getattr(caught.value, "__notes__", [])) == issubclass(kind, Exception)
        model.zero_grad()


def fails(*_):
    raise Broken("it broke")


def test_exceptions_of_losses_observers_and_hooks_come_out_as_themselves():
    model, x = blocks(1), torch.randn(4, 8)
    with pytest.raises(Broken):
        reprise.Pipeline(model, balance=[2, 3], chunks=2).step(x, x, fails)
    with pytest.raises(Broken):
        reprise.Pipeline(model, balance=[2, 3], chunks=2, on_event=fails).step(x, x, nn.functional.mse_loss)
    with pytest.raises(reprise.UsageError, match="the loss returned an object of type float"):
        reprise.Pipeline(model, balance=[2, 3], chunks=2).step(x, x, lambda *_: 1.0)
    model[0].weight.register_hook(fails)
    with pytest.raises(Broken):
        reprise.Pipeline(model, balance=[2, 3], chunks=2)(x).sum().backward()


def test_everything_dies_without_the_collector():
    gc.disable()
    try:
        for when in ("before", "after", "failed"):
            # Backward runs before or after the program drops the pipeline, or not at all.
            model, x = blocks(1), torch.randn(4, 8)
            pipe = reprise.Pipeline(model, balance=[2, 3], chunks=2)
            dead = [weakref.ref(pipe), weakref.ref(model[0]), weakref.ref(model[4])]
            output = pipe(x)
            dead.append(weakref.ref(output))
            pipe.step(x, x, nn.functional.mse_loss)
            del model
            if when == "before":
                del pipe
                output.sum().backward()
            elif when == "failed":
                with contextlib.suppress(Broken):
                    pipe.step(x, x, fails)
                del pipe
            else:
                output.sum().backward()
                del pipe
            del output
            assert [each() for each in dead] == [None] * 4, when
    finally:
        gc.enable()


def test_the_collector_frees_who_observes_its_own_pipeline():
    class Trainer:
        def __init__(self):
            layer = nn.Linear(2, 2)
            layer.register_forward_hook(self.hook)
            self.pipe = reprise.Pipeline([layer], balance=[1], on_event=self.note)

        def note(self, event):
            pass

        def hook(self, *_):
            pass

    trainer = Trainer()
    trainer.pipe(torch.randn(2, 2)).sum().backward()
    dead = weakref.ref(trainer)
    del trainer
    gc.collect()
    assert dead() is None


@pytest.mark.parametrize("options, text", [
    ({"balance": []}, r"the balance \(empty\) gives 0 layers, and the model has 5"),
    ({"balance": [2, 2]}, r"\(2 \+ 2\) gives 4 layers"),
    ({"balance": [5], "chunks": 0}, "chunks is 0"),
    ({"balance": [5], "checkpoint": "sometimes"}, "checkpoint is 'sometimes'"),
    ({"balance": [5], "checkpoint_stop": -1}, "checkpoint_stop is -1"),
    ({"balance": [5], "threads": -2}, "threads is -2"),
    ({"balance": [5], "schedule": "2f2b"}, "2f2b"),
    ({"balance": [5], "bytes": 1.5}, "bytes is 1.5; give an int of bytes"),
    ({"balance": [2, 3], "devices": ["cuda:99", "cpu"]}, "there is no device cuda:99"),
    ({"balance": [2, 2, 1], "devices": TWO}, "3 stages cannot be shared evenly among 2 workers")])
def test_options_that_do_not_fit_are_refused(options, text):
    with pytest.raises(reprise.UsageError, match=text):
        reprise.Pipeline(blocks(1), **options)


def test_calls_that_do_not_fit_are_refused():
    shared = nn.Linear(8, 8)
    with pytest.raises(reprise.UsageError, match="shares a parameter with stage 0, and is in stage 1"):
        reprise.Pipeline([shared, nn.Linear(8, 8), shared], balance=[2, 1])
    pipe, x = reprise.Pipeline(blocks(1), balance=[2, 3], chunks=2), torch.randn(4, 8, requires_grad=True)
    with pytest.raises(reprise.UsageError, match="no samples"):
        pipe(torch.randn(0, 8))
    with pytest.raises(reprise.UsageError, match="target 0 has 3 samples"):
        pipe.step(x.detach(), torch.randn(3, 8), nn.functional.mse_loss)
    with pytest.raises(reprise.UsageError, match="an input requires grad"):
        pipe.step(x, x, nn.functional.mse_loss)
    with pytest.raises(reprise.UsageError, match="reduction is 'max'"):
        pipe.step(x.detach(), x.detach(), nn.functional.mse_loss, reduction="max")
    with pytest.raises(reprise.UsageError, match="gradients of chosen tensors"):
        torch.autograd.grad(pipe(x).sum(), [x])
    with pytest.raises(reprise.UsageError, match="create_graph=true"):
        pipe(x).sum().backward(create_graph=True)
    loss = pipe(x).sum()
    loss.backward()
    with pytest.raises(reprise.UsageError, match="a graph that was freed"):
        loss.backward()
    with pytest.raises(reprise.UsageError, match="cannot run inside of checkpoint"):
        reprise.checkpoint(pipe, x, use_reentrant=False)
    with pytest.raises(reprise.UsageError, match="give both a target and a loss"):
        pipe.plan(x, x)


def test_a_pipeline_runs_one_call_at_a_time():
    pipes = []
    pipe = reprise.Pipeline([Returns(lambda x: pipes[0](x))], balance=[1])
    pipes.append(pipe)
    with pytest.raises(reprise.UsageError, match="is running already"):
        pipe(torch.ones(1))
    pipes.clear()
    assert pipe.timeline().workers


def test_a_forked_child_has_no_pipeline():
    pipe = reprise.Pipeline([nn.Identity()], balance=[1])
    child = os.fork()
    if child == 0:
        signal.alarm(30)
        is_refused = False
        try:
            pipe(torch.ones(1))
        except reprise.UsageError as error:
            is_refused = "forked" in str(error)
        del pipe  # waits for no worker
        os._exit(0 if is_refused else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert torch.equal(pipe(torch.ones(1)), torch.ones(1))


def test_pipelines_of_two_threads_run_at_the_same_time():
    def train(results):
        model = blocks(2)
        pipe = reprise.Pipeline(model, balance=[5, 5], chunks=4, checkpoint="always")
        for _ in range(3):
            pipe(torch.ones(8, 8)).sum().backward()
        results.append(model[0].weight.grad)

    results = []
    threads = [threading.Thread(target=train, args=(results,)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 2
