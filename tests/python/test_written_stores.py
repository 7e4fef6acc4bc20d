"""Stores and weights that Python writes: the gradients of the plain step, faults at every call, threads, and lifetimes."""

import gc
import sys
import threading
import weakref

import pytest
import torch

import reprise
from test_extensions import train
from test_offload import offloaded


class Copies(reprise.Store):
    """Keeps copies under numbers, and fails where it is told to."""

    exact = True

    def __init__(self):
        super().__init__()
        self.kept, self.calls, self.fails = {}, [], {}

    def called(self, name):
        self.calls.append(name)
        if self.fails.get(name) == self.calls.count(name):
            raise KeyError(f"mine: {name}")

    def put(self, flat):
        assert flat.dim() == 1 and flat.is_contiguous() and not flat.requires_grad and not torch.is_grad_enabled()
        self.called("put")
        key = len(self.calls)
        self.kept[key] = flat.clone()
        return key

    def get(self, kept):
        self.called("get")
        return self.kept[kept]

    def drop(self, kept):
        del self.kept[kept]
        self.called("drop")

    def prefetch(self, kept):
        self.called("prefetch")
        return kept in self.kept

    def takes(self, device):
        self.called("takes")
        return torch.device(device).type == "cpu"

    def flush(self):
        self.called("flush")


def test_gradients_under_a_store_of_python_are_bitwise_those_of_the_plain_step(network):
    store = Copies()
    assert network.is_same(offloaded(network, store)) and not store.kept
    found = store.statistics()
    assert (found.count, found.parked) == (0, 0) and network.activations / 3 < found.read <= found.written
    assert {"put", "get", "drop", "prefetch", "takes"} == set(store.calls)
    with reprise.MemoryBudget(network.limit(1.6)).step():
        assert network.is_same(offloaded(network, store))


class Bytes(reprise.Store):
    """Without the calls that may be left out: keeps bytes of Python."""

    def put(self, flat):
        return flat.dtype, flat.numpy().tobytes()

    def get(self, kept):
        return torch.frombuffer(bytearray(kept[1]), dtype=kept[0])


def test_a_store_needs_no_more_than_put_and_get(network):
    store = Bytes()
    assert not store.exact and store.takes("cpu") and not store.takes("meta") and "Bytes" in repr(store)
    store.flush()
    assert network.is_same(offloaded(network, store))
    with reprise.MemoryBudget(network.limit(0.9)).step():
        assert network.is_same(offloaded(network, store))
    tensor = torch.randn(64, 32).t()
    parked = store.park(tensor)
    again = parked.load()
    assert torch.equal(again, tensor) and again.stride() == tensor.stride() and not parked.prefetch()
    torch.testing.assert_close(store.park(torch.empty(0, 3)).load(), torch.empty(0, 3))
    assert offloaded(network, Bytes())[0] == network.loss


@pytest.mark.parametrize("name", ["put", "get", "prefetch", "takes"])
@pytest.mark.parametrize("at", [1, 7])
def test_what_a_call_raises_comes_out_as_it_is_leaks_nothing_and_the_next_step_works(network, name, at):
    store = Copies()
    offloaded(network, store)
    gc.collect()
    live, calls = reprise.live_bytes(), store.calls.count(name)
    store.fails = {name: calls + at}
    with pytest.raises(KeyError, match=f"mine: {name}") as caught:
        offloaded(network, store)
    assert type(caught.value) is KeyError
    del caught
    gc.collect()
    assert not store.kept and store.statistics().count == 0 and reprise.live_bytes() <= live
    store.fails.clear()
    assert network.is_same(offloaded(network, store)) and not store.kept


def test_what_drop_raises_is_told_and_changes_nothing(network, monkeypatch):
    store, told = Copies(), []
    monkeypatch.setattr(sys, "unraisablehook", lambda info: told.append(str(info.exc_value)))
    store.fails = {"drop": 3}
    assert network.is_same(offloaded(network, store)) and told == ["'mine: drop'"] and not store.kept


class Wrong(Copies):
    result = None

    def get(self, kept):
        return self.result if not callable(self.result) else self.result(self.kept[kept])


@pytest.mark.parametrize("result, error, text", [
    (3, reprise.UsageError, r"Wrong: get\(\) returned an object of type int; it must return a tensor"),
    (lambda flat: flat[1:], reprise.StoreError, "Wrong was given"), (lambda flat: flat.double(), reprise.StoreError, "Wrong was given")])
def test_what_get_returns_is_checked(result, error, text):
    store = Wrong()
    store.result = result
    parked = store.park(torch.randn(100))
    with pytest.raises(error, match=text):
        parked.load()
    with reprise.offload(store, min_bytes=0):
        loss = torch.tanh(torch.randn(100, requires_grad=True)).sum()
    with pytest.raises(error, match=text):
        loss.backward()


def test_a_class_that_is_not_whole_is_refused():
    class Half(reprise.Store):
        def put(self, flat):
            return flat

    with pytest.raises(reprise.UsageError, match=r"the class Half has no get\(\); a store of your own derives from reprise.Store"):
        Half().park(torch.ones(3))
    with pytest.raises(reprise.UsageError, match=r"the class Store has no put\(\)"), reprise.offload(reprise.Store()):
        pass
    with pytest.raises(reprise.UsageError, match=r"the store is written in Python, .* use reprise.offload\(\)"):
        reprise.MemoryBudget("1GiB", store=Copies())


def test_a_store_lives_as_long_as_a_value_in_it_and_dies_without_the_collector():
    gc.disable()
    try:
        store = Copies()
        gone = weakref.ref(store)
        with reprise.offload(store):
            x = torch.randn(256, 256, requires_grad=True)
            loss = torch.tanh(x).sin().sum()
        parked = store.park(torch.ones(3))
        del store
        loss.backward()
        del loss
        assert gone() is not None and torch.equal(parked.load(), torch.ones(3))
        del parked
        assert gone() is None
    finally:
        gc.enable()


def test_threads_share_a_store_and_what_is_parked_in_it(network):
    store, found = Copies(), []
    x = torch.randn(256, 256, requires_grad=True)
    with reprise.offload(store, hold=0):
        shared = torch.tanh(x)
        losses, node = [(shared * shared * i).sum() for i in range(4)], shared.grad_fn
    del shared
    store.calls.clear()
    expected = [torch.autograd.grad((torch.tanh(x).square() * i).sum(), x)[0] for i in range(4)]
    ended = threading.Event()

    def look():
        # Unpacks under the interpreter's lock what backward reads without it.
        while not ended.is_set():
            node._saved_result

    def backward(i):
        for _ in range(100):
            found.append(torch.equal(torch.autograd.grad(losses[i], x, retain_graph=True)[0], expected[i]))

    looks = threading.Thread(target=look, daemon=True)
    threads = [threading.Thread(target=backward, args=(i,), daemon=True) for i in range(4)]
    looks.start()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    ended.set()
    looks.join(60)
    assert found == [True] * 400 and not looks.is_alive() and store.calls.count("get") > 10
    del losses, node
    assert not store.kept


def test_weights_see_gradients_and_are_asked_about_every_call_of_a_step_again(network):
    seen, asked, steps = {}, [], []

    def gradient(name, kind, number, value, gradient):
        assert value.shape == gradient.shape and not torch.is_grad_enabled()
        seen[number, kind] = gradient.norm().item()

    def weight(name, kind, number):
        asked.append((number, kind))
        return 1e-6 + seen.get((number, kind), 0)

    budget = reprise.MemoryBudget(network.limit(0.6), plan_repeated_steps=False, heuristic="largest",
                                  weights=reprise.value_weights(weight, gradient=gradient))
    for _ in range(3):
        train(network, budget)
        steps.append(len(asked))
    assert steps[0] == 0 < steps[1] and steps[2] == 2 * steps[1] and seen and set(seen) <= set(asked)


def test_what_a_function_of_gradients_raises_leaves_backward_as_it_is_and_the_next_step_works(network):
    fails = [True]

    def gradient(*call):
        if fails.pop() if fails else False:
            raise KeyError("mine")

    budget = reprise.MemoryBudget("4GiB", weights=reprise.value_weights({}, gradient=gradient))
    with pytest.raises(KeyError, match="mine"):
        train(network, budget)
    gc.collect()
    live = reprise.live_bytes()
    train(network, budget)
    assert reprise.live_bytes() <= live
    with pytest.raises(reprise.UsageError, match="gradient is 3; give a function"):
        reprise.value_weights({}, gradient=3)


@pytest.mark.parametrize("name", ["put", "get"])
def test_a_fault_inside_a_budget_s_step_ends_the_step_and_the_next_one_works(network, name):
    store = Copies()
    budget = reprise.MemoryBudget(network.limit(0.9))
    with budget.step():
        assert network.is_same(offloaded(network, store))
    gc.collect()
    live = reprise.live_bytes()
    store.fails = {name: store.calls.count(name) + 5}
    with pytest.raises(KeyError, match=f"mine: {name}"), budget.step():
        offloaded(network, store)
    gc.collect()
    assert not store.kept and reprise.live_bytes() <= live
    with budget.step():
        assert network.is_same(offloaded(network, store))
    assert budget.report().peak <= budget.limit
