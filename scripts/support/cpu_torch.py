"""Makes a LibTorch of any version that runs without a GPU, out of the wheel that PyPI has for Linux: called by
scripts/test --torch.

    cpu_torch.py VERSION FOLDER [--processor NAME | --python PYTHON]

FOLDER/torch is then LibTorch's folder (include, lib, share). NAME is aarch64 for a build by a cross compiler, which CXX
then names. The wheel is one for CUDA, and needs gigabytes of NVIDIA's packages. Its CPU half needs only the runtime and CUPTI
of them. The CUDA half and the Python half are left out. libtorch.so would load them, so a library without content takes its
place.

With --python, FOLDER is a virtual environment of the interpreter PYTHON with the whole wheel and the packages that it
requires. Libraries that only define the symbols take the place of NVIDIA's others. A process that calls one ends there
(SIGILL).
"""

import argparse
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import zipfile

# libtorch_cpu.so needs both, and calls them only where there is a GPU.
NVIDIA = {"libcudart.so": "nvidia-cuda-runtime", "libcupti.so": "nvidia-cuda-cupti"}
KEPT = re.compile(r"torch/(include|share)/|torch/lib/(?!libtorch_cuda|libc10_cuda|libtorch_python|libcaffe2_nvrtc|"
                  r"libtorch_nvshmem|libtorch_global_deps|libshm)")


def output_of(*command):
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def run_pip(python, command, *arguments):
    done = subprocess.run([python, "-m", "pip", command, "-q", "--disable-pip-version-check", *arguments],
                          capture_output=True, text=True, check=False)
    if done.returncode != 0:
        reason = done.stderr.strip().splitlines()[-1:] or ["no reason given"]
        raise SystemExit(f"error: pip could not {command} {arguments[-1]} ({reason[0]}); give a version of torch that PyPI has, "
                         "such as 2.15.0")


def download(folder, requirement, processor=None):
    # pip does not know that a wheel for an older C library serves.
    platforms = [f"--platform=manylinux_2_{minor}_{processor}" for minor in range(17, 29)] if processor else []
    run_pip(sys.executable, "download", "--no-deps", "--only-binary=:all:", *platforms, "-d", folder, requirement)


def needed_by(library):
    return re.findall(r"\(NEEDED\).*\[(.*)\]", output_of("readelf", "-d", library))


def unpack_torch(wheel, folder):
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder, filter(KEPT.match, archive.namelist()))


def add_nvidia(library, work, processor=None):
    for name in needed_by(library):
        base, _, major = name.rpartition(".")
        if base not in NVIDIA or (library.parent / name).exists():
            continue
        download(work, f"{NVIDIA[base]}=={major}.*", processor)
        wheel = next(pathlib.Path(work).glob(NVIDIA[base].replace("-", "_") + "-*.whl"))
        with zipfile.ZipFile(wheel) as archive:
            inside = next(each for each in archive.namelist() if each.endswith("/" + name))
            (library.parent / name).write_bytes(archive.read(inside))


def stand_in(folder):
    """A libtorch.so that loads the CPU's half alone."""
    (folder / "libtorch.so").unlink()
    subprocess.run([os.environ.get("CXX", "c++"), "-shared", "-x", "c++", "/dev/null", "-o", folder / "libtorch.so",
                    "-Wl,-soname,libtorch.so", "-Wl,--no-as-needed", f"-L{folder}", "-ltorch_cpu", "-Wl,-rpath,$ORIGIN",
                    "-Wl,--allow-shlib-undefined"], check=True)


def nvidia_stand_ins(folder):
    """Libraries for those of NVIDIA that torch needs and that are not in the folder. They define all symbols, with their
    versions, that torch's libraries ask of them, so that these load."""
    # The one left out is loaded where there is a GPU.
    libraries = [each for each in folder.glob("lib*.so") if each.name != "libcaffe2_nvrtc.so"]
    versions, undefined = {}, set()
    for library in libraries:
        for name in needed_by(library):
            if re.match(r"lib(cu|nv|nccl)", name) and not (folder / name).exists():
                versions.setdefault(name, set())
        for name, lines in re.findall(r"required from (\S+):\n((?:    .*\n)+)", output_of("objdump", "-p", library)):
            versions.get(name, set()).update(line.split()[-1] for line in lines.splitlines())
        undefined.update(re.findall(r"^ *U ([^@\s]+)@?(\S*)$", output_of("nm", "-D", "--undefined-only", library), re.MULTILINE))
    for name, required in versions.items():
        # A library without versions defines all symbols without one.
        nodes = {version: [symbol for symbol, asked in undefined if asked == version and re.match(r"cu|nv|nccl", symbol)]
                 for version in required or {""}}
        with tempfile.TemporaryDirectory() as work:
            script, code = pathlib.Path(work, "versions"), pathlib.Path(work, "code.s")
            script.write_text("".join(f"{version} {{ {'; '.join([*symbols, ''])} }};\n" for version, symbols in nodes.items()))
            code.write_text(".text\n" + "".join(f".globl {symbol}\n.type {symbol}, @function\n{symbol}:\n"
                                                for symbols in nodes.values() for symbol in symbols) +
                            'ud2\n.section .note.GNU-stack, "", @progbits\n')
            subprocess.run([os.environ.get("CC", "cc"), "-shared", "-nostdlib", code, "-o", folder / name,
                            f"-Wl,-soname,{name}", *([f"-Wl,--version-script={script}"] if required else [])], check=True)


def make_environment(folder, version, python):
    subprocess.run([python, "-m", "venv", "--clear", folder], check=True)
    python = folder / "bin/python3"
    run_pip(python, "install", "--no-deps", f"torch=={version}")
    packages = next(folder.glob("lib/python*/site-packages"))
    # pip would install NVIDIA's packages with the next package that requires torch.
    metadata = next(packages.glob("torch-*.dist-info/METADATA"))
    metadata.write_text(re.sub(r"^Requires-Dist: (nvidia|cuda|triton).*\n", "", metadata.read_text(), flags=re.MULTILINE))
    with tempfile.TemporaryDirectory() as work:
        add_nvidia(packages / "torch/lib/libtorch_cpu.so", work)
    nvidia_stand_ins(packages / "torch/lib")
    run_pip(python, "install", "-r", pathlib.Path(__file__).with_name("requirements-python.txt"))


def make_library(folder, version, processor):
    with tempfile.TemporaryDirectory() as work:
        download(work, f"torch=={version}", processor)
        wheel = next(pathlib.Path(work).glob("torch-*.whl"))
        folder.mkdir(parents=True, exist_ok=True)
        unpack_torch(wheel, folder)
        lib = folder / "torch/lib"
        add_nvidia(lib / "libtorch_cpu.so", work, processor)
        if any("cuda" in name for name in needed_by(lib / "libtorch.so")):
            stand_in(lib)


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("version")
    arguments.add_argument("folder", type=pathlib.Path)
    kind = arguments.add_mutually_exclusive_group()
    kind.add_argument("--processor")
    kind.add_argument("--python")
    options = arguments.parse_args()
    if (options.folder / "done").exists():
        return
    if options.python:
        make_environment(options.folder, options.version, options.python)
    else:
        make_library(options.folder, options.version, options.processor)
    (options.folder / "done").touch()


if __name__ == "__main__":
    main()
