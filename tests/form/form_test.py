"""The form of the sources, as docs/architecture.md and CONTRIBUTING.md state it: which folder may include
which, where LibTorch's internals may be touched, how long a file may be, and what no file may contain."""

import collections
import pathlib
import re
import subprocess
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
# The rooms of src, from the bottom up: a room includes from itself and from those before it.
ROOMS = ["core", "plan/io", "plan/pipeline", "plan/chain", "plan/residency", "plan/trace", "plan/simulate", "plan/step", "libtorch/base",
         "libtorch/memory", "libtorch/random", "libtorch/autograd", "libtorch/operators", "libtorch/meta", "store", "region",
         "selective", "tape/device", "tape", "estimate", "influence", "pipeline"]
# Rooms that know nothing of each other, though one is listed before the other.
APART = [{"plan/chain", "plan/trace"}, {"plan/chain", "plan/simulate"}, {"plan/chain", "plan/step"},
         {"plan/simulate", "plan/step"}, {"plan/pipeline", "plan/chain"}, {"plan/pipeline", "plan/trace"},
         {"plan/pipeline", "plan/simulate"}, {"plan/pipeline", "plan/step"}, {"plan/residency", "plan/trace"}, {"plan/residency", "plan/simulate"},
         {"plan/residency", "plan/step"}, {"libtorch/memory", "libtorch/random"},
         {"region", "tape"}, {"region", "tape/device"}]
# The rooms of the program apps/cli, from the bottom up.
PROGRAM_ROOMS = ["io", "training/pipelined", "training", "training/methods", "compare", "commands"]
WITHOUT_TORCH = {"core", "plan"}
MOST_FILES = 45
TORCH = re.compile(r"^(torch|ATen|c10|caffe2)/")
# LibTorch's internals, whose form changes from version to version.
INTERNAL = re.compile(r"^(torch/csrc/autograd/(engine|saved_variable|saved_variable_hooks|graph_task|input_buffer)\.h"
                      r"|ATen/core/dispatch/|c10/core/impl/)")
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]', re.MULTILINE)
LONGEST = 400


def files(*patterns):
    """Tracked and new files, but not ignored ones."""
    names = subprocess.run(["git", "ls-files", "-co", "--exclude-standard", "--", *patterns], cwd=ROOT, check=True,
                           stdout=subprocess.PIPE, text=True).stdout.split("\n")
    return [ROOT / name for name in sorted(set(names)) if name and (ROOT / name).is_file()]


def includes():
    """(file relative to the root, included name, whether in quotes) of every C++ file outside tests."""
    for path in files("*.h", "*.cpp"):
        name = path.relative_to(ROOT)
        if name.parts[0] in ("src", "include", "models", "apps", "benchmarks", "examples"):
            for quote, included in INCLUDE.findall(path.read_text()):
                yield name, included, quote == '"'


def room_of(path):
    """The room of a source, given relative to src."""
    return str(pathlib.PurePath(path).parent)


class Layering(unittest.TestCase):
    def test_a_room_of_the_library_includes_only_from_rooms_below_it(self):
        for name, included, quoted in includes():
            if name.parts[0] != "src" or not quoted or included.startswith("reprise/"):
                continue
            with self.subTest(file=str(name), include=included):
                mine, other = room_of(name.relative_to("src")), room_of(included)
                self.assertIn(other, ROOMS)
                self.assertLessEqual(ROOMS.index(other), ROOMS.index(mine))
                self.assertNotIn({mine, other}, APART)

    def test_every_folder_of_the_library_is_a_room(self):
        for path in files("src/*.h", "src/*.cpp"):
            self.assertIn(room_of(path.relative_to(ROOT / "src")), ROOMS)

    def test_the_public_headers_include_nothing_private(self):
        for name, included, quoted in includes():
            if name.parts[0] == "include":
                self.assertFalse(quoted, f"{name} includes \"{included}\"")

    def test_a_room_of_the_program_includes_only_from_rooms_below_it(self):
        for name, included, quoted in includes():
            if name.parts[:2] != ("apps", "cli") or not included.startswith("apps/cli/"):
                continue
            with self.subTest(file=str(name), include=included):
                mine, other = room_of(name.relative_to("apps/cli")), room_of(included.removeprefix("apps/cli/"))
                self.assertIn(other, PROGRAM_ROOMS)
                if mine != ".":
                    self.assertLessEqual(PROGRAM_ROOMS.index(other), PROGRAM_ROOMS.index(mine))

    def test_no_file_of_the_program_has_the_name_of_a_public_header(self):
        public = {path.name for path in files("include/reprise/*.h")}
        for path in files("apps/*.h"):
            self.assertNotIn(path.name, public, str(path.relative_to(ROOT)))

    def test_programs_and_models_include_no_source_of_the_library(self):
        for name, included, quoted in includes():
            if name.parts[0] in ("models", "apps", "examples") and quoted:
                self.assertNotIn(room_of(included), ROOMS, f"{name} includes \"{included}\"")

    def test_models_do_not_know_the_programs(self):
        for name, included, _ in includes():
            if name.parts[0] == "models":
                self.assertNotRegex(included, "^(apps|benchmarks)/", str(name))

    def test_core_and_plan_include_no_torch_header(self):
        for name, included, _ in includes():
            if name.parts[0] == "src" and name.parts[1] in WITHOUT_TORCH:
                self.assertNotRegex(included, TORCH, str(name))

    def test_only_the_libtorch_folder_includes_torch_internals(self):
        for name, included, _ in includes():
            if name.parts[:2] != ("src", "libtorch") and name.parts[0] != "benchmarks":
                self.assertNotRegex(included, INTERNAL, str(name))


class Files(unittest.TestCase):
    def test_every_room_says_at_its_door_what_it_is_for(self):
        doors = [f"src/{room}" for room in ROOMS + ["plan", "libtorch"]] + ["apps/cli", "benchmarks", "models", "tests"]
        doors += [f"apps/cli/{room}" for room in PROGRAM_ROOMS]
        doors += [str(path.parent.relative_to(ROOT)) for path in files("tools/*/README.md")]
        for room in doors:
            with self.subTest(room=room):
                self.assertGreaterEqual(len((ROOT / room / "README.md").read_text().splitlines()), 3)

    def test_the_picture_of_the_rooms_shows_every_room(self):
        picture = (ROOT / "docs/architecture.md").read_text().split("```")[1]
        for room in [*ROOMS, *PROGRAM_ROOMS, "models", "include/reprise", "benchmarks", "examples", "tests", "docs", "scripts"]:
            self.assertIn(pathlib.PurePath(room).name, picture, room)

    def test_no_folder_holds_more_files_than_a_reader_can_scan(self):
        counts = collections.Counter(path.parent for path in files())
        for folder, count in counts.items():
            self.assertLessEqual(count, MOST_FILES, str(folder.relative_to(ROOT)))

    def test_no_source_is_longer_than_400_lines(self):
        for path in files("*.h", "*.cpp", "*.py", "*.cmake", "*CMakeLists.txt", "scripts/*"):
            lines = len(path.read_text().splitlines())
            self.assertLessEqual(lines, LONGEST, f"{path.relative_to(ROOT)} has {lines} lines")

    def test_every_header_is_included_once_by_pragma(self):
        for path in files("*.h"):
            self.assertIn("#pragma once", path.read_text(), str(path.relative_to(ROOT)))

    def test_every_source_opens_with_why_it_exists(self):
        for path in files("*.h", "*.cpp"):
            first = path.read_text().lstrip().split("\n", 1)[0]
            own_header = path.suffix == ".cpp" and path.with_suffix(".h").exists()
            self.assertTrue(first.startswith("//") or own_header, f"{path.relative_to(ROOT)} opens with: {first}")

    def test_no_file_names_a_path_of_one_machine_or_leaves_work_open(self):
        # Built from pieces, so that this file does not contain them.
        forbidden = re.compile("|".join(["/(?:home|ro" + "ot|wo" + "rk)/", r"\bTO" + "DO\\b", "FIX" + "ME", r"\bXX" + r"X\b"]))
        for path in files():
            if path.suffix in (".png", ".gz") or path == ROOT / "LICENSE":
                continue
            for number, line in enumerate(path.read_text().splitlines(), 1):
                self.assertNotRegex(line, forbidden, f"{path.relative_to(ROOT)}:{number}")


class Documents(unittest.TestCase):
    def test_the_examples_of_extending_are_files_that_tests_build(self):
        shown = (ROOT / "docs/extending.md").read_text()
        examples = files("examples/extending/*.h")
        self.assertTrue(examples)
        for path in examples:
            self.assertIn("```cpp\n" + path.read_text() + "```", shown, f"{path.name} differs from docs/extending.md")
            name = str(path.relative_to(ROOT))
            users = [test for test in files("tests/*.cpp", "tests/*.h") if name in test.read_text()]
            self.assertTrue(users, f"no test includes {name}")


if __name__ == "__main__":
    unittest.main()
