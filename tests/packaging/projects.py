"""What the packaging tests share: running CMake on a project in a folder of its own, and made-up LibTorch
folders, so that versions and layouts that are not installed here can be met."""

import os
import pathlib
import re
import subprocess
import tempfile
import unittest

SOURCE = pathlib.Path(__file__).resolve().parents[2]
TORCH = pathlib.Path(os.environ["REPRISE_TORCH_DIR"])
BUILD = pathlib.Path(os.environ["REPRISE_BUILD_DIR"])


def run(*command, env=None, cwd=None):
    """The exit code and everything printed, line breaks and indentation of CMake's messages undone."""
    done = subprocess.run([str(part) for part in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          text=True, env=env, cwd=cwd, check=False)
    return done.returncode, re.sub(r"\s+", " ", done.stdout)


def without_torch_variable(**more):
    """This process's environment, but naming no LibTorch."""
    return {k: v for k, v in os.environ.items() if k != "REPRISE_TORCH_DIR"} | more


class ProjectTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="reprise-packaging-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def configure(self, source, *options, env=None):
        return run("cmake", "-G", "Ninja", "-S", source, "-B", self.folder / "build", *options,
                   env=env or without_torch_variable())

    def build(self, env=None):
        return run("cmake", "--build", self.folder / "build", env=env)

    def made_up_torch(self, version):
        """A folder with a version header, and empty files for what else is looked for."""
        torch = self.folder / "torch"
        files = ["include/torch/csrc/api/include/torch/torch.h", "include/ATen/core/Tensor.h", "lib/libc10.so",
                 "lib/libtorch_cpu.so", "lib/libtorch.so"]
        for name in files:
            (torch / name).parent.mkdir(parents=True, exist_ok=True)
            (torch / name).touch()
        header = torch / "include/torch/headeronly/version.h"
        header.parent.mkdir(parents=True)
        numbers = zip(("MAJOR", "MINOR", "PATCH"), version.split("."))
        header.write_text("".join(f"#define TORCH_VERSION_{name} {n}\n" for name, n in numbers))
        return torch

    def relinked_torch(self, name="torch"):
        """The real LibTorch under another name, with a lib folder to which files can be added."""
        torch = self.folder / name
        (torch / "lib").mkdir(parents=True)
        for library in (TORCH / "lib").iterdir():
            (torch / "lib" / library.name).symlink_to(library)
        (torch / "include").symlink_to(TORCH / "include")
        (torch / "share").symlink_to(TORCH / "share")
        return torch
