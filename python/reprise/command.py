"""The command `reprise` of the package. `reprise run` is Python's own; the program has the other subcommands."""

from __future__ import annotations

import os
import pathlib
import sys

import torch

from ._version import version

_HELP = """usage: reprise run --budget BYTES [--device DEVICE] [--report FILE.json] [-m] SCRIPT ARGUMENTS...
       reprise SUBCOMMAND ...

`reprise run --help` explains the first."""
_NO_PROGRAM = "this installation has `reprise run` alone, as libraries were missing; call scripts/setup, and install again"


def main() -> None:
    arguments = sys.argv[1:]
    if arguments[:1] == ["run"]:
        from .running.command import main as run

        return run(arguments[1:])
    if arguments == ["--version"]:
        return print(f"reprise {version} with torch {torch.__version__}")
    if not arguments:
        print(_HELP, file=sys.stderr)
        raise SystemExit(2)
    asks_for_help = arguments in (["--help"], ["-h"])
    if asks_for_help:
        print(_HELP, end="\n\n", flush=True)
    program = pathlib.Path(__file__).parent / "bin" / "reprise"
    if program.exists():
        libraries = [str(program.parents[1]), str(pathlib.Path(torch.__file__).parent / "lib"), os.environ.get("LD_LIBRARY_PATH", "")]
        os.environ["LD_LIBRARY_PATH"] = os.pathsep.join(filter(None, libraries))
        os.execv(program, [str(program), *arguments])
    print(_NO_PROGRAM, file=sys.stdout if asks_for_help else sys.stderr)
    raise SystemExit(0 if asks_for_help else 2)
