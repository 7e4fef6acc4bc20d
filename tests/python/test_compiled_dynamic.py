"""Sizes that vary: a plan is for the upper end of its range, and every step stays within the budget with the same bits."""

import contextlib
import functools
import re
import warnings

import pytest
import torch
from conftest import long
from test_compiled import WORDS, Language, fresh, is_same  # noqa: F401
from test_compiled_cache import as_in_a_new_process
from torch import nn
from torch.nn import functional as F

import reprise
from reprise import compiled

# Twelve lengths, each third one larger than what was planned before.
LENGTHS = [(4, length) for length in (32, 40, 38, 34, 60, 36, 9, 68, 90, 80, 12, 100)]


def steps(call, model, shapes, prepare=lambda words: None, limits=None):
    """Losses and gradients of steps, and their peaks above what was live before each; none passes `limits` in bytes."""
    found, peaks = [], []
    for seed, shape in enumerate(shapes):
        torch.manual_seed(seed)
        words = torch.randint(0, WORDS, shape)
        prepare(words)
        with reprise.PeakScope() as scope:
            loss = call(words)
            loss.backward()
        assert limits is None or scope.peak_above_start <= limits, (shape, scope.peak_above_start, limits)
        found += [loss.item(), *(each.grad.clone() for each in model.parameters() if each.grad is not None)]
        peaks.append(scope.peak_above_start)
        del loss, words
        model.zero_grad()
    return found, peaks


@contextlib.contextmanager
def no_eager():
    """torch raises where it would run a function without compiling it."""
    with torch._dynamo.config.patch(fail_on_recompile_limit_hit=True):
        yield


def compared(shapes, budget, backend="aot_eager", dynamic=None, limits=None, prepare=lambda words: None, **options):
    """Peaks without a budget and with one, and the budget; the bits are the same."""
    plain, model = (Language(**{"layers": 2, **options}) for _ in range(2))
    expected, defaults = steps(torch.compile(plain, backend=backend, dynamic=dynamic), plain, shapes, prepare)
    torch._dynamo.reset()
    call = reprise.compile(model, memory_budget=budget, backend=backend, dynamic=dynamic)
    with no_eager(), warnings.catch_warnings():
        warnings.simplefilter("error" if not options.get("breaks") else "ignore", UserWarning)
        found, peaks = steps(call, model, shapes, prepare, limits)
    assert is_same(found, expected)
    return defaults, peaks, call.memory_budget


def test_lengths_that_vary_share_few_plans_and_keep_their_share():
    defaults, peaks, budget = compared(LENGTHS, "70%")
    assert len(budget.graphs) <= 4
    ends = [each.sizes for each in budget.report()]
    assert ends[0] == {} and all(list(each) == ["words.size(1)"] for each in ends[1:])  # the first step shows no other size
    assert ends[-1]["words.size(1)"] >= 100
    assert all(peak <= 0.75 * default for peak, default in zip(peaks, defaults) if default > 800_000)


@long
def test_bytes_hold_for_every_size():
    _, peaks, budget = compared(LENGTHS, "+2700KB", limits=2_700_000)
    assert max(peaks) > 1_700_000
    # Small sizes fit as the compiler has them, and larger ones do not.
    assert {bool(report.recompute_seconds) for report in budget.report()} == {False, True}


def test_bytes_of_the_whole_device_leave_room_for_larger_inputs():
    """The batch is live before the step, and larger ones will be."""
    class Deep(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(3)
            self.layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(6))

        def forward(self, x):
            for layer in self.layers:
                x = torch.tanh(layer(x))
            return x.square().mean()

    model = Deep()
    limit = reprise.live_bytes() + 1_000_000
    call = reprise.compile(model, memory_budget=limit, backend="aot_eager", dynamic=True)
    (call(torch.ones(512, 64))).backward()
    (report,) = call.memory_budget.report()
    for rows in (512, report.sizes["x.size(0)"], 100):
        model.zero_grad()
        x = torch.ones(rows, 64)
        with reprise.PeakScope() as scope:
            call(x).backward()
        del x
        assert scope.peak <= limit
    assert report.sizes["x.size(0)"] > 512 and len(call.memory_budget.graphs) == 1


def test_batches_and_lengths_vary_from_the_first_step():
    shapes = [(4, 16), (3, 18), (5, 10), (2, 17)]
    _, _, budget = compared(shapes, "70%", dynamic=True)
    (report,) = budget.report()
    assert report.sizes == {"words.size(0)": 5, "words.size(1)": 18}  # an eighth more than the first, rounded up


def test_what_mark_dynamic_is_given_is_the_range():
    def prepare(words):
        torch._dynamo.mark_dynamic(words, 1, min=8, max=64)

    shapes = [(4, 16), (4, 64), (4, 9), (4, 50)]
    defaults, peaks, budget = compared(shapes, "80%", prepare=prepare)
    (report,) = budget.report()
    assert report.sizes == {"words.size(1)": 64}
    assert report.default_peak == pytest.approx(defaults[1], rel=0.01) and peaks[1] <= 0.8 * defaults[1]
    assert report.predicted_peak == pytest.approx(peaks[1], rel=0.02)


@long
def test_a_range_that_does_not_fit_is_refused_with_its_sizes():
    def prepare(words):
        torch._dynamo.mark_dynamic(words, 1, min=2, max=256)

    model = Language(2)
    call = reprise.compile(model, memory_budget="+600KB", backend="aot_eager")
    with pytest.raises(reprise.BudgetError, match=r"needs at least .* with words\.size\(1\) up to 256"):
        steps(call, model, [(4, 16)], prepare)
    torch._dynamo.reset()
    call = reprise.compile(model, memory_budget="+600KB", backend="aot_eager")
    steps(call, model, [(4, 16), (4, 18)], limits=600_000)


@long
def test_the_range_is_as_small_as_the_budget_wants_it():
    model = Language(2)
    call = reprise.compile(model, memory_budget="+8MB", backend="aot_eager", dynamic=True)
    steps(call, model, [(4, 32)])
    (wide,) = call.memory_budget.report()
    torch._dynamo.reset()
    with pytest.raises(reprise.BudgetError, match="up to 32, words") as refused:
        steps(reprise.compile(model, memory_budget="+1KB", backend="aot_eager", dynamic=True), model, [(4, 32)])
    least = int(re.search(r"[(]([0-9]+) bytes[)]", str(refused.value))[1]) - reprise.live_bytes()
    torch._dynamo.reset()
    call = reprise.compile(model, memory_budget=f"+{int(1.05 * least)}", backend="aot_eager", dynamic=True)
    steps(call, model, [(4, 32)], limits=int(1.05 * least))
    (narrow,) = call.memory_budget.report()
    assert wide.sizes == {"words.size(0)": 5, "words.size(1)": 36} and narrow.sizes == {"words.size(0)": 4, "words.size(1)": 32}


@long
def test_graphs_of_one_step_share_its_bytes_at_every_size():
    shapes = [(4, 32), (4, 33), (4, 34), (4, 36), (4, 60), (4, 62), (4, 20), (4, 66)]
    defaults, peaks, budget = compared(shapes, "+1500KB", breaks=True)
    assert max(defaults) > 1_700_000 and max(peaks[1:]) <= 1_500_000
    assert {each.sizes != {} for each in budget.report()} == {True}


def test_a_loss_outside_shows_nothing_at_small_sizes():
    """What a small step shows says nothing of the upper end, and what a large one shows is for that."""
    def prepare(words):
        torch._dynamo.mark_dynamic(words, 1, min=2, max=64)

    model = Language(2)
    def model_logits(words):
        return model.out(functools.reduce(lambda x, block: block(x), model.blocks, model.words(words)))

    inside = torch.compile(model_logits, backend="aot_eager")
    def loss(logits):
        return lambda words: F.cross_entropy(logits(words).flatten(0, 1), words.flatten())

    expected, defaults = steps(loss(inside), model, [(4, 10), (4, 64), (4, 11), (4, 64)], prepare)
    model.zero_grad(set_to_none=True)
    torch._dynamo.reset()
    with compiled.budget(f"+{int(0.7 * max(defaults))}") as limits:
        call = loss(torch.compile(model_logits, backend="aot_eager"))
        found, peaks = steps(call, model, [(4, 10)], prepare)
        assert limits.measured == {}
        more, later = steps(call, model, [(4, 10), (4, 64), (4, 11), (4, 64)], prepare)
    assert is_same(more, expected) and max(later) <= 0.7 * max(defaults)
    assert limits.measured != {} and limits.graphs[0].planner.joint.sizes.named == {"words.size(1)": 64}


def test_sizes_of_which_some_shrink_are_counted_where_they_are_largest():
    """What is filled up to a fixed length takes more, the shorter the rest is."""
    weight = torch.linspace(-1, 1, 64 * 64).view(64, 64).requires_grad_()

    def call(x):
        filler = torch.full((256 - x.shape[0], 64), 0.5) @ weight
        return (torch.tanh(torch.tanh(filler) @ weight) @ weight).square().mean() + (x @ weight).square().mean()

    with compiled.budget("8GiB") as limits:
        planned = torch.compile(call, backend="aot_eager", dynamic=True)
        planned(torch.ones(200, 64)).backward()
        (report,) = limits.report()
        with reprise.PeakScope() as scope:
            planned(torch.ones(16, 64)).backward()
    assert scope.peak_above_start <= report.predicted_peak


@pytest.mark.parametrize("has_policy", [False, True])
def test_a_checkpoint_inside_keeps_its_meaning(has_policy):
    from test_compiled import keep_products
    from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

    options = {"context_fn": lambda: create_selective_checkpoint_contexts(keep_products)} if has_policy else {}
    model = Language(2, dropout=0.0)

    def call(words):
        x = model.words(words)
        for block in model.blocks:
            x = checkpoint(block, x, use_reentrant=False, **options)
        return F.cross_entropy(model.out(x).flatten(0, 1), words.flatten())

    shapes = [(4, 16), (4, 17), (4, 12)]
    expected, defaults = steps(torch.compile(call, backend="aot_eager", dynamic=True), model, shapes)
    torch._dynamo.reset()
    found, peaks = steps(reprise.compile(call, memory_budget="8GiB", backend="aot_eager", dynamic=True), model, shapes)
    assert is_same(found, expected) and peaks == pytest.approx(defaults, rel=0.01)


def test_sizes_that_forward_computes_are_handed_over():
    def call(x):
        half = x[:, : x.shape[1] // 2 * 2].reshape(x.shape[0], -1, 2).sin()
        return (half.mean(1) * (x.shape[1] / 3)).exp().sum() + half.square().sum() / x.shape[0]

    found = {}
    for budget in (None, "8GiB"):
        torch._dynamo.reset()
        compiled_call = torch.compile(call, backend="aot_eager", dynamic=True) if budget is None else \
            reprise.compile(call, memory_budget=budget, backend="aot_eager", dynamic=True)
        found[budget] = []
        for length in (301, 300, 303, 20):
            x = torch.linspace(-1, 1, 8 * length).view(8, length).requires_grad_()
            compiled_call(x).backward()
            found[budget].append(x.grad)
    assert is_same(found[None], found["8GiB"])


def test_sizes_that_depend_on_data_are_refused_by_name():
    def call(x):
        return x[x > 0].square().sum()

    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        with pytest.raises(reprise.UsageError, match=r"the size 'u0' of '\w+' depends on data.*leave that operator out"):
            reprise.compile(call, memory_budget="1GiB", backend="aot_eager")(torch.ones(4, requires_grad=True))


@long
def test_plans_on_disk_are_of_their_range(tmp_path, monkeypatch):
    monkeypatch.setenv("REPRISE_PLAN_CACHE_DIR", str(tmp_path))

    def trained(shapes):
        model = Language(2)
        call = reprise.compile(model, memory_budget="70%", backend="aot_eager", dynamic=True)
        found, _ = steps(call, model, shapes)
        return found, call.memory_budget.report()

    expected, first = trained([(4, 16), (4, 18)])
    assert len(list(tmp_path.iterdir())) == 1
    with as_in_a_new_process(monkeypatch, plans=False):
        found, second = trained([(4, 16), (4, 18)])
    assert is_same(found, expected) and [each.sizes for each in second] == [each.sizes for each in first]
    assert [each.predicted_peak for each in second] == [each.predicted_peak for each in first]
    with as_in_a_new_process(monkeypatch, plans=False), pytest.raises(reprise.Error, match="planned again"):
        trained([(4, 24)])


def test_a_function_that_torch_will_not_compile_again_is_named():
    model = Language(layers=1)
    call = reprise.compile(model, memory_budget="8GiB", backend="aot_eager", dynamic=False)
    with torch._dynamo.config.patch(recompile_limit=3):
        steps(call, model, [(4, 8), (4, 9)])
        with pytest.warns(UserWarning, match=r"forward has 3 compiled graphs, as many as .*recompile_limit.*dynamic=False"):
            steps(call, model, [(4, 10)])


def test_the_frontier_of_marked_sizes_is_of_their_upper_end():
    model, words = Language(2), torch.zeros(4, 16, dtype=torch.int64)
    fixed = compiled.frontier(model, torch.zeros(4, 64, dtype=torch.int64), backend="aot_eager")
    torch._dynamo.mark_dynamic(words, 1, min=2, max=64)
    torch._dynamo.reset()
    found = compiled.frontier(model, words, backend="aot_eager")
    assert found.points[-1].peak == pytest.approx(fixed.points[-1].peak, rel=0.01)
    assert found.least == pytest.approx(fixed.least, rel=0.05)


@long
def test_inductor_s_steps_stay_within_their_bytes_at_every_size():
    shapes = [(4, 32), (4, 36), (4, 20), (4, 48)]
    defaults, peaks, budget = compared(shapes, "85%", backend="inductor", dynamic=True, layers=1)
    assert len(budget.report()) == 2
    assert all(report.sizes for report in budget.report())
    assert peaks[1] < defaults[1] and peaks[3] <= 0.85 * defaults[3]
