"""Timings of operators, kept in a file for the next process: a graph then has the same plan each time.

The file is in $XDG_CACHE_HOME/reprise (~/.cache/reprise), one for each processor, accelerator and version of torch. Without
it, or with one that cannot be read or written, operators are timed again.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import pathlib
import platform
import tempfile

import torch

Table = dict[str, list[float]]


def path() -> pathlib.Path:
    folder = os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache"
    return pathlib.Path(folder) / "reprise" / f"compiled-costs-{_machine()}.json"


@functools.cache
def _machine() -> str:
    processor = platform.processor()
    with contextlib.suppress(OSError):
        for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                processor = line
                break
    accelerator = torch.cuda.get_device_name() if torch.cuda.is_available() else ""
    return hashlib.sha256(repr((processor, accelerator, torch.__version__)).encode()).hexdigest()[:16]


def read() -> Table:
    try:
        found = json.loads(path().read_text())
        return {str(key): [float(each) for each in values] for key, values in found.items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}


def write(table: Table) -> None:
    """Beside what other processes have written meanwhile."""
    with contextlib.suppress(OSError):
        path().parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=path().parent, delete=False) as file:
            json.dump(read() | table, file)
        os.replace(file.name, path())
