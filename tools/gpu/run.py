"""The parts of `scripts/gpu run`: build, tests, python, compiled, bench and models, one after the other, each of steps that can
be resumed (steps.py). Results are written after every part, and also when the time has ended or a step has failed."""

import argparse
import importlib.util
import json
import os
import pathlib
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts/support"))
import machine  # noqa: E402
import models  # noqa: E402
import report  # noqa: E402
from steps import OutOfTime, Steps  # noqa: E402
from tally import Counts, tally  # noqa: E402

BUILD = ROOT / "build/release"
STATE = ROOT / "build/gpu"
DEVICE = "cuda:0"
PARTS = ("build", "tests", "python", "compiled", "bench", "models")
# Where the wheel of the package is installed.
SITE = STATE / "site"
# The benchmark runs under both, for fragmentation differs.
ALLOCATORS = {"": {}, " with expandable segments": {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}}


def packed_dependencies():
    """The folder of packed dependencies: this tree's own if it is a pack, else that of build/gpu-pack; None without a pack."""
    for folder in (ROOT / "dependencies", ROOT / "build/gpu-pack/dependencies"):
        if folder.is_dir():
            return folder
    return None


def cmake_options(dependencies):
    """Where CMake finds the packed dependencies: it knows no folder of libraries of another system's name."""
    if dependencies is None:
        return []
    options = [f"-DCMAKE_PREFIX_PATH={dependencies}"]
    for config in sorted([*dependencies.rglob("*Config.cmake"), *dependencies.rglob("*-config.cmake")]):
        options.append(f"-D{config.stem.removesuffix('Config').removesuffix('-config')}_DIR={config.parent}")
    for zlib in dependencies.rglob("libz.so"):
        options += [f"-DZLIB_LIBRARY={zlib}", f"-DZLIB_INCLUDE_DIR={dependencies}/include"]
    return options


def build(steps, options):
    # Compilers other than the tested ones may warn of more.
    configured = steps.run("configure", ["cmake", "--preset", "release", f"-DREPRISE_TORCH_DIR={options.torch}",
                                         "-DREPRISE_WERROR=OFF", *cmake_options(packed_dependencies())], again=True)
    if configured["state"] == "done":
        targets = options.targets.split(",") if options.targets else ["all", "reprise_bench"]
        steps.run("compile", ["ninja", "-C", BUILD, "-j", options.jobs, *targets], again=True)


def of_program(report_file):
    def read(_):
        counts = Counts()
        counts.add_program(report_file.stem, report_file, ended_well=True)
        return {"passed": counts.passed, "failures": counts.failures, "skipped": dict(counts.skipped)}
    return read


def of_ctest(junit, reports):
    def read(_):
        counts = tally(junit, reports)
        return {"passed": counts.passed, "failures": counts.failures, "skipped": dict(counts.skipped)}
    return read


def tests(steps, options):
    reports = STATE / "reports"
    reports.mkdir(parents=True, exist_ok=True)
    # Tests that are skipped where there is no accelerator: programs, and which tests of them.
    for folder, chosen in (("device", "*"), ("region", "*CheckpointAccelerator*")):
        file = reports / f"{folder}.xml"
        if not steps.ended_well(folder):
            file.unlink(missing_ok=True)
        steps.run(folder, [BUILD / f"bin/reprise_test_{folder}", f"--gtest_filter={chosen}", f"--gtest_output=xml:{file}"],
                  read=of_program(file))
    # All the others, for they have not met a build with CUDA.
    junit = reports / "ctest.xml"
    steps.run("all programs", ["ctest", "--test-dir", BUILD, "-L", "program", "-j", options.jobs, "--output-on-failure",
                               "--output-junit", junit], read=of_ctest(junit, BUILD / "test-results"))


def wheels():
    """Of a pack, else of `scripts/wheel`; the newest is the last."""
    found = [*(ROOT / "wheels").glob("*.whl")] or [*(ROOT / "build/dist").glob("*.whl")]
    return sorted(found, key=lambda file: file.stat().st_mtime)


def python_path():
    """The environment in which the package can be imported."""
    before = os.environ.get("PYTHONPATH")
    return {"PYTHONPATH": os.pathsep.join([str(SITE), *([before] if before else [])])}


def install(steps):
    """Whether the package is there: its wheel, without what it requires."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--upgrade", "--target", SITE]
    return steps.run("install", [*command, wheels()[-1]])["state"] == "done"


def python(steps, options):
    if not install(steps):
        return
    reports = STATE / "reports"
    reports.mkdir(parents=True, exist_ok=True)

    def check(step, *arguments, **environment):
        file = reports / f"python-{step}.xml"
        steps.run(step, [sys.executable, "-m", "pytest", "-v", "-p", "no:cacheprovider", f"--junit-xml={file}", *arguments],
                  read=of_program(file), environment={**python_path(), **environment})

    check("device", ROOT / "tests/python/test_device.py")
    check("device compiled", ROOT / "tests/python/test_device_compiled.py", "-rP")  # the log has the peaks
    # All the others are tests of the CPU, and its bytes are the default where no device is seen.
    check("all on the CPU", ROOT / "tests/python", *parallel(options.jobs), CUDA_VISIBLE_DEVICES="")


def compiled(steps, options):
    if not install(steps):
        return
    for network, shape in (("gpt", models.QUICK if options.quick else models.MEDIUM),
                           ("llama", models.QUICK if options.quick else models.FEW_LAYERS)):
        command = [sys.executable, ROOT / "tools/gpu/race.py", "--network", network, "--device", DEVICE, *shape.size(shape.batch)]
        steps.run(network, command, read=figures, environment=python_path())


def parallel(jobs):
    """Options for several processes, where pytest can."""
    return ["-n", str(jobs), "--dist", "loadfile"] if importlib.util.find_spec("xdist") else []


def figures(text):
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


def bench(steps, options):
    program = BUILD / "bin/reprise_bench"
    quick = ["--quick"] if options.quick else []

    def measure(step, name, environment=None):
        # 1: a figure misses its bar, which the figure itself says.
        steps.run(step, [program, name, "--device", DEVICE, "--json", *quick], read=figures, states={1: "done"},
                  environment=environment)

    for name, environment in ALLOCATORS.items():
        measure(f"accelerator{name}", "accelerator", environment)
    for name in benches_with_device(program):
        if name != "accelerator":
            measure(name, name)


def benches_with_device(program):
    listed = subprocess.run([program, "--list", "--device", DEVICE], capture_output=True, text=True, check=False)
    if listed.returncode != 0:
        raise machine.NotHere(listed.stderr.strip().removeprefix("reprise_bench: "))
    return [line.split()[0] for line in listed.stdout.splitlines()]


def run_models(steps, options):
    has_package = bool(wheels()) and install(steps)
    models.run(steps, models.Machine(program=BUILD / "bin/reprise", python=sys.executable, device=DEVICE, data=ROOT / "docs",
                                     environment=python_path() if has_package else None),
               models.QUICK if options.quick else models.MEDIUM)


RUNS = {"build": build, "tests": tests, "python": python, "compiled": compiled, "bench": bench, "models": run_models}


def require(part, options):
    if part != "build":
        machine.require_gpu(part, options.torch)
        if part in ("python", "compiled"):
            if not wheels():
                raise machine.NotHere(f"scripts/gpu run {part} needs a wheel of the package for this python3 and its torch; make one by "
                                      "scripts/wheel, and pack it by scripts/gpu pack --wheel FILE")
        elif not (BUILD / "bin/reprise").exists() and "build" not in options.parts:
            raise machine.NotHere(f"scripts/gpu run {part} needs {BUILD}/bin/reprise; call scripts/gpu run build first")


def parsed():
    parser = argparse.ArgumentParser(prog="scripts/gpu run")
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS) + " or all")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path(os.environ.get("OUT") or STATE / "results"))
    parser.add_argument("--seconds", type=int)
    parser.add_argument("--fresh", action="store_true")
    parser.add_argument("--targets", default="")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    for part in options.parts:
        if part not in (*PARTS, "all"):
            raise machine.NotHere(f"there is no part '{part}'; give {', '.join(PARTS)} or all")
    if not options.parts or "all" in options.parts:
        options.parts = [part for part in PARTS if part not in ("python", "compiled") or wheels()]
    if options.seconds is None:
        options.seconds = 570 if len(options.parts) == 1 else 2640
    options.torch = os.environ["REPRISE_TORCH_DIR"]
    return options


def main():
    options = parsed()
    # Before anything is built: whether the call can end well.
    for part in options.parts:
        require(part, options)
    deadline = time.monotonic() + options.seconds
    ended_well = True
    for part in options.parts:
        steps = Steps(STATE, part, deadline, {"OMP_NUM_THREADS": "1"} if part == "tests" else None, options.fresh)
        try:
            RUNS[part](steps, options)
        except OutOfTime as stopped:
            print(f"-- the time of this call has ended in '{stopped}'; the same command goes on from there", flush=True)
            ended_well = False
        failed = [name for name in steps.done if not steps.ended_well(name)]
        ended_well = ended_well and not failed
        report.write(options.out, STATE, ROOT, options.torch)
        print(f"-- {part}: " + (f"failed or stopped: {', '.join(failed)}" if failed else "no step failed")
              + f"; results are in {options.out}", flush=True)
        if steps.seconds_left() <= 0 or (part == "build" and failed):
            break
    return 0 if ended_well else 1


if __name__ == "__main__":
    os.chdir(ROOT)
    try:
        sys.exit(main())
    except machine.NotHere as error:
        sys.exit(f"error: {error}")
