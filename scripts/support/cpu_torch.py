"""Makes a LibTorch of any version that runs without a GPU, out of the wheel that PyPI has for Linux: called by
scripts/test --torch.

    cpu_torch.py VERSION FOLDER [--processor NAME]

FOLDER/torch is then LibTorch's folder (include, lib, share). NAME is aarch64 for a build by a cross compiler, which CXX
then names. The wheel is one for CUDA, and needs gigabytes of NVIDIA's packages. Its CPU half needs only the runtime and CUPTI
of them. The CUDA half and the Python half are left out. libtorch.so would load them, so a library without content takes its
place.
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


def download(folder, requirement, processor):
    # pip does not know that a wheel for an older C library serves.
    platforms = [f"--platform=manylinux_2_{minor}_{processor}" for minor in range(17, 29)] if processor else []
    done = subprocess.run([sys.executable, "-m", "pip", "download", "-q", "--disable-pip-version-check", "--no-deps",
                           "--only-binary=:all:", *platforms, "-d", folder, requirement],
                          capture_output=True, text=True, check=False)
    if done.returncode != 0:
        reason = done.stderr.strip().splitlines()[-1:] or ["no reason given"]
        raise SystemExit(f"error: pip has no wheel of {requirement} ({reason[0]}); give a version that PyPI has, "
                         "such as 2.15.0")


def needed_by(library):
    text = subprocess.run(["readelf", "-d", library], capture_output=True, text=True, check=True).stdout
    return re.findall(r"\(NEEDED\).*\[(.*)\]", text)


def unpack_torch(wheel, folder):
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder, filter(KEPT.match, archive.namelist()))


def add_nvidia(library, work, processor):
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


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("version")
    arguments.add_argument("folder", type=pathlib.Path)
    arguments.add_argument("--processor")
    options = arguments.parse_args()
    if (options.folder / "done").exists():
        return
    with tempfile.TemporaryDirectory() as work:
        download(work, f"torch=={options.version}", options.processor)
        wheel = next(pathlib.Path(work).glob("torch-*.whl"))
        options.folder.mkdir(parents=True, exist_ok=True)
        unpack_torch(wheel, options.folder)
        lib = options.folder / "torch/lib"
        add_nvidia(lib / "libtorch_cpu.so", work, options.processor)
        if any("cuda" in name for name in needed_by(lib / "libtorch.so")):
            stand_in(lib)
    (options.folder / "done").touch()


if __name__ == "__main__":
    main()
