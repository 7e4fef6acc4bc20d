"""Where LibTorch may come from, and what is said when it is missing or of another version."""

import os
import subprocess
import unittest

from projects import SOURCE, TORCH, ProjectTest, run, without_torch_variable

REMEDY = "Pass -DREPRISE_TORCH_DIR=<folder>"
CONSUMER = SOURCE / "tests/packaging/consumer"


class RefusedTorch(ProjectTest):
    def error(self, *options, env=None):
        code, text = self.configure(SOURCE, *options, env=env)
        self.assertNotEqual(code, 0, text)
        self.assertEqual(text.count("CMake Error"), 1, text)
        self.assertIn(REMEDY, text)
        return text

    def test_an_older_version_is_named_with_its_folder_and_the_supported_ones(self):
        torch = self.made_up_torch("2.10.1")
        text = self.error(f"-DREPRISE_TORCH_DIR={torch}")
        self.assertIn(f"LibTorch 2.10.1 in {torch} (from REPRISE_TORCH_DIR) is not supported", text)
        self.assertIn("reprise needs 2.11 to 2.15.", text)

    def test_a_folder_that_does_not_exist_is_named(self):
        text = self.error(f"-DREPRISE_TORCH_DIR={self.folder}/nowhere")
        self.assertIn(f"No LibTorch: {self.folder}/nowhere (from REPRISE_TORCH_DIR) is not a folder.", text)

    def test_a_folder_without_torch_is_named(self):
        text = self.error(f"-DREPRISE_TORCH_DIR={self.folder}")
        self.assertIn("has no include/torch/headeronly/version.h", text)

    def test_a_damaged_installation_names_the_missing_file(self):
        torch = self.made_up_torch("2.13.0")
        (torch / "lib/libtorch_cpu.so").unlink()
        text = self.error(f"-DREPRISE_TORCH_DIR={torch}")
        self.assertIn("is incomplete: it has no lib/libtorch_cpu.so.", text)

    def test_the_environment_is_named_where_it_gave_the_folder(self):
        text = self.error(env=without_torch_variable(REPRISE_TORCH_DIR=f"{self.folder}/nowhere"))
        self.assertIn("(from the environment's REPRISE_TORCH_DIR)", text)

    def test_a_python_without_torch_is_named(self):
        python = self.folder / "bin/python3"
        python.parent.mkdir()
        python.write_text("#!/bin/sh\necho\n")
        python.chmod(0o755)
        text = self.error(env=without_torch_variable(PATH=f"{python.parent}:{os.environ['PATH']}"))
        self.assertIn("REPRISE_TORCH_DIR is not set, and the python3 on the path has no torch.", text)


class AcceptedTorch(ProjectTest):
    def consumer(self, *options, env=None):
        code, text = self.configure(CONSUMER, f"-DREPRISE_SOURCE_DIR={SOURCE}", *options, env=env)
        self.assertEqual(code, 0, text)
        code, built = self.build()
        self.assertEqual(code, 0, built)
        return text

    def needed_libraries(self):
        _, text = run("readelf", "-d", self.folder / "build/consumer")
        return text

    def assert_runs(self):
        code, text = run(self.folder / "build/consumer")
        self.assertEqual(code, 0, text)
        self.assertIn(" on cpu", text)

    def test_a_newer_version_is_configured_with_a_warning(self):
        torch = self.made_up_torch("2.16.0")
        code, text = self.configure(SOURCE, f"-DREPRISE_TORCH_DIR={torch}")
        self.assertEqual(code, 0, text)
        self.assertIn("CMake Warning", text)
        told = " ".join(text.split())
        self.assertIn(f"LibTorch 2.16.0 in {torch} (from REPRISE_TORCH_DIR) is newer than those that reprise is tested "
                      "with, 2.11 to 2.15. Run its tests before you rely on it.", told)

    def test_the_python3_on_the_path_gives_its_wheel(self):
        python = self.folder / "bin/python3"
        python.parent.mkdir()
        python.write_text(f"#!/bin/sh\necho {TORCH}\n")
        python.chmod(0o755)
        text = self.consumer(env=without_torch_variable(PATH=f"{python.parent}:{os.environ['PATH']}"))
        self.assertIn(f"in {TORCH}", text)
        self.assert_runs()

    def test_an_unpacked_libtorch_serves(self):
        torch = self.relinked_torch("libtorch")
        (torch / "build-version").write_text("2.13.0+cpu\n")
        self.consumer(f"-DREPRISE_TORCH_DIR={torch}")
        self.assert_runs()

    def test_a_cuda_wheel_serves_without_a_toolkit_and_its_libraries_stay_linked(self):
        torch = self.relinked_torch()
        # Like the real ones, they need a function of a library that the linker cannot find.
        for name in ("cudart", "c10_cuda", "torch_cuda"):
            cuda = name != "cudart"
            text = f"int cudart_call(); int {name}() {{ return cudart_call(); }}" if cuda else "int cudart_call() { return 0; }"
            subprocess.run(["c++", "-shared", "-fPIC", "-x", "c++", "-", "-x", "none", "-o", torch / f"lib/lib{name}.so",
                            f"-L{torch}/lib", f"-Wl,-soname,lib{name}.so", *(["-lcudart"] if cuda else [])],
                           input=text, text=True, check=True)
        (torch / "lib/libcudart.so").unlink()
        self.consumer(f"-DREPRISE_TORCH_DIR={torch}", "-DCMAKE_EXE_LINKER_FLAGS=-Wl,--as-needed")
        needed = self.needed_libraries()
        for name in ("libtorch_cuda.so", "libc10_cuda.so"):
            self.assertIn(name, needed)
            # LibTorch's own std::filesystem must not come before the system's.
            self.assertLess(needed.index("libstdc++.so"), needed.index(name))

    def test_a_project_may_have_found_torch_before(self):
        text = self.consumer("-DSTOCK=before", f"-DCMAKE_PREFIX_PATH={TORCH}")
        self.assertIn(f"in {TORCH}", text)
        self.assert_runs()

    def test_a_project_may_find_torch_after(self):
        self.consumer("-DSTOCK=after", f"-DCMAKE_PREFIX_PATH={TORCH}", f"-DREPRISE_TORCH_DIR={TORCH}")
        self.assert_runs()


if __name__ == "__main__":
    unittest.main()
