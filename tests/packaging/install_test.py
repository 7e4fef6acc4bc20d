"""The installed package, used by a project that knows nothing of this folder."""

import os
import re
import shutil
import subprocess
import unittest

from projects import BUILD, SOURCE, TORCH, ProjectTest, run, without_torch_variable


class Examples:
    """What an installed package of either kind must do; `build_folder` is what is installed."""

    build_folder = BUILD

    def setUp(self):
        super().setUp()
        self.prefix = self.folder / "prefix"
        subprocess.run(["cmake", "--install", self.build_folder, "--prefix", self.prefix], check=True,
                       stdout=subprocess.DEVNULL)
        self.example = self.folder / "example"
        shutil.copytree(SOURCE / "examples/minimal", self.example)

    def build_example(self, folder):
        environment = without_torch_variable()
        if shutil.which("ccache") is not None:
            # An example compiles alike against either kind of package, in whatever folder.
            environment |= {"CMAKE_CXX_COMPILER_LAUNCHER": "ccache", "CCACHE_BASEDIR": str(self.folder), "CCACHE_NOHASHDIR": "1"}
        code, text = self.configure(folder, f"-DCMAKE_PREFIX_PATH={self.prefix}", env=environment)
        self.assertEqual(code, 0, text)
        code, text = self.build(env=environment)
        self.assertEqual(code, 0, text)

    def test_the_minimal_example_builds_against_it_and_saves_memory(self):
        self.build_example(self.example)
        code, text = run(self.folder / "build/minimal")
        self.assertEqual(code, 0, text)
        peaks = dict(re.findall(r"(plain|checkpoint) step \d+: loss [\d.e-]+, peak ([\d.]+) MB", text))
        self.assertLess(float(peaks["checkpoint"]), 0.7 * float(peaks["plain"]), text)

    def test_the_budget_example_trains_in_half_the_bytes_to_the_same_bits(self):
        example = self.folder / "budget"
        shutil.copytree(SOURCE / "examples/budget", example)
        self.build_example(example)
        for network, size in (("gan", 64), ("transformer", 64)):
            code, text = run(self.folder / "build/budget", network, size, 3)
            self.assertEqual(code, 0, text)
            self.assertEqual(text.count("same bits"), 3, text)
            self.assertNotIn("the last step dropped 0 values", text)
        code, text = run(self.folder / "build/budget", "perceptron")
        self.assertEqual((code, text.strip()), (2, "budget: the network is 'perceptron'; give gan or transformer"))


class StaticPackage(Examples, ProjectTest):
    build_folder = BUILD.with_name(BUILD.name + "-static")

    @classmethod
    def setUpClass(cls):
        # In a folder that stays, since this compiles the whole library; in the same units as the shared one, whose objects
        # ccache has.
        parts = [f"-DREPRISE_BUILD_{part}=OFF" for part in ("APPS", "BENCHMARKS", "TESTS")]
        batch = re.search(r"^CMAKE_UNITY_BUILD_BATCH_SIZE:.*$", (BUILD / "CMakeCache.txt").read_text(), re.MULTILINE)
        units = [f"-D{batch[0]}"] if batch else []
        for command in (["cmake", "--preset", "release", "-S", SOURCE, "-B", cls.build_folder, "-DBUILD_SHARED_LIBS=OFF",
                         f"-DREPRISE_TORCH_DIR={TORCH}", *units, *parts], ["cmake", "--build", cls.build_folder]):
            code, text = run(*command, env=os.environ | {"CCACHE_BASEDIR": str(SOURCE)}, cwd=SOURCE)
            if code != 0:
                raise AssertionError(text)

    def test_it_has_no_shared_library_of_ours(self):
        names = [path.name for path in self.prefix.rglob("libreprise*")]
        self.assertEqual(names, ["libreprise.a"])


class SharedPackage(Examples, ProjectTest):
    def test_another_minor_version_of_libtorch_is_refused_with_the_remedy(self):
        torch = self.made_up_torch("2.12.1")
        code, text = self.configure(self.example, f"-DCMAKE_PREFIX_PATH={self.prefix}", f"-DREPRISE_TORCH_DIR={torch}")
        self.assertNotEqual(code, 0, text)
        self.assertIn("2.12.1", text)
        self.assertIn(str(torch), text)
        self.assertIn("-DREPRISE_TORCH_DIR=<folder", text)

    def test_another_minor_version_of_reprise_is_not_taken(self):
        lists = self.example / "CMakeLists.txt"
        lists.write_text(lists.read_text().replace("reprise 0.2", "reprise 0.3"))
        code, text = self.configure(self.example, f"-DCMAKE_PREFIX_PATH={self.prefix}")
        self.assertNotEqual(code, 0, text)
        self.assertIn('compatible with requested version "0.3"', text)

    def test_the_installed_command_line_starts_from_anywhere(self):
        code, text = run(self.prefix / "bin/reprise", "--version", cwd="/", env={})
        self.assertEqual(code, 0, text)
        self.assertIn("0.2.0", text)


if __name__ == "__main__":
    unittest.main()
