"""The command `reprise`: its own subcommand `run`, and those of the program beside it."""

import os
import sys

import pytest

from reprise import command


def call(monkeypatch, folder, *arguments):
    """What the command would replace itself with."""
    started = []
    monkeypatch.setattr(command, "__file__", str(folder / "command.py"))
    monkeypatch.setattr(sys, "argv", ["reprise", *arguments])
    monkeypatch.setattr(os, "execv", lambda program, arguments: started.append((program, arguments)) or sys.exit(0))
    monkeypatch.setenv("LD_LIBRARY_PATH", "/mine")
    with pytest.raises(SystemExit) as ended:
        command.main()
    return ended.value.code, started, os.environ["LD_LIBRARY_PATH"].split(os.pathsep)


@pytest.fixture
def installed(tmp_path):
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/reprise").touch()
    return tmp_path


@pytest.mark.parametrize("arguments", [["estimate", "--layers", "2"], ["--help"], ["-h"]])
def test_other_subcommands_and_help_are_the_program_s(monkeypatch, installed, capsys, arguments):
    code, started, libraries = call(monkeypatch, installed, *arguments)
    program = installed / "bin/reprise"
    assert (code, started) == (0, [(program, [str(program), *arguments])])
    assert libraries[0] == str(installed) and libraries[-1] == "/mine"
    assert ("usage: reprise run --budget" in capsys.readouterr().out) == (arguments[0] != "estimate")


def test_without_the_program_the_command_says_how_to_get_it(monkeypatch, tmp_path, capsys):
    assert call(monkeypatch, tmp_path, "estimate")[0] == 2
    assert "as libraries were missing; call scripts/setup, and install again" in capsys.readouterr().err
    assert call(monkeypatch, tmp_path, "--help")[0] == 0
    assert "usage: reprise run" in capsys.readouterr().out


def test_without_arguments_the_command_shows_its_usage(monkeypatch, installed, capsys):
    code, started, _ = call(monkeypatch, installed)
    assert (code, started) == (2, []) and "usage: reprise run" in capsys.readouterr().err
