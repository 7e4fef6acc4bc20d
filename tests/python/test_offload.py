"""Stores and offload scopes: what autograd saves is parked, and gradients are bitwise the plain step's."""

import contextlib
import gc
import threading
import weakref

import pytest
import torch

import reprise


def offloaded(network, store, **options):
    torch.manual_seed(1)
    with reprise.offload(store, **options):
        loss = network.model(network.x).square().sum()
    return loss.item(), torch.autograd.grad(loss, list(network.model.parameters()))


STORES = {"memory": lambda folder: reprise.memory_store(), "disk": reprise.disk_store,
          "compressed": lambda folder: reprise.compressed_store()}


@pytest.mark.parametrize("name", STORES)
def test_gradients_under_an_exact_store_are_bitwise_those_of_the_plain_step(network, name, tmp_path):
    store = STORES[name](tmp_path)
    assert store.exact and store.takes("cpu") and network.is_same(offloaded(network, store))
    found = store.statistics()
    assert (found.count, found.parked) == (0, 0) and (name == "memory" or found.written > 0)
    assert "<caption>StoreStatistics</caption>" in found._repr_html_() and name in repr(store)


def test_scopes_nest_with_regions_budgets_and_the_hooks_of_torch(network, tmp_path):
    store, seen = reprise.disk_store(tmp_path), []
    hooks = lambda: torch.autograd.graph.saved_tensors_hooks(lambda tensor: seen.append(tensor) or tensor, lambda it: it)  # noqa: E731
    with reprise.offload(store), hooks():
        assert network.is_same(network.gradients()) and len(seen) > 12
    seen.clear()
    with hooks():
        assert network.is_same(offloaded(network, store)) and not seen
    with reprise.MemoryBudget(network.limit(0.95)).step():
        assert network.is_same(offloaded(network, store))
    torch.manual_seed(1)
    with reprise.offload(store):
        result = network.x
        for layer in network.model:
            result = reprise.checkpoint(layer, result, use_reentrant=False)
        loss = result.square().sum()
    assert network.is_same((loss.item(), torch.autograd.grad(loss, list(network.model.parameters()))))


def test_a_disk_store_frees_the_memory_of_what_is_parked(network, tmp_path):
    store = reprise.disk_store(tmp_path, in_flight=0)
    with reprise.offload(store, min_bytes="1KiB"):
        before = reprise.live_bytes()
        loss = network.model(network.x).square().sum()
    assert reprise.live_bytes() - before < network.activations // 4
    assert store.statistics().parked > network.activations // 2
    del loss
    assert store.statistics().parked == 0


def test_a_lossy_store_takes_fewer_bytes_and_keeps_gradients_near(network):
    store = reprise.compressed_store("int8", seed=3)
    _, found = offloaded(network, store)
    errors = [((a - b).norm() / b.norm()).item() for a, b in zip(found, network.expected)]
    assert not store.exact and 0 < max(errors) < 0.1
    totals = store.totals()["int8"]
    assert totals.count > 0 and totals.after < totals.before / 3 and store.compressed == 0


def test_a_value_is_parked_alone_and_loaded_with_its_form(tmp_path):
    store = reprise.disk_store(str(tmp_path), byte_cap="1MiB")
    tensor = torch.randn(64, 32).t()
    parked = store.park(tensor)
    again = parked.load()
    assert torch.equal(again, tensor) and again.stride() == tensor.stride() and parked.bytes == 64 * 32 * 4
    store.flush()
    assert store.statistics().count == 1 and isinstance(parked.prefetch(), bool)
    del parked
    assert store.statistics().count == 0
    tensor.add_(1)
    with pytest.raises(reprise.UsageError, match="changed in place|in place"):
        changed = store.park(tensor)
        tensor.add_(1)
        changed.load()
    with pytest.raises(reprise.StoreError, match="1.0 MB|1 MiB|byte_cap"):
        store.park(torch.zeros(1 << 19))


def test_a_compression_is_chosen_for_one_value():
    store = reprise.compressed_store("int8")
    mask, normal = (torch.rand(1 << 14) > 0.5).float(), torch.randn(1 << 14)
    parked, became = store.park_as(mask, "int8")
    assert (became.form, became.spread) == ("mask", 0.0) and torch.equal(parked.load(), mask)
    parked, became = store.park_as(normal, "bf16")
    assert became.form == "bf16" and torch.equal(parked.load(), normal.bfloat16().float())
    stream = store.next_stream
    first = store.park_as(normal, "int8")[0].load()
    assert store.next_stream > stream
    store.next_stream = stream
    assert torch.equal(store.park(normal).load(), first)
    with pytest.raises(reprise.UsageError, match="int4|compression"):
        store.park_as(normal, "int4")
    with pytest.raises(reprise.UsageError, match="'int2'; it is 'exact', 'bf16', 'int8' or 'int4'"):
        reprise.compressed_store("int2")


def test_a_budget_parks_values_in_its_store(network, tmp_path):
    budget = reprise.MemoryBudget(network.limit(0.5), store=reprise.disk_store(tmp_path))
    for _ in range(3):
        with budget.step():
            assert network.is_same(network.gradients())
        report = budget.report()
        assert report.peak <= budget.limit and report.loaded <= report.parked
        assert (report.parked > 0) == (report.parked_bytes > 0)


@pytest.mark.parametrize("options, text", [
    ({"store": 3}, "give a store, such as disk_store"), ({"weights": {"aten::mm": 2.0}}, "weights are those of value_weights"),
    ({"observer": print}, "an observer is an EventLog")])
def test_extensions_of_other_types_are_refused(options, text):
    with pytest.raises(reprise.UsageError, match=text):
        reprise.MemoryBudget("1GiB", **options)


def test_stores_that_free_nothing_are_refused_by_a_budget():
    for store in reprise.memory_store(), reprise.compressed_store(), reprise.compressed_store("int4"):
        with pytest.raises(reprise.UsageError, match="store"):
            reprise.MemoryBudget("1GiB", store=store)
    assert reprise.MemoryBudget("1GiB", store=None, weights=None, observer=None).limit == 1 << 30


@pytest.mark.parametrize("make, error, text", [
    (lambda: reprise.disk_store("/there/is/none"), reprise.StoreError, "/there/is/none"),
    (lambda: reprise.disk_store("/tmp", block=5000), reprise.UsageError, "4 KiB|4096|block"),
    (lambda: reprise.disk_store("/tmp", in_flight="much"), reprise.UsageError, "much"),
    (lambda: reprise.host_store(), reprise.UsageError, "accelerator"),
    (lambda: reprise.compressed_store(block=33), reprise.UsageError, "33"),
    (lambda: reprise.offload(reprise.memory_store(), min_bytes=-1).__enter__(), reprise.UsageError, "min_bytes|below")])
def test_options_out_of_range_are_refused(make, error, text):
    with pytest.raises(error, match=text):
        make()


def test_a_scope_is_entered_once_at_a_time_and_ends_on_its_thread(network):
    scope = reprise.offload(reprise.memory_store())
    with scope:
        with pytest.raises(reprise.UsageError, match="open already"):
            scope.__enter__()
        errors = []

        def leave():
            try:
                scope.__exit__(None, None, None)
            except reprise.UsageError as error:
                errors.append(str(error))

        thread = threading.Thread(target=leave)
        thread.start()
        thread.join()
        assert errors == ["offload(): a scope ends on the thread that entered it"]
    with scope:
        assert network.is_same(network.gradients())


def test_names_form_a_path_for_a_block():
    with reprise.named("blocks.3"):
        with pytest.raises(KeyError), reprise.named("attention"):
            assert reprise.current_path() == "blocks.3.attention"
            raise KeyError
        assert reprise.current_path() == "blocks.3"
    assert reprise.current_path() == ""
    with pytest.raises(reprise.UsageError, match="name is empty"):
        reprise.named("").__enter__()


def test_an_error_of_a_region_has_the_name_in_force():
    def differs(x):
        runs.append(1)
        return x.sin().cos() if len(runs) == 1 else x.sin()

    for name, notes in ("blocks.3", ["The region is named 'blocks.3'."]), (None, []):
        runs = []
        with reprise.named(name) if name else contextlib.nullcontext():
            result = reprise.checkpoint(differs, torch.randn(4, requires_grad=True), use_reentrant=False)
        with pytest.raises(reprise.checkpoint.CheckpointError, match="different number of tensors") as caught:
            result.sum().backward()
        assert getattr(caught.value, "__notes__", []) == notes


def test_errors_of_a_store_leave_the_operator_that_saves_with_their_class(tmp_path):
    x = torch.randn(256, 256, requires_grad=True)
    with reprise.offload(reprise.disk_store(tmp_path, byte_cap="4KiB")), pytest.raises(reprise.StoreError, match="byte_cap"):
        torch.tanh(x).sin()


def test_a_graph_with_parked_values_dies_without_the_collector(tmp_path):
    gc.disable()
    try:
        model = torch.nn.Linear(256, 256)
        gone = weakref.ref(model)
        with reprise.offload(reprise.disk_store(tmp_path)):
            loss = torch.tanh(model(torch.randn(256, 256))).sum()
        loss.backward()
        del model, loss
        assert gone() is None
    finally:
        gc.enable()
