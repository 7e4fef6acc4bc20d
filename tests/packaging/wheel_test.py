"""The wheel in a new environment: it trains, it holds no torch, and it says which torch it needs."""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
import zipfile

from projects import BUILD, SOURCE, run

SCRIPTS = SOURCE / "tests/python/scripts"


@unittest.skipUnless((BUILD / "python/reprise/_version.py").exists(), "built without the Python package")
class Wheel(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(tempfile.mkdtemp())
        cls.addClassCleanup(shutil.rmtree, cls.folder)
        code, text = run(SOURCE / "scripts/wheel", cls.folder, env=os.environ | {"REPRISE_BUILD_DIR": str(BUILD)}, cwd=SOURCE)
        assert code == 0, text
        cls.wheel = pathlib.Path(text.strip().splitlines()[-1])
        subprocess.run([sys.executable, "-m", "venv", cls.folder / "venv"], check=True)
        cls.bin = cls.folder / "venv/bin"
        packages = next((cls.folder / "venv").glob("lib/python*/site-packages"))
        # The torch that is here, without installing it again.
        import torch
        (packages / "torch.pth").write_text(str(pathlib.Path(torch.__file__).parents[1]))
        code, text = run(cls.bin / "pip", "install", "--no-deps", "--no-index", cls.wheel)
        assert code == 0, text

    def in_the_environment(self, *command, **variables):
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        return run(*command, env=environment | variables, cwd=self.folder)

    def test_it_holds_the_library_and_nothing_of_torch(self):
        names = [pathlib.PurePath(name) for name in zipfile.ZipFile(self.wheel).namelist()]
        libraries = sorted(name.name.split(".")[0] for name in names if ".so" in name.name)
        self.assertEqual(libraries, ["_reprise", "libreprise"])
        self.assertRegex(self.wheel.name, r"^reprise_torch-[\d.]+-cp3\d+-cp3\d+-linux_\w+\.whl$")

    def test_a_script_trains_under_the_command_that_it_installs(self):
        code, plain = self.in_the_environment(self.bin / "python3", SCRIPTS / "by_hand.py")
        self.assertEqual(code, 0, plain)
        code, text = self.in_the_environment(self.bin / "reprise", "run", "--budget", "50%", SCRIPTS / "by_hand.py")
        self.assertEqual(code, 0, text)
        self.assertRegex(text, r"reprise: peak [\d.]+ MB of")
        losses = re.compile(r"\b0\.\d{8,}")
        self.assertEqual(losses.findall(text), losses.findall(plain))
        self.assertGreater(len(losses.findall(text)), 4)

    def test_the_command_has_all_subcommands_of_the_program(self):
        _, own = run(BUILD / "bin/reprise", "--help")
        code, text = self.in_the_environment(self.bin / "reprise", "--help")
        self.assertEqual(code, 0, text)
        self.assertRegex(text, r"^usage: reprise run --budget")
        subcommands = own[own.index("Subcommands:"):]
        for name in ("train", "plan", "simulate", "estimate", "advise", "info"):
            self.assertIn(f" {name} ", subcommands)
        self.assertIn(subcommands, text)
        code, text = self.in_the_environment(
            self.bin / "reprise", "estimate", "--layers", "2", "--width", "64", "--heads", "2", "--context", "32", "--batch", "2")
        self.assertEqual(code, 0, text)
        self.assertIn("peak", text)

    def test_another_minor_version_of_torch_is_an_import_error_with_the_remedy(self):
        (self.folder / "other/torch").mkdir(parents=True)
        (self.folder / "other/torch/__init__.py").write_text("__version__ = '2.99.1+cpu'\n")
        code, text = self.in_the_environment(self.bin / "python3", "-c", "import reprise", PYTHONPATH=str(self.folder / "other"))
        self.assertEqual(code, 1)
        self.assertRegex(text, r"ImportError: reprise [\d.]+ was built with torch 2\.\d+\.\d+, and torch 2\.99\.1\+cpu is "
                               r"installed; install torch 2\.\d+\.\*, or install reprise again with this torch")


if __name__ == "__main__":
    unittest.main()
