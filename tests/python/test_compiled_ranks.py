"""Two processes over Gloo that compile within bytes: one plan for both where they compile the same graph, and no hang."""

import json
import pathlib

import pytest

pytest.importorskip("torch.distributed")
from conftest import torchrun  # noqa: E402

SCRIPT = pathlib.Path(__file__).parent / "scripts/compiled_ranks.py"


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    return [json.loads(out) for out, _ in torchrun(tmp_path_factory.mktemp("found"), SCRIPT)]


def test_both_take_the_plan_for_the_smaller_budget(found):
    one, other = (each["same_graph"] for each in found)
    assert one["same"] and other["same"] and one["said"] == other["said"] == []
    assert one["handed_over"] == other["handed_over"] and one["recomputed"] == other["recomputed"]
    assert one["predicted"] <= 0.86 * found[1]["default"] and other["predicted"] <= 0.86 * found[1]["default"]


def test_a_budget_that_is_too_small_for_one_is_refused_by_both(found):
    assert all("needs at least" in each["refused"] for each in found)


@pytest.mark.parametrize("kind", ["tensor_parallel", "fully_sharded"])
def test_sharded_models_are_planned_and_no_collective_runs_for_that(kind, found):
    for each in (rank[kind] for rank in found):
        assert each["same"] and each["saves"] and each["said"] == []
        plain, planned = each["collectives"]
        assert plain == planned > 0


def test_graphs_of_buckets_share_the_bytes(found):
    for each in (rank["data_parallel"] for rank in found):
        assert each["same"] and each["graphs"] > 1 and each["share"] <= 0.85


def test_other_graphs_are_planned_by_each_with_a_warning(found):
    for rank, each in enumerate(found):
        assert each["other_graph"]["same"] and each["other_graph"]["predicted"] <= 0.85 * each["other_graph"]["default"]
        (said,) = each["other_graph"]["said"]
        assert f"rank {rank} plans its compiled graphs for itself" in said
    assert any("compile another graph than this one" in each["other_graph"]["said"][0] for each in found)


def test_a_process_that_compiles_alone_waits_no_longer_than_it_says(found):
    alone = found[1]["alone"]
    assert alone["same"] and "ranks [0] have compiled no such graph for 0.5 s" in alone["said"][0]
