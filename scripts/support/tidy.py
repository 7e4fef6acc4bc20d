"""Runs clang-tidy over the units of a compilation database, several at a time. A unit (one source, or those
that CMake's unity build joins) that was clean is not looked at again until it, one of our headers that it
includes, the list of checks or the tool's version changes: reading LibTorch's headers takes 5 to 20 seconds a unit.

    tidy.py BUILD_FOLDER [--jobs N] [--only FILE...]
"""

import argparse
import concurrent.futures
import hashlib
import json
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
CHECKED = ("src", "models", "apps", "benchmarks", "python")
# Bindings of pybind11 are made by objects without a name, and the check for these takes a third of the time on them.
NOT_IN_PYTHON = "-bugprone-unused-raii"
INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]', re.MULTILINE)


def own_files(source, seen):
    """The source and, transitively, the headers of this repository that it includes."""
    if source in seen:
        return seen
    seen.add(source)
    for name in INCLUDE.findall(source.read_text()):
        for folder in (ROOT / "include", ROOT / "src", ROOT, source.parent):
            if (folder / name).is_file():
                own_files((folder / name).resolve(), seen)
                break
    return seen


def sources_of(unit):
    """The sources that a unit consists of, relative to the repository, those alone that are checked."""
    parts = [unit] if unit.suffix == ".cpp" else [pathlib.Path(name) for name in INCLUDE.findall(unit.read_text())]
    names = [part.resolve().relative_to(ROOT) for part in parts if part.resolve().is_relative_to(ROOT)]
    return {str(name) for name in names if name.parts[0] in CHECKED}


def digest(unit, command):
    state = hashlib.sha256(command.encode())
    for path in (ROOT / ".clang-tidy", ROOT / "scripts/support/requirements-tools.txt"):
        state.update(path.read_bytes())
    for path in sorted(own_files(unit, set())):
        state.update(path.read_bytes())
    return state.hexdigest()


def check(build, unit, checks):
    # The standard library calls deprecated functions of its own, which would be reported as errors of the source.
    done = subprocess.run([ROOT / "build/tools/bin/clang-tidy", "-p", build, "--quiet", "--extra-arg=-Wno-unknown-warning-option",
                           "--extra-arg=-Wno-deprecated-declarations", f"--checks={checks}", unit],
                          stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=False)
    return done.returncode == 0, done.stdout


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("build", type=pathlib.Path)
    arguments.add_argument("--jobs", type=int, default=1)
    arguments.add_argument("--only", nargs="*")
    options = arguments.parse_args()
    cache = options.build / "clean"
    cache.mkdir(exist_ok=True)

    work = []
    for entry in json.loads((options.build / "compile_commands.json").read_text()):
        unit = pathlib.Path(entry["file"]).resolve()
        sources = sources_of(unit)
        if not sources or options.only is not None and sources.isdisjoint(options.only):
            continue
        checks = NOT_IN_PYTHON if any(name.startswith("python/") for name in sources) else ""
        mark = cache / digest(unit, entry["command"] + checks)
        if not mark.exists():
            work.append((unit, mark, checks))

    def run(job):
        unit, mark, checks = job
        clean, text = check(options.build, unit, checks)
        if clean:
            mark.touch()
        else:
            print(text or f"{unit}: clang-tidy failed", flush=True)
        return clean

    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        sys.exit(0 if all(list(pool.map(run, work))) else 1)


if __name__ == "__main__":
    main()
