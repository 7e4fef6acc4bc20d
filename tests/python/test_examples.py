"""The examples train, and type checkers know the package."""

import os
import pathlib
import runpy
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
EXAMPLES = sorted((ROOT / "examples/python").glob("*.py"))


# fsdp2.py takes several processes: test_distributed.py runs it.
@pytest.mark.parametrize("example", [path for path in EXAMPLES if path.name != "fsdp2.py"], ids=lambda path: path.name)
def test_an_example_trains_to_the_same_losses(example, capsys):
    runpy.run_path(str(example), run_name="__main__")
    said = capsys.readouterr().out
    assert "same losses" in said and " 0 operators replayed" not in said


def test_the_examples_and_the_package_are_typed(tmp_path):
    done = subprocess.run([sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent", "--cache-dir", tmp_path,
                           "--config-file", ROOT / "pyproject.toml", *EXAMPLES, ROOT / "python/reprise"],
                          env=os.environ | {"MYPYPATH": str(ROOT / "python")}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
