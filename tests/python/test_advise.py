"""reprise.advise(): what makes a step fit on a device, by estimates of the module that is then trained."""

import pytest
import torch

import reprise
from test_estimate import Model, loss_of, peak_of


def advised(device_bytes, model=None, x=None, **options):
    model, x = model or Model(), torch.randn(256, 64) if x is None else x
    return reprise.advise(model, x, loss=loss_of, device_bytes=device_bytes, moves=200, **options)


@pytest.fixture(scope="module")
def ample():
    return advised("80GB")


def test_what_fits_is_left_as_it_is(ample):
    assert (ample.remedy, ample.way) == ("off", None) and ample.plain_peak == reprise.estimate(
        Model(), torch.randn(256, 64), loss=loss_of).peak
    assert str(ample).startswith("Leave checkpointing off: the plain step peaks at ") and "80.0 GB" in str(ample)


def test_regions_are_taken_where_a_budget_is_too_slow_and_their_peak_is_the_measured_one(ample, monkeypatch):
    monkeypatch.setattr("reprise._advise.SLOWEST", 1.0001)
    regions = ample.ways[0]
    found = advised(regions.peak)
    assert found.remedy == "regions" and found.ways == (regions,) and found.way.peak < ample.plain_peak
    assert abs(regions.peak / peak_of(Model(region=reprise.checkpoint), torch.randn(256, 64)) - 1) < 0.01
    assert "each block in reprise.checkpoint()" in found.words[0] and 1 < regions.slowdown < 1.5


def test_a_budget_is_taken_where_it_costs_less_than_regions(ample):
    limit = (ample.ways[0].peak + 2 * ample.plain_peak) // 3
    found = advised(limit)
    assert found.remedy == "budget" and found.way.peak == limit and [way.name for way in found.ways] == ["regions", "budget"]
    assert found.way.slowdown < found.ways[0].slowdown and f"reprise.MemoryBudget({limit})" in found.words[0]
    assert found.words[-1].startswith("Or regions")


def test_without_blocks_there_are_no_regions_and_a_choice_of_blocks_is_followed(ample):
    model = Model()
    assert advised("80GB", model, blocks=[]).ways == ()
    one = advised("80GB", model, blocks=[model.blocks[0]]).ways[0]
    assert ample.ways[0].peak < one.peak < ample.plain_peak
    assert all("forward" not in block.__dict__ for block in model.blocks)


def test_fewer_samples_or_more_shards_are_found_where_no_way_fits(ample):
    limit = ample.state + (ample.ways[0].peak - ample.state) // 2
    found = advised(limit)
    peak = {batch: advised("80GB", x=torch.randn(batch, 64)).ways[0].peak
            for batch in (found.largest_batch, found.largest_batch + 1)}
    assert found.remedy == "smaller batch" and peak[found.largest_batch] <= limit < peak[found.largest_batch + 1]
    assert f"With a batch of {found.largest_batch} in place of 256 it fits, with each block in a region." in found.words
    # A smaller state leaves more room.
    divided = advised(limit, optimizer="adamw", x=torch.randn(8, 64))
    assert divided.remedy == "shards" and divided.largest_batch is None and divided.state > limit
    for shards, fits in (divided.least_shards, True), (divided.least_shards // 2, False):
        assert (advised("80GB", optimizer="adamw", x=torch.randn(8, 64), shards=shards).ways[0].peak <= limit) is fits
    assert divided.words[0].startswith("Divide the state: ")


def test_both_together_are_tried_last():
    with torch.device("meta"):
        model, x = Model(width=64, blocks=3), torch.empty(1 << 20, 64)
    found = advised("20MB", model, x, optimizer="adamw", shards=1 << 19)
    assert found.remedy == "smaller batch" and found.together is None
    found = advised(400_000, model, x, optimizer="adamw")
    batch, shards = found.together
    assert found.remedy == "smaller batch and shards" and (found.largest_batch, found.least_shards) == (None, None)
    fits = advised(400_000, model, torch.empty(batch, 64, device="meta"), optimizer="adamw", shards=shards)
    assert min(fits.plain_peak, *(way.peak for way in fits.ways)) <= 400_000
    nothing = advised(1000, model, x)
    assert nothing.remedy == "none" and nothing.way is None and nothing.words[-1].startswith("Nothing fits, with up to 1048576")


def test_the_words_say_what_was_not_tried():
    target = torch.randn(255, 10)
    ample = reprise.advise(Model(), torch.randn(255, 64), device_bytes="80GB")
    found = reprise.advise(Model(), torch.randn(255, 64), device_bytes=ample.state + 400_000,
                           loss=lambda result: (result - target).square().sum())
    assert found.largest_batch is None and found.remedy == "shards"
    assert any(word.startswith("Smaller batches were not tried, because the step fails with them: ") for word in found.words)


def test_advice_is_shown_with_its_figures(ample):
    assert "<caption>Advice: off</caption>" in ample._repr_html_() and "<td>regions</td>" in ample._repr_html_()
    assert repr(ample).startswith("Advice(remedy='off', way=None, words=(")


class Fails(torch.nn.Linear):
    def forward(self, x):
        raise KeyError("mine")


@pytest.mark.parametrize("device_bytes, model, error, text", [
    ("much", None, reprise.UsageError, '"much" is not a number of bytes'), (0, None, reprise.UsageError, "device_bytes is 0"),
    (-1, None, reprise.UsageError, "device_bytes is -1; give the bytes"), (1.5, None, reprise.UsageError, "device_bytes is 1.5"),
    ("60%", None, reprise.UsageError, "device_bytes is '60%'; give the bytes that a device has"),
    ("1GB", torch.nn.Sequential(Fails(8, 8), Fails(8, 8)), KeyError, "mine")])
def test_what_cannot_be_advised_on_is_refused_and_the_module_stays(device_bytes, model, error, text):
    with pytest.raises(error, match=text):
        advised(device_bytes, model)
    assert model is None or all("forward" not in each.__dict__ for each in model)
