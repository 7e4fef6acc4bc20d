"""What `scripts/gpu pack` gathers, that CMake finds nothing else's dependencies, and what `scripts/gpu` says where something
is missing."""

import json
import os
import shutil
import sys
import unittest

from projects import SOURCE, TORCH, ProjectTest, run

sys.path[:0] = [str(SOURCE / "tools/gpu"), str(SOURCE / "scripts/support")]
import pack  # noqa: E402
from run import cmake_options  # noqa: E402

GPU = SOURCE / "scripts/gpu"


class Pack(ProjectTest):
    @classmethod
    def setUpClass(cls):
        if shutil.which("dpkg-query") is None:
            raise unittest.SkipTest("this system has no dpkg-query, whose packages the pack is made of")

    def packed(self):
        folder = self.folder / "pack"
        code, text = run(GPU, "pack", folder)
        self.assertEqual(code, 0, text)
        return folder

    def test_a_pack_has_sources_headers_libraries_and_licences_in_few_bytes_and_without_links(self):
        folder = self.packed()
        for name in ("scripts/gpu", "CMakeLists.txt", "src/tape/tape.h", "tests/device/budget_test.cpp", "LICENSE"):
            self.assertTrue((folder / name).is_file(), name)
        include = folder / "dependencies/include"
        for name in ("fmt/format.h", "nlohmann/json.hpp", "xxhash.h", "CLI/CLI.hpp", "gtest/gtest.h", "gmock/gmock.h",
                     "rapidcheck.h", "zlib.h", "zconf.h"):
            self.assertTrue((include / name).is_file(), name)
        facts = json.loads((folder / "pack.json").read_text())
        for package in facts["packages"]:
            self.assertTrue((folder / "dependencies/share/doc" / package / "copyright").is_file(), package)
        self.assertEqual(len(facts["packages"]), 8)
        self.assertLess(facts["bytes"], 60 * 2**20)
        self.assertFalse([path for path in folder.rglob("*") if path.is_symlink()])
        self.assertFalse((folder / "build").exists())

    def test_cmake_configures_with_the_packed_dependencies_alone(self):
        folder = self.packed()
        # Without the folders of the system, where the same libraries are; so the tools are named.
        alone = ["-DCMAKE_FIND_USE_CMAKE_SYSTEM_PATH=OFF", "-DCMAKE_FIND_USE_SYSTEM_ENVIRONMENT_PATH=OFF",
                 f"-DCMAKE_MAKE_PROGRAM={shutil.which('ninja')}", f"-DCMAKE_CXX_COMPILER={shutil.which('c++')}"]
        code, text = self.configure(folder, *alone, f"-DREPRISE_TORCH_DIR={TORCH}",
                                    *cmake_options(folder / "dependencies"))
        self.assertEqual(code, 0, text)
        cache = (self.folder / "build/CMakeCache.txt").read_text()
        for name in ("GTest_DIR", "fmt_DIR", "rapidcheck_DIR", "CLI11_DIR", "nlohmann_json_DIR", "ZLIB_LIBRARY",
                     "REPRISE_XXHASH_INCLUDE", "REPRISE_JSON_INCLUDE"):
            self.assertRegex(cache, rf"(?m)^{name}:\w+={folder}/dependencies")

    def test_a_pack_is_made_anew_and_other_folders_are_left_alone(self):
        folder = self.packed()
        (folder / "left.txt").touch()
        self.packed()
        self.assertFalse((folder / "left.txt").exists())
        other = self.folder / "other"
        other.mkdir()
        (other / "mine.txt").touch()
        code, text = run(GPU, "pack", other)
        self.assertEqual(code, 1)
        self.assertEqual(text.strip(), f"error: {other} has files and is no pack, for it has no pack.json; name another folder, "
                                       "or empty it")
        self.assertTrue((other / "mine.txt").exists())

    def test_a_pack_above_the_limit_is_refused_with_its_bytes(self):
        with self.assertRaisesRegex(SystemExit, r"the pack has [\d,]+ bytes, above the limit of 1,000; remove large files"):
            pack.pack(self.folder / "pack", ["zlib1g-dev"], most=1000)

    def test_a_wheel_goes_along_and_what_is_none_is_refused(self):
        wheel = self.folder / "reprise_torch-1-py3-none-any.whl"
        wheel.write_bytes(b"a wheel")
        pack.pack(self.folder / "pack", ["zlib1g-dev"], [wheel])
        self.assertEqual((self.folder / "pack/wheels" / wheel.name).read_bytes(), b"a wheel")
        for given in (self.folder / "missing.whl", GPU):
            code, text = run(GPU, "pack", self.folder / "other", "--wheel", given)
            self.assertEqual((code, text.strip()),
                             (1, f"error: --wheel is '{given}', which is no wheel; give a file that scripts/wheel has made"))

    def test_a_package_that_is_not_installed_is_named(self):
        with self.assertRaisesRegex(SystemExit, "the files of the package no-such-package are unknown to dpkg-query; call "
                                                "scripts/setup"):
            pack.pack(self.folder / "pack", ["no-such-package"])
        self.assertFalse((self.folder / "pack").exists())


class Run(ProjectTest):
    """With a nvidia-smi of the test's own first on the path."""

    def error(self, *arguments, nvidia_smi=None):
        folder = self.folder / "bin"
        folder.mkdir(exist_ok=True)
        tool = folder / "nvidia-smi"
        tool.write_text("#!/bin/sh\n" + (nvidia_smi or "echo 'No devices were found' >&2; exit 9") + "\n")
        tool.chmod(0o755)
        environment = os.environ | {"PATH": f"{folder}:{os.environ['PATH']}", "REPRISE_TORCH_DIR": str(TORCH)}
        code, text = run(GPU, "run", *arguments, "--out", self.folder / "out", env=environment)
        self.assertEqual(code, 1, text)
        self.assertFalse((self.folder / "out").exists())
        return text

    def test_without_a_gpu_a_part_says_so_and_that_the_build_needs_none(self):
        for part in ("tests", "python", "bench", "models"):
            text = self.error(part)
            self.assertIn(f"error: scripts/gpu run {part} needs a CUDA GPU, and ", text)
            self.assertIn("shows none (nvidia-smi says: No devices were found)", text)
            self.assertIn("`scripts/gpu run build` works here", text)
        self.assertIn("scripts/gpu run tests needs a CUDA GPU", self.error("all"))
        self.assertIn("scripts/gpu run tests needs a CUDA GPU", self.error())

    def test_a_torch_without_cuda_is_named_where_there_is_a_gpu(self):
        if (TORCH / "lib/libtorch_cuda.so").exists():
            self.skipTest("this torch has CUDA")
        text = self.error("tests", nvidia_smi="echo 'NVIDIA H100, 81559 MiB, 580.1'")
        self.assertIn("error: scripts/gpu run tests needs a CUDA build of torch, and torch ", text)
        self.assertIn(f"in {TORCH} has no lib/libtorch_cuda.so; set REPRISE_TORCH_DIR", text)

    def test_an_unknown_part_is_named_beside_the_known_ones(self):
        self.assertIn("error: there is no part 'test'; give build, tests, python, compiled, bench, models or all", self.error("test"))

    def test_a_call_without_a_command_or_with_an_unknown_one_shows_the_commands(self):
        for arguments, said in (((), "error: give pack or run"), (("unpack",), "error: there is no command 'unpack', but pack")):
            code, text = run(GPU, *arguments)
            self.assertEqual(code, 1)
            self.assertIn(said, text)


if __name__ == "__main__":
    unittest.main()
