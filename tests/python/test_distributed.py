"""Two processes over Gloo, each with a budget of its own: losses and parameters are bitwise the plain training's."""

import json
import pathlib
import re

import pytest

from conftest import torchrun

SCRIPTS = pathlib.Path(__file__).parent / "scripts"
TRAINS = SCRIPTS / "data_parallel.py"
EXAMPLE = SCRIPTS.parents[2] / "examples/python/fsdp2.py"


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """What every process found, by rank."""
    return [json.loads(out) for out, _ in torchrun(tmp_path_factory.mktemp("found"), SCRIPTS / "distributed.py", TRAINS, EXAMPLE)]


@pytest.mark.parametrize("way", ["by_ddp", "by_fsdp1", "by_fsdp2"])
def test_each_process_trains_within_its_bytes(found, way):
    for rank in found:
        assert rank[way]["same"] and rank[way]["dropped"] > 0 and rank[way]["peak"] <= rank[way]["limit"], found


def test_the_example_of_fsdp2_trains_to_the_same_losses(found):
    for rank, each in enumerate(found):
        said = each[str(EXAMPLE)]
        assert said.startswith(f"rank {rank}: ") and "same losses" in said and " 0 operators replayed" not in said


def test_torchrun_starts_reprise_run(found, tmp_path):
    report = tmp_path / "report.json"
    done = torchrun(tmp_path / "logs", "-m", "reprise", "run", "--budget", "60%", "--report", report, TRAINS)
    for rank, (out, errors) in enumerate(done):
        assert out == found[rank][str(TRAINS)], errors
        assert re.search(rf"^reprise \[rank {rank}\]: peak .* of .* in 3 steps, dropped ", errors, re.MULTILINE), errors
        figures = json.loads(report.with_name(f"report.rank{rank}.json").read_text())
        assert figures["steps"] == 3 and figures["dropped"] > 0 and figures["peak"] <= figures["limit"] < figures["plain"]["peak"]
    assert not report.exists()
