"""Runs clang-tidy over the sources of a compilation database, several at a time. A source that was clean
is not looked at again until it, one of our headers that it includes, or the list of checks changes: reading
LibTorch's headers takes 5 to 20 seconds a source.

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
CHECKED = ("src", "models", "apps", "benchmarks")
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


def digest(source, command):
    state = hashlib.sha256((ROOT / ".clang-tidy").read_bytes() + command.encode())
    for path in sorted(own_files(source, set())):
        state.update(path.read_bytes())
    return state.hexdigest()


def check(build, source):
    done = subprocess.run(["clang-tidy-16", "-p", build, "--quiet", "--extra-arg=-Wno-unknown-warning-option", source],
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
        source = pathlib.Path(entry["file"]).resolve()
        if not source.is_relative_to(ROOT) or source.relative_to(ROOT).parts[0] not in CHECKED:
            continue
        if options.only is not None and str(source.relative_to(ROOT)) not in options.only:
            continue
        mark = cache / digest(source, entry["command"])
        if not mark.exists():
            work.append((source, mark))

    def run(job):
        source, mark = job
        clean, text = check(options.build, source)
        if clean:
            mark.touch()
        else:
            print(text or f"{source}: clang-tidy failed", flush=True)
        return clean

    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        sys.exit(0 if all(list(pool.map(run, work))) else 1)


if __name__ == "__main__":
    main()
