"""What of a machine the results depend on, and the errors where it has no GPU or a torch without CUDA."""

import os
import pathlib
import platform
import re
import shutil
import subprocess

BUILDS = "`scripts/gpu run build` works here"


class NotHere(Exception):
    """The machine lacks what a part needs; the text says what, and the remedy."""


def gpus():
    """(names with memory and driver, why there are none)."""
    if shutil.which("nvidia-smi") is None:
        return [], "there is no nvidia-smi"
    asked = ["nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"]
    done = subprocess.run(asked, capture_output=True, text=True, check=False)
    found = [line.strip() for line in done.stdout.splitlines() if line.strip()]
    if done.returncode != 0 or not found:
        return [], f"nvidia-smi says: {(done.stdout + done.stderr).strip()[:200]}"
    return found, ""


def torch_facts(torch):
    """Version and CUDA version of a wheel's or an unpacked LibTorch's folder, without importing it."""
    torch = pathlib.Path(torch)
    facts = {"folder": str(torch), "version": "unknown", "cuda": None}
    if (torch / "version.py").exists():
        text = (torch / "version.py").read_text()
        version = re.search(r"__version__ = '([^']+)'", text)
        cuda = re.search(r"^cuda\b[^=]*= '([^']+)'", text, re.MULTILINE)
        facts.update(version=version[1] if version else "unknown", cuda=cuda and cuda[1])
    elif (torch / "build-version").exists():
        facts["version"] = (torch / "build-version").read_text().strip()
    facts["has_cuda_library"] = (torch / "lib/libtorch_cuda.so").exists()
    return facts


def require_gpu(part, torch):
    found, why = gpus()
    if not found:
        raise NotHere(f"scripts/gpu run {part} needs a CUDA GPU, and {platform.node()} shows none ({why}); call it on a machine "
                      f"with a GPU. {BUILDS}, for it needs none")
    facts = torch_facts(torch)
    if not facts["has_cuda_library"]:
        raise NotHere(f"scripts/gpu run {part} needs a CUDA build of torch, and torch {facts['version']} in {torch} has no "
                      "lib/libtorch_cuda.so; set REPRISE_TORCH_DIR and REPRISE_PYTHON to one that has")


def memory_used():
    """MiB of the first GPU that are in use, by all programs; None if it is not known."""
    asked = ["nvidia-smi", "--id=0", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    try:
        return float(subprocess.run(asked, capture_output=True, text=True, check=True).stdout.split()[0])
    except (OSError, subprocess.CalledProcessError, ValueError, IndexError):
        return None


def first_line(*command):
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()[0].strip()
    except (OSError, subprocess.CalledProcessError, IndexError):
        return "not found"


def processor():
    try:
        text = pathlib.Path("/proc/cpuinfo").read_text()
        return re.search(r"model name\s*: (.*)", text)[1]
    except (OSError, TypeError):
        return platform.machine()


def facts(torch):
    system = "/etc/os-release"
    named = re.search(r'PRETTY_NAME="([^"]*)"', pathlib.Path(system).read_text()) if os.path.exists(system) else None
    return {"gpus": gpus()[0], "processor": processor(), "cores": len(os.sched_getaffinity(0)),
            "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
            "system": named[1] if named else platform.platform(), "kernel": platform.release(),
            "compiler": first_line(os.environ.get("CXX", "c++"), "--version"), "cmake": first_line("cmake", "--version"),
            "nvcc": first_line("sh", "-c", "nvcc --version | grep release"), "python": platform.python_version(),
            "torch": torch_facts(torch)}
