"""Plans on disk: taken by later processes for the same graph alone, and planned again where a file cannot be read."""

import contextlib
import warnings

import pytest
import torch

import reprise
from reprise.compiled import _plan
from test_compiled import is_same, steps
from test_compiled_frontier import Deep, Mixer
from test_compiled_use import Sampling


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    torch._dynamo.reset()
    monkeypatch.setenv("REPRISE_PLAN_CACHE_DIR", str(tmp_path))
    yield tmp_path
    torch._dynamo.reset()


@contextlib.contextmanager
def as_in_a_new_process(monkeypatch, plans):
    """Nothing is known but what is on disk; `plans`: whether the planner may be asked."""
    torch._dynamo.reset()

    def refuse(*_, **__):
        raise reprise.Error("planned again")

    with monkeypatch.context() as patch:
        if not plans:
            patch.setattr(_plan.GraphPlanner, "step", property(refuse))
            patch.setattr(_plan, "Halves", refuse)
        yield


class Small(Mixer):
    def forward(self, x):
        return super().forward(x).square().sum()


def trained(budget="85%", layers=2):
    model = Small(layers)
    call = reprise.compile(model, memory_budget=budget, backend="aot_eager")
    found, _ = steps(call, model, words=torch.ones(256, 32))
    return found, call.memory_budget.report()[0]


def test_a_plan_that_runs_operators_more_than_once_is_taken(folder, monkeypatch):
    model, x = Deep(), torch.ones(1024, 32)
    least = reprise.compiled.frontier(model, x, points=2, backend="aot_eager").least

    def train():
        call = reprise.compile(model, memory_budget=f"+{least + 8192}", backend="aot_eager")
        return steps(call, model, words=x)[0], call.memory_budget.graphs[0].chosen.cut

    expected, cut = train()
    assert max(map(len, cut.runs.values())) > 1
    with as_in_a_new_process(monkeypatch, plans=False):
        found, same = train()
    assert same == cut and is_same(found, expected)


def test_a_second_process_plans_nothing_and_takes_the_same_plan(folder, monkeypatch):
    expected, first = trained(budget="95%")
    (file,) = folder.iterdir()
    with as_in_a_new_process(monkeypatch, plans=False):
        found, second = trained(budget="95%")
    assert is_same(found, expected) and second.handed_over == first.handed_over
    assert (second.predicted_peak, second.default_peak) == (first.predicted_peak, first.default_peak)
    assert second.predicted_seconds == first.predicted_seconds
    with as_in_a_new_process(monkeypatch, plans=False), pytest.raises(reprise.Error, match="planned again"):
        trained(budget=f"+{first.predicted_peak - 1}")
    with as_in_a_new_process(monkeypatch, plans=True):
        _, other = trained(budget=f"+{first.predicted_peak - 1}")
    assert other.predicted_peak < first.predicted_peak and [file] == list(folder.iterdir())


def test_a_plan_is_taken_for_no_other_graph_torch_or_number_of_threads(folder, monkeypatch):
    trained()
    changes = [(torch, "__version__", "2.13.9"), (reprise.compiled._cache, "_sources", lambda: "other"),
               (torch, "get_num_threads", lambda: 7), (torch, "not_there", None)]
    for owner, name, value in changes:
        with as_in_a_new_process(monkeypatch, plans=False), monkeypatch.context() as patch:
            patch.setattr(owner, name, value, raising=False)
            with pytest.raises(reprise.Error, match="planned again"):
                trained(layers=3 if name == "not_there" else 2)


def test_what_cannot_be_read_is_planned_again_and_replaced(folder, monkeypatch):
    expected, first = trained()
    (file,) = folder.iterdir()
    whole = file.read_bytes()
    digest, _, text = whole.partition(b"\n")
    of_another = text.replace(b'"saved": [', b'"saved": [0, ', 1)
    for broken in (b"\xff\xfe garbage", whole[:-20], digest + b"\n" + text.replace(b"1", b"2"),
                   reprise.compiled._cache._sum_of(of_another.decode()).encode() + b"\n" + of_another,
                   reprise.compiled._cache._sum_of("[]").encode() + b"\n[]"):
        file.write_bytes(broken)
        with as_in_a_new_process(monkeypatch, plans=False), pytest.raises(reprise.Error, match="planned again"):
            trained()
    with as_in_a_new_process(monkeypatch, plans=True):
        found, second = trained()
    assert is_same(found, expected) and second.default_peak == first.default_peak
    with as_in_a_new_process(monkeypatch, plans=False):
        trained()


def test_a_folder_that_cannot_be_written_is_named(tmp_path, monkeypatch):
    place = tmp_path / "file"
    place.write_text("")
    monkeypatch.setenv("REPRISE_PLAN_CACHE_DIR", str(place / "plans"))
    with pytest.warns(UserWarning, match="plans cannot be written to .*plans: Not a directory; give another folder by REPRISE_"):
        trained()


def test_no_plans_are_stored_where_none_are_wanted(folder, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setenv("REPRISE_PLAN_CACHE_DIR", "")
        trained(layers=1)
    torch._dynamo.reset()
    with torch.compiler.config.patch(force_disable_caches=True):
        trained(layers=1)
    assert list(folder.iterdir()) == []
    monkeypatch.delenv("REPRISE_PLAN_CACHE_DIR")
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(folder))
    torch._dynamo.reset()
    trained(layers=1)
    assert len(list((folder / "reprise").iterdir())) == 1


def test_a_plan_is_read_where_the_default_makes_values_of_sums_again(folder, monkeypatch):
    for plans in (True, False):
        with as_in_a_new_process(monkeypatch, plans):
            reprise.compile(Sampling(), memory_budget="8GiB")(torch.ones(4, 3, 16, 16)).sum().backward()
    assert len(list(folder.iterdir())) == 1


def test_a_plan_with_other_bits_is_told_of_whether_it_is_new_or_stored(monkeypatch):
    monkeypatch.setattr(_plan, "computes_otherwise", lambda joint: True)
    for plans in (True, False):
        with as_in_a_new_process(monkeypatch, plans), pytest.warns(UserWarning, match="last bits may differ; raise memory_budget"):
            trained()


def test_of_plans_that_fit_one_with_the_same_bits_is_taken(monkeypatch):
    """Though it recomputes more."""
    choose, seen = _plan.GraphPlanner._choose, []

    def choose_with_the_smallest_known(planner, room, others):
        planner._stand_beside(others)
        planner.smallest()
        seen.append(choose(planner, room, others))
        return seen[-1]

    monkeypatch.setattr(_plan.GraphPlanner, "_choose", choose_with_the_smallest_known)
    trained("90%", layers=4)
    monkeypatch.setattr(_plan, "computes_otherwise", lambda joint, calls=iter(range(100)): next(calls) > 0)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="reprise.compile: within these bytes")
        with as_in_a_new_process(monkeypatch, True):
            monkeypatch.setenv("REPRISE_PLAN_CACHE_DIR", "")
            trained("90%", layers=4)
    plain, clean = seen
    assert plain.recompute_seconds < clean.recompute_seconds and not clean.computes_otherwise


class Scores(torch.nn.Module):
    """Gives its caller what it hands over as well, and its caller leaves it."""

    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(*(torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.Tanh()) for _ in range(12)))
        self.head = torch.nn.Linear(32, 64)

    def forward(self, x):
        scores = self.head(self.layers(x))
        return scores.logsumexp(1).sum(), scores


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_a_share_is_of_the_same_bytes_whatever_stood_beside_the_plans_on_disk(folder, backend):
    def train(budget):
        torch._dynamo.reset()
        model, x = Scores(), torch.ones(512, 32)
        call = reprise.compile(model, memory_budget=budget, backend=backend)
        loss = call(x)[0]
        (graph,) = call.memory_budget.report()
        for _ in range(3):
            loss.backward()
            loss = call(x)[0]
        return graph.default_peak, call.memory_budget.report()[0].measured_peak

    alone, _ = train("95%")
    train("80%")
    from_disk, measured = train("95%")
    assert from_disk == alone and measured <= 0.95 * alone
