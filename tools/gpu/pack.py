"""Gathers what a machine without a network needs to build and run reprise: called by `scripts/gpu pack`.

The pack is a tree of this repository with a folder `dependencies` in it, so that its own `scripts/gpu run` works there. It
holds no objects, which would depend on this machine's compiler, C library and wheel. The
dependencies are the files of Debian's packages, in the places where their CMake files expect each other.
"""

import argparse
import datetime
import json
import pathlib
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
MOST_BYTES = 60 * 2**20
DEPENDENCIES = "dependencies"
MANIFEST = "pack.json"
WHEELS = "wheels"
# Of a package: headers, libraries, CMake's files, and the licence.
TAKEN = ("/usr/include/", "/usr/lib/", "/usr/share/cmake/")


def fail(text):
    sys.exit(f"error: {text}")


def output_of(*command):
    return subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout


def sources():
    """Tracked and new files, but not ignored ones."""
    names = output_of("git", "ls-files", "-zco", "--exclude-standard").split("\0")
    return [name for name in sorted(set(names)) if name and (ROOT / name).is_file()]


def copy(source, target):
    """Links become files, since not every way to a machine carries links."""
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy2(source, target)


def files_of(package):
    try:
        listed = output_of("dpkg-query", "-L", package).splitlines()
    except (OSError, subprocess.CalledProcessError):
        fail(f"the files of the package {package} are unknown to dpkg-query; call scripts/setup on a Debian or Ubuntu first")
    for name in listed:
        path = pathlib.Path(name)
        if path.is_file() and (name.startswith(TAKEN) or path.name == "copyright"):
            yield path


def place_of(path):
    """Below the folder of dependencies: headers of one architecture stand among the others, for no compiler knows a folder
    of them here."""
    parts = path.relative_to("/usr").parts
    if parts[0] == "include" and parts[1].endswith("-linux-gnu"):
        parts = (parts[0], *parts[2:])
    return pathlib.PurePath(*parts)


def copy_package(package, folder):
    for path in files_of(package):
        # CMake's files and the loader name a shared library by several names.
        names = path.parent.glob(path.name + "*") if path.suffix == ".so" else [path]
        for each in names:
            copy(each, folder / place_of(each))


def bytes_in(folder):
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def manifest(folder, packages):
    versions = output_of("dpkg-query", "-W", "-f", "${Package} ${Version}\n", *packages)
    return {"commit": output_of("git", "rev-parse", "HEAD").strip(),
            "changed": bool(output_of("git", "status", "--porcelain").strip()),
            "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
            "packages": dict(line.split() for line in versions.splitlines()),
            "bytes": bytes_in(folder)}


def gather(folder, packages, wheels, most):
    for name in sources():
        if not (ROOT / name).is_relative_to(folder):
            copy(ROOT / name, folder / name)
    for package in packages:
        copy_package(package, folder / DEPENDENCIES)
    for wheel in wheels:
        copy(wheel, folder / WHEELS / wheel.name)
    facts = manifest(folder, packages)
    if facts["bytes"] > most:
        fail(f"the pack has {facts['bytes']:,} bytes, above the limit of {most:,}; remove large files that git does not ignore")
    (folder / MANIFEST).write_text(json.dumps(facts, indent=1) + "\n")
    return facts


def pack(folder, packages, wheels=(), most=MOST_BYTES):
    """Makes the folder anew, and refuses one that is no pack. An error leaves no folder behind."""
    if folder.exists() and any(folder.iterdir()) and not (folder / MANIFEST).exists():
        fail(f"{folder} has files and is no pack, for it has no {MANIFEST}; name another folder, or empty it")
    shutil.rmtree(folder, ignore_errors=True)
    try:
        return gather(folder, packages, wheels, most)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def main():
    parser = argparse.ArgumentParser(prog="scripts/gpu pack")
    parser.add_argument("folder", nargs="?", default="build/gpu-pack", type=pathlib.Path)
    parser.add_argument("--packages", required=True, type=str.split)
    parser.add_argument("--wheel", dest="wheels", action="append", default=[], type=pathlib.Path)
    options = parser.parse_args()
    for wheel in options.wheels:
        if wheel.suffix != ".whl" or not wheel.is_file():
            fail(f"--wheel is '{wheel}', which is no wheel; give a file that scripts/wheel has made")
    folder = (ROOT / options.folder).resolve()
    facts = pack(folder, options.packages, options.wheels)
    print(f"-- {folder}: {facts['bytes'] / 1e6:.1f} MB; copy it to the machine and call scripts/gpu run there")


if __name__ == "__main__":
    main()
