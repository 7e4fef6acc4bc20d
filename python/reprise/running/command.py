"""The arguments of `reprise run`."""

from __future__ import annotations

import argparse
import contextlib
import json
import pathlib
import sys
from typing import NoReturn

from .._reprise import UsageError, default_device, live_bytes
from .asked import Asked
from .budgets import Refused, RunBudgets, rank, say
from .graphs import plans_what_is_compiled
from .script import Program
from .steps import Steps

_DESCRIPTION = "Runs a training script, which is not changed, within a byte budget. Its gradients are bitwise the same."
_BUDGET = "bytes (8GiB, 400MB), bytes above those live before a step (+2GB), a share of the activations (40%%), or least"


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        _refuse(message)


def parser() -> argparse.ArgumentParser:
    made = _Parser(prog="reprise run", description=_DESCRIPTION, allow_abbrev=False)
    made.add_argument("--budget", required=True, metavar="BYTES", help=_BUDGET)
    made.add_argument("--device", help="the device whose bytes are meant; the machine's accelerator, where it has one, else cpu")
    made.add_argument("--report", metavar="FILE.json", help="write the figures of the run there; with several "
                      "processes, those of rank 0 into FILE.rank0.json")
    made.add_argument("-m", dest="is_module", action="store_true", help="SCRIPT is the name of a module")
    made.add_argument("script", metavar="SCRIPT", help="the script, followed by its own arguments")
    made.add_argument("arguments", nargs=argparse.REMAINDER, help=argparse.SUPPRESS).required = False
    return made


def main(arguments: list[str]) -> None:
    """Returns when the script has come to its end; raises what it raises. Exits with 2 where nothing can be run."""
    given = parser().parse_args(arguments)
    try:
        asked = Asked.parse(given.budget)
        device = given.device or str(default_device())
        program = Program(given.script, given.is_module)
    except UsageError as error:
        _refuse(str(error).splitlines()[0])
    try:
        live_bytes(device)
    except RuntimeError as error:
        _refuse(f"--device is '{device}': {str(error).splitlines()[0]}")
    budgets = RunBudgets(asked, device)
    steps = Steps(budgets)
    steps.start()
    planned = contextlib.ExitStack()
    planned.enter_context(plans_what_is_compiled(budgets))
    is_whole = False
    had_processes = _has_started_processes()
    try:
        program.run(given.arguments)
        is_whole = True
    except SystemExit as error:
        is_whole = not error.code
        # A script that says that all went well has ended like one that says nothing.
        if not is_whole or steps.has_run_backward and budgets.refusal is None:
            raise
    finally:
        planned.close()
        steps.stop(is_whole=is_whole)
        if steps.has_run_backward and budgets.refusal is None:
            say(budgets.line())
        if given.report and (steps.has_run_backward or not is_whole):
            _write(given.report, budgets)
    if budgets.refusal is not None:  # the script has caught what ends it
        raise Refused(2)
    if not steps.has_run_backward:
        text = f"{given.script} ran no backward, so there was nothing to keep within bytes"
        if _has_started_processes() and not had_processes:
            text += "; processes that it started itself are not bound: give each a budget by `torchrun ... -m reprise run`, or by " \
                    "reprise.MemoryBudget in what it runs"
        _refuse(text)


def _has_started_processes() -> bool:
    """A module of multiprocessing is imported when the first one starts."""
    return any(name.startswith("multiprocessing.popen_") for name in sys.modules)


def _write(name: str, budgets: RunBudgets) -> None:
    file = pathlib.Path(name)
    # A device, such as /dev/null, is one for all ranks.
    if rank() is not None and (file.is_file() or not file.exists()):
        file = file.with_name(f"{file.stem}.rank{rank()}{file.suffix}")
    try:
        with open(file, "w", encoding="utf-8") as out:
            json.dump(budgets.report(), out, indent=2)
            out.write("\n")
    except OSError as error:
        say(f"the report '{file}' cannot be written: {error.strerror}")


def _refuse(text: str) -> NoReturn:
    print(f"reprise run: {text}", file=sys.stderr)
    raise SystemExit(2)
