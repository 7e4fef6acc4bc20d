"""The meter and pins from Python."""

import gc
import weakref

import pytest
import torch

import reprise


def test_live_bytes_follow_tensors():
    before = reprise.live_bytes()
    tensor = torch.ones(1000, 1000)
    assert 4_000_000 <= reprise.live_bytes() - before <= 4_100_000
    del tensor
    assert reprise.live_bytes() - before <= 100_000
    assert reprise.peak_bytes() >= before + 4_000_000
    assert reprise.allocation_count(torch.device("cpu")) > 0


@pytest.mark.skipif(torch.accelerator.is_available(), reason="the default is the accelerator, and this test is of the CPU")
def test_without_an_accelerator_the_default_device_is_the_cpu():
    before = reprise.live_bytes(None)
    tensor = torch.ones(1000, 1000)
    assert reprise.live_bytes("cpu") - before >= tensor.nbytes
    assert reprise._reprise.default_device() == torch.device("cpu")


def test_a_peak_scope_is_frozen_when_its_block_ends():
    with reprise.PeakScope("cpu") as scope:
        torch.ones(1000, 1000)
    assert 4_000_000 <= scope.peak_above_start <= 4_100_000
    peak = scope.peak
    torch.ones(4000, 1000)
    assert scope.peak == peak == scope.live_at_start + scope.peak_above_start


def test_a_peak_scope_without_a_block_measures_until_now():
    scope = reprise.PeakScope()
    torch.ones(1000, 1000)
    first = scope.peak_above_start
    torch.ones(2000, 1000)
    assert first < scope.peak_above_start


def test_a_device_that_is_not_there_is_a_usage_error():
    with pytest.raises(reprise.UsageError, match="cuda"):
        reprise.live_bytes("cuda:99")


def test_a_pin_keeps_bytes_in_place():
    budget = reprise.MemoryBudget("1GiB", paranoid=True, min_bytes=0)
    with budget.step():
        value = torch.full((64, 64), 2.0).sin()
        value.cos()
        pin = reprise.Pin(value)
        address = value.data_ptr()
        value.cos()
        assert value.data_ptr() == address
        pin.release()
        pin.release()
        with reprise.Pin(value):
            assert value.data_ptr() != 0


def test_objects_die_without_a_run_of_the_collector():
    gc.disable()
    try:
        tensor = torch.ones(10, requires_grad=True)
        with reprise.MemoryBudget("1GiB", paranoid=True).step():
            result = (tensor * 2).exp()
            died = weakref.ref(result)
            result.sum().backward()
            del result
        assert died() is None
    finally:
        gc.enable()
