"""Access to a tensor's bytes past operators, inside a step that drops everything that it can."""

import contextlib
import copy
import gc
import io
import json
import pickle

import numpy
import pytest
import torch

import reprise


@pytest.fixture
def step():
    with reprise.MemoryBudget("4GiB", paranoid=True, min_bytes=0).step():
        yield


def dropped():
    """A tensor whose bytes are gone, and its values."""
    source = torch.arange(600.0).reshape(20, 30)
    value = source * 2 + 1
    value.sum()
    torch.ones(100).sin()
    return value, numpy.arange(600.0, dtype=numpy.float32).reshape(20, 30) * 2 + 1


def use_memory():
    for _ in range(5):
        torch.ones(600).exp().sum()


def test_arrays_keep_the_bytes_in_place_while_they_or_their_views_live(step):
    value, expected = dropped()
    for made in (value.numpy(), numpy.asarray(value), value.detach().numpy()[::1], numpy.from_dlpack(value),
                 torch.from_dlpack(torch.utils.dlpack.to_dlpack(dropped()[0])).numpy()):
        use_memory()
        assert numpy.array_equal(made, expected)
    rows = value.numpy()[3:5]
    gc.collect()
    use_memory()
    assert numpy.array_equal(rows, expected[3:5])


@pytest.mark.parametrize("copied", [
    lambda value: torch.from_dlpack(value.__dlpack__(copy=True)),
    lambda value: torch.from_dlpack(value.__dlpack__(max_version=(1, 0), copy=True)),
    lambda value: numpy.from_dlpack(value, copy=True), lambda value: torch.from_dlpack(value, copy=True)])
def test_copies_by_dlpack_have_the_values_and_are_nobody_else_s(step, copied):
    value, expected = dropped()
    found = copied(value)
    use_memory()
    assert numpy.array_equal(numpy.asarray(found), expected)
    found[0] = 7
    use_memory()
    assert torch.equal(value, torch.from_numpy(expected))


@pytest.mark.parametrize("requires_grad", [False, True])
@pytest.mark.parametrize("name", [each for each in ("_to_dlpack", "_to_dlpack_versioned") if hasattr(torch._C, each)])
def test_capsules_by_torch_s_own_functions_hold_the_bytes(step, name, requires_grad):
    value, expected = dropped()
    found = torch.from_dlpack(getattr(torch._C, name)(value.requires_grad_(requires_grad)))
    use_memory()
    assert numpy.array_equal(found.numpy(), expected)


def test_writes_through_an_array_are_not_lost(step):
    value, expected = dropped()
    value.numpy()[:] = 7
    use_memory()
    assert torch.equal(value, torch.full((20, 30), 7.0))
    assert torch.equal(value + 1, torch.full((20, 30), 8.0))


def test_writes_by_functions_of_python_are_not_lost(step):
    value, expected = dropped()
    value.apply_(lambda each: each + 1)
    other, _ = dropped()
    mapped, _ = dropped()
    mapped.map_(other=other, callable=lambda one, two: one + two)
    third, _ = dropped()
    third.map2_(other, mapped, lambda one, two, three: one + two + three)
    use_memory()
    for found, factor, more in ((value, 1, 1), (mapped, 2, 0), (third, 4, 0)):
        assert torch.equal(found, torch.from_numpy(factor * expected + more))
        assert torch.equal(found * 2, torch.from_numpy(2 * (factor * expected + more)))


def test_a_storage_is_read_without_an_alias_for_each_element(step):
    value, expected = dropped()
    log = reprise.EventLog()
    with reprise.MemoryBudget("4GiB", observer=log).step():
        assert bytes(value.untyped_storage()) == expected.tobytes()
        assert value.untyped_storage().tolist() == list(expected.tobytes())
    assert [each.name for each in log.take() if each.kind == "operator"] == []


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64])
def test_tensors_are_made_of_elements(step, dtype):
    value = (torch.arange(600.0).reshape(20, 30) * 2 + 1).to(dtype)
    expected = value[0, :3].tolist()
    for make in (torch.tensor, torch.as_tensor, value.new_tensor):
        use_memory()
        assert make(list(value[0, :3])).tolist() == expected
    use_memory()
    with pytest.raises((RuntimeError, ValueError), match="ambiguous" if dtype == torch.bool else "only one element") as raised:
        bool(value) if dtype == torch.bool else float(value)
    assert raised.value.__context__ is None


def test_lists_texts_and_pointers_have_the_values(step):
    import ctypes
    value, expected = dropped()
    assert value.tolist() == expected.tolist()
    value, expected = dropped()
    assert str(value) == str(torch.from_numpy(expected)) and f"{value[0, 1]:.1f}" == "3.0"
    value, expected = dropped()
    pointer = value.data_ptr()
    use_memory()
    assert numpy.array_equal(numpy.ctypeslib.as_array((ctypes.c_float * 600).from_address(pointer)), expected.reshape(-1))


def test_storages_copies_and_files_have_the_values(step):
    value, expected = dropped()
    storage = value.untyped_storage()
    use_memory()
    assert bytes(storage.tolist()) == expected.tobytes()
    for copied in (lambda t: pickle.loads(pickle.dumps(t)), copy.deepcopy, saved_and_loaded):
        value, expected = dropped()
        assert torch.equal(copied(value), torch.from_numpy(expected))


def saved_and_loaded(tensor):
    file = io.BytesIO()
    torch.save(tensor, file)
    file.seek(0)
    return torch.load(file)


def test_shared_memory_has_the_values(step):
    value, expected = dropped()
    value.share_memory_()
    use_memory()
    assert value.is_shared() and torch.equal(value, torch.from_numpy(expected))


def test_errors_of_torch_are_as_ever(step):
    with pytest.raises(RuntimeError, match="requires grad"):
        torch.ones(3, requires_grad=True).mul(2).numpy()
    with pytest.raises((RuntimeError, BufferError), match="require"):
        torch.ones(3, requires_grad=True).mul(2).__dlpack__()


def test_bytes_are_dropped_again_when_an_array_is_gone():
    budget = reprise.MemoryBudget(reprise.live_bytes() + 3_000_000)
    with budget.step():
        for _ in range(10):
            (torch.ones(1000, 100) * 2).numpy().sum()
    assert budget.report().peak <= budget.limit


@pytest.mark.parametrize("look", [
    lambda tensor: tensor.untyped_storage(), lambda tensor: tensor.numpy(), lambda tensor: torch.utils.dlpack.to_dlpack(tensor),
    lambda tensor: tensor.__dlpack__(), lambda tensor: tensor.__dlpack__(copy=True), lambda tensor: tensor.data_ptr(),
    saved_and_loaded, copy.deepcopy, pickle.dumps,
    lambda tensor: tensor.share_memory_(), lambda tensor: torch.multiprocessing.reductions.StorageWeakRef(tensor.untyped_storage())])
def test_nothing_outlives_those_who_look_at_it(look):
    budget = reprise.MemoryBudget("4GiB")
    look(torch.ones(3))  # imports
    live = reprise.live_bytes()
    for _ in range(2):
        with budget.step():
            seen = look(torch.ones(1000, 1000) * 2)
            del seen
    gc.collect()
    assert reprise.live_bytes() - live < 1_000_000


def test_a_storage_whose_object_is_kept_is_held(step):
    value, expected = dropped()
    storage = value.untyped_storage()
    del value
    use_memory()
    assert bytes(storage.tolist()) == expected.tobytes()


@pytest.mark.parametrize("share", [lambda x: x.numpy(), lambda x: torch.from_dlpack(x), lambda x: numpy.from_dlpack(x)])
def test_what_is_computed_while_somebody_may_write_is_as_it_was_computed(share):
    def results():
        a = torch.linspace(-1, 1, 64).sin()
        before = a.exp()
        shared = share(a)
        meanwhile = a.exp()
        try:
            shared[:8] = 5
        except ValueError:  # NumPy has it for reading alone
            a[:8] = 5
        changed = a.exp() * 2
        del shared
        return [each.clone() for each in (a, before * 2, meanwhile * 2, changed, a.exp() * 3)]

    expected = results()
    budget = reprise.MemoryBudget("4GiB", paranoid=True, min_bytes=0)
    with budget.step():
        found = results()
    assert all(torch.equal(a, b) for a, b in zip(found, expected)) and budget.report().replayed > 0


@pytest.mark.parametrize("share", [lambda x: x.numpy(), lambda x: torch.from_dlpack(x), lambda x: numpy.from_dlpack(x)])
@pytest.mark.parametrize("is_made_in_a_step", [False, True])
def test_steps_know_of_arrays_that_were_made_before_them(share, is_made_in_a_step):
    """An environment that fills one array with its observations, say."""
    observed, weight = torch.zeros(16, 16), torch.eye(16).requires_grad_()

    def gradient():
        total = 0
        for at in range(4):
            try:
                shared[...] = at + 1
            except ValueError:  # NumPy has it for reading alone
                observed.fill_(at + 1)
            total = total + (observed.clone() @ weight).tanh().square().sum()
        return torch.autograd.grad(total, weight)[0]

    budget = reprise.MemoryBudget("4GiB", paranoid=True, min_bytes=0)
    with budget.step() if is_made_in_a_step else contextlib.nullcontext():
        shared = share(observed)
    expected = gradient()
    with budget.step():
        found = gradient()
    assert torch.equal(found, expected) and budget.report().replayed > 0
    with_array = budget.report().dropped
    shared = numpy.empty(1)
    with budget.step():
        gradient()
    assert budget.report().dropped > with_array


def test_a_profiler_inside_a_step_says_nothing_and_sees_all(network, capfd):
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities):
        torch.ones(1).sin()
    capfd.readouterr()  # a torch for GPUs says once that there is none
    budget = reprise.MemoryBudget(network.limit(0.6))
    for _ in range(2):
        with budget.step():
            with torch.profiler.profile(activities=activities, record_shapes=True, profile_memory=True) as inside:
                found = network.gradients()
        assert network.is_same(found)
    with torch.profiler.profile(activities=activities, record_shapes=True, profile_memory=True) as around:
        with budget.step():
            found = network.gradients()
    assert network.is_same(found)
    with reprise.MemoryBudget("4GiB", paranoid=True, min_bytes=0).step():  # gradients are dropped, too
        with torch.profiler.profile(activities=activities, record_shapes=True, profile_memory=True):
            assert network.is_same(network.gradients())
    for profile in (inside, around):
        counts = {event.key: event.count for event in profile.key_averages()}
        assert counts["aten::linear"] >= 12 and counts["aten::gelu_backward"] >= 12
    # The profiler itself says when it starts and stops.
    assert [line for line in capfd.readouterr().err.splitlines() if not line.startswith("USDT:")] == []


def test_an_execution_trace_reads_arguments_and_results(network, tmp_path, capfd):
    observer = torch.profiler.ExecutionTraceObserver()
    observer.register_callback(str(tmp_path / "trace.json"))
    begin_step = reprise.MemoryBudget("4GiB", paranoid=True, min_bytes=0).step
    with begin_step():
        observer.start()
        inside = network.gradients()
        observer.stop()
    observer.start()
    with begin_step():
        around = network.gradients()
    observer.stop()
    observer.unregister_callback()
    assert network.is_same(inside) and network.is_same(around)
    assert [line for line in capfd.readouterr().err.splitlines() if "Execution Trace Observer" not in line] == []
    nodes = json.loads((tmp_path / "trace.json").read_text())["nodes"]
    assert sum(node["name"] == "aten::linear" for node in nodes) >= 24
