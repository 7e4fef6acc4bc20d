"""The examples train, and type checkers know the package."""

import os
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
EXAMPLES = sorted((ROOT / "examples/python").glob("*.py"))


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_an_example_trains_to_the_same_losses(example):
    done = subprocess.run([sys.executable, example], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "same losses" in done.stdout and " 0 operators replayed" not in done.stdout


def test_the_examples_and_the_package_are_typed(tmp_path):
    done = subprocess.run([sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent", "--cache-dir", tmp_path,
                           *EXAMPLES, ROOT / "python/reprise"], env=os.environ | {"MYPYPATH": str(ROOT / "python")},
                          capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
