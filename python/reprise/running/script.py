"""Runs a script or a module as `python` would: its arguments, its `__main__`, its exceptions and exit code."""

from __future__ import annotations

import builtins
import os
import runpy
import sys
import types
from typing import Any

from .._reprise import UsageError


class Program:
    """Found at once, so that a name that is wrong is told before anything runs. Raises UsageError for it."""

    def __init__(self, name: str, is_module: bool) -> None:
        self._main = types.ModuleType("__main__")
        self._main.__dict__["__builtins__"] = builtins
        if is_module:
            self._find_module(name)
        else:
            self._find_script(name)

    def _find_script(self, name: str) -> None:
        if os.path.isdir(name):
            raise UsageError(f"'{name}' is a folder; give a script, or -m and a module")
        try:
            with open(name, "rb") as file:
                self._source: Any = file.read()
        except OSError as error:
            raise UsageError(f"the script '{name}' cannot be read: {error.strerror}") from error
        self._file, self._first_path = name, os.path.dirname(os.path.realpath(name))
        self._main.__file__ = name

    def _find_module(self, name: str) -> None:
        sys.path.insert(0, os.getcwd())
        try:
            # pdb and cProfile find modules by the same function.
            _, spec, code = runpy._get_module_details(name)  # type: ignore[attr-defined]
        except ImportError as error:
            raise UsageError(f"no module '{name}' can be run: {error}") from error
        finally:
            sys.path.pop(0)
        self._source, self._file, self._first_path = code, spec.origin, os.getcwd()
        self._main.__file__, self._main.__spec__, self._main.__package__ = spec.origin, spec, spec.parent
        self._main.__loader__ = spec.loader

    def run(self, arguments: list[str]) -> None:
        """Raises what the program raises, SystemExit included."""
        sys.argv = [self._file, *arguments]
        sys.path[0] = self._first_path
        sys.modules["__main__"] = self._main
        try:
            code = self._source
            if not isinstance(code, types.CodeType):
                code = compile(code, self._file, "exec", dont_inherit=True)
            exec(code, self._main.__dict__)
        except BaseException:
            sys.excepthook = _without_our_frames(sys.excepthook)
            raise


def _without_our_frames(hook: Any) -> Any:
    """A traceback that begins where the script's does."""
    folder = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

    def show(kind: type[BaseException], error: BaseException, trace: types.TracebackType | None) -> Any:
        rest = trace
        while rest is not None and not _is_the_script_s(rest, folder):
            rest = rest.tb_next
        return hook(kind, error.with_traceback(rest), rest)

    return show


def _is_the_script_s(trace: types.TracebackType, folder: str) -> bool:
    return trace.tb_frame.f_globals.get("__name__") == "__main__" and \
        not os.path.abspath(trace.tb_frame.f_code.co_filename).startswith(folder + os.sep) and \
        trace.tb_frame.f_code.co_filename != "<frozen runpy>"
