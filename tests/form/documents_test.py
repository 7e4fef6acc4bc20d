"""What documents say and the repository can check: a figure stands beside the command or file that makes it, and what a
document names (commands, options, files, headings, benchmarks, tests, names of the library) exists."""

import pathlib
import re
import sys
import unittest

from form_test import ROOT, files

sys.path.insert(0, str(ROOT / "scripts/support"))
import claims  # noqa: E402

RESULTS = [ROOT / "README.md", *files("docs/results/*.md")]
ALL = [ROOT / "README.md", *files("*.md")]
TRACKED = {str(path.relative_to(ROOT)) for path in files()}
NAMES = {name.rsplit("/", 1)[-1] for name in TRACKED}

# A number with a unit, or a ratio.
FIGURE = re.compile(r"""(?<![\w.])\d[\d,]*(?:\.\d+)?\s?
    (?:%|×|(?:[kMGT]i?)?B(?:/s)?\b|bytes\b|ns\b|µs\b|ms\b|s\b|seconds\b|minutes\b|kWh\b|times\b|x\b)""", re.VERBOSE)
FENCE = re.compile(r"^( *)```(\w*)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"`([^`]+)`")
LINK = re.compile(r"\[[^\]]*\]\(<?([^)>\s]+)>?\)")
TEST = re.compile(r"^\s*TEST(?:_F|_P)?\(\s*(\w+),\s*(\w+)\s*\)", re.MULTILINE)


def text_of(*patterns):
    return "\n".join(path.read_text() for path in files(*patterns))


# Of the declarations, not of what comments say.
PUBLIC = set(re.findall(r"\w+", re.sub(r"//.*", "", text_of("include/*.h"))))
BENCHES = set(re.findall(r'^\s*\{"(\w+)"', (ROOT / "benchmarks/benches.cpp").read_text(), re.MULTILINE))
BENCHES |= set(re.findall(r'"(python_\w+)": ', text_of("benchmarks/python/*.py")))
# `reprise run` is the Python package's.
PROGRAM = text_of("apps/*.cpp", "apps/*.h", "python/reprise/running/command.py")
SUBCOMMANDS = {"run"} | set(re.findall(r'(?:add_subcommand\(|add_command<\w+>\(\s*program,\s*chosen,)\s*"(\w+)"', PROGRAM))


def sections(text):
    """(heading, text) of each part between two headings; what stands in a block of code is no heading."""
    hidden = FENCE.sub(lambda block: re.sub(r"^#", " ", block[0], flags=re.MULTILINE), text)
    starts = [match.start() for match in re.finditer(r"^#+ ", hidden, re.MULTILINE)]
    for begin, end in zip([0, *starts], [*starts, len(text)]):
        if text[begin:end].strip():
            yield text[begin:end].split("\n", 1)[0], text[begin:end]


def blocks(text):
    """(language, content) of the blocks of code."""
    return [(match[2], match[3]) for match in FENCE.finditer(text)]


def figures(text):
    """Those of sentences, tables and printed output; not those of commands, options and programs."""
    printed = "\n".join(content for language, content in blocks(text) if not language and not is_command(content))
    spoken = LINK.sub("", CODE.sub("", FENCE.sub("", text)))
    return FIGURE.findall(spoken) + FIGURE.findall(printed)


def sources(text):
    """Commands, tests and benchmarks that a text quotes, and pages of figures, which are checked themselves, that it links."""
    made = rf"scripts/[a-z]+|reprise_test_\w+|reprise (?:{'|'.join(SUBCOMMANDS)})\b|\w+_test\.(?:cpp|py)\b" \
           r"|(?:tests|benchmarks|tools|examples)/\w+"
    linked = [link for link in LINK.findall(text) if re.search(r"(?:^|results/)[\w-]+\.md|\.(?:py|cpp)$", link)]
    return [each for each in commands(text) if re.search(made, each)] + linked


def is_command(content):
    return content.lstrip().startswith(("scripts/", "reprise ", "cmake ", "build/", "python3 tools/"))


def commands(text):
    """What is quoted as code, on one line, continued lines joined."""
    without_blocks = FENCE.sub("", text)
    quoted = [" ".join(each.split()) for each in CODE.findall(without_blocks)]
    for language, content in blocks(text):
        if not language and is_command(content):
            quoted += [line.split("#")[0].strip() for line in content.replace("\\\n", " ").splitlines() if line.strip()]
    return quoted


def anchors(path):
    names = set()
    for heading, _ in sections(path.read_text()):
        plain = re.sub(r"[^\w\- ]", "", heading.lstrip("# ").lower())
        names.add(plain.replace(" ", "-"))
    return names


class Figures(unittest.TestCase):
    def test_a_section_with_figures_names_the_command_or_file_that_makes_them(self):
        for path in RESULTS:
            text = path.read_text()
            # A page that one command writes as a whole says so in its first section, and one that an earlier version has
            # written, by which version and which of its commands.
            first = next(sections(text))[1]
            made = r"[Ww]ritten by `scripts/\w+|^`(?:reprise \w+|python3 tools/)|by version \d[\d.]+ with its command `\w+`"
            if re.search(made, first, re.MULTILINE):
                continue
            for heading, part in sections(text):
                with self.subTest(document=str(path.relative_to(ROOT)), section=heading):
                    found = figures(part)
                    self.assertTrue(not found or sources(part),
                                    f"no command or file of the repository beside {found[:5]}")

    def test_each_row_of_a_table_with_a_column_of_commands_has_one(self):
        for path in RESULTS:
            column = ours = None
            for number, line in enumerate(path.read_text().splitlines(), 1):
                cells = [cell.strip() for cell in line.strip("|").split("|")] if line.startswith("|") else []
                if not cells:
                    column = None
                elif column is None:
                    column = cells.index("command") if "command" in cells else -1
                    # Where others' figures stand beside, those that were measured.
                    ours = slice(cells.index("here"), cells.index("here") + 1) if "here" in cells else slice(None)
                elif column >= 0 and not set(line) <= set("|- "):
                    self.assertTrue(not figures(" ".join(cells[ours])) or sources(cells[column]),
                                    f"{path.relative_to(ROOT)}:{number}: a figure without a command")


    def test_what_is_a_figure_and_what_makes_one(self):
        for text in ("1.25× (1.2–1.3)", "9 % less", "| 2.62 MB |", "```\nnone 310.9 MB\n```", "took 40 s"):
            self.assertTrue(figures(text), text)
        for text in ("LibTorch 2.13", "`--budget 50%`", "```cpp\nMB(400); // 5 %\n```"):
            self.assertFalse(figures(text), text)
        for text in ("`scripts/bench hooks`", "```\nreprise compare --steps 3\n```", "[figures](docs/results/tape.md)"):
            self.assertTrue(sources(text), text)
        for text in ("reprise compare shows it", "`reprise::checkpoint`", "[why](docs/using_a_budget.md)", "`make all`"):
            self.assertFalse(sources(text), text)


class Named(unittest.TestCase):
    def check(self, find, exists, what):
        for path in ALL:
            text = path.read_text()
            for each in find(text):
                with self.subTest(document=str(path.relative_to(ROOT))):
                    self.assertTrue(exists(each, path), f"{what} {each!r} does not exist")

    def test_links_lead_to_files_and_headings(self):
        def exists(target, path):
            if "://" in target:
                return True
            file, _, anchor = target.partition("#")
            found = (path.parent / file).resolve() if file else path
            return found.exists() and (not anchor or found.suffix != ".md" or anchor in anchors(found))
        self.check(LINK.findall, exists, "the link")

    def test_files_exist(self):
        # A path from the root, or the name of a source; `{a,b}` and `*` stand for several.
        pattern = re.compile(r"(?:src|tests|docs|include|models|apps|benchmarks|examples|scripts|cmake|tools)/[\w./*{},-]*\w"
                             r"|\.ci/\w+|[a-z]\w+\.(?:cpp|py)\b")

        def exists(name, _):
            if "<" in name or "NAME" in name:
                return True
            for each in expanded(name):
                own = "/" in each
                known = any(pathlib.PurePath(file).match(each) for file in TRACKED) if "*" in each else each in TRACKED
                if not (known or (own and (ROOT / each).is_dir()) or (not own and each in NAMES)
                        or (own and any(file.endswith(f"/{each}") or f"/{each}." in f"/{file}" for file in TRACKED))):
                    return False
            return True
        self.check(lambda text: [match[0] for quoted in commands(text) if "<" not in quoted and "/tmp" not in quoted
                                 for match in re.finditer(rf"(?<![\w/.$~])(?:{pattern.pattern})", quoted)], exists, "the file")

    def test_benchmarks_exist(self):
        def named(text):
            for quoted in commands(text):
                match = re.search(r"scripts/bench ([a-z_0-9 ]+)", quoted)
                yield from (match[1].split() if match else [])
        self.check(named, lambda name, _: name in BENCHES | {"all"}, "the benchmark")

    def test_subcommands_and_their_options_exist(self):
        def named(text):
            for quoted in commands(text):
                match = re.match(r"(?:build/release/bin/)?reprise ([a-z]+)(.*)", quoted)
                if match:
                    yield match[1]
                    yield from re.findall(r"(?<!\S)--[a-z][a-z-]*", match[2])
        self.check(named, lambda name, _: name in SUBCOMMANDS or (name.startswith("--") and f'{name}' in PROGRAM),
                   "of reprise")

    def test_options_of_scripts_exist(self):
        def named(text):
            for quoted in commands(text):
                match = re.match(r"(?:python3 )?(scripts/[a-z]+|tools/[\w/]+\.py)(.*)", quoted)
                if match:
                    yield from ((match[1], option) for option in re.findall(r"(?<!\S)--[a-z-]+", match[2]))

        def exists(pair, _):
            texts = [ROOT / pair[0]]
            if pair[0].startswith("scripts/"):
                texts += files("benchmarks/*.cpp", "scripts/support/*")
            return (ROOT / pair[0]).exists() and any(pair[1] in path.read_text() for path in texts)
        self.check(named, exists, "the option")

    def test_programs_of_tests_and_what_they_are_filtered_by_exist(self):
        def named(text):
            for quoted in commands(text):
                match = re.search(r"reprise_test_(\w+)(.*)", quoted)
                if match:
                    chosen = re.search(r"--gtest_filter=['\"]?([^'\"\s]+)", match[2])
                    yield match[1], chosen[1] if chosen else "*"

        def exists(pair, _):
            tests = [".".join(each) for path in files(f"tests/{pair[0]}/*.cpp") for each in TEST.findall(path.read_text())]
            return any(pathlib.PurePath(test).match(one) for one in pair[1].split(":") for test in tests)
        self.check(named, exists, "the tests")

    def test_names_of_the_library_are_in_its_headers(self):
        def named(text):
            for quoted in [*CODE.findall(FENCE.sub("", text)), *(c for language, c in blocks(text) if language == "cpp")]:
                for match in re.finditer(r"(?<![\w:])reprise::((?:\w+::)*\w+)", quoted):
                    yield from match[1].split("::")
                # A member of a type of the library.
                for match in re.finditer(r"(?<![\w:])([A-Z]\w+)::(\w+)", quoted):
                    if match[1] in PUBLIC:
                        yield match[2]
        self.check(named, lambda name, _: name in PUBLIC or (ROOT / "src" / name).is_dir() or name == "reprise",
                   "the name")


class Claims(unittest.TestCase):
    def test_the_page_of_claims_is_made_from_its_rows_and_each_has_its_command_date_and_machine(self):
        rows = claims.kept_rows(ROOT / "docs/results/claims.json")
        self.assertEqual(claims.document(rows), (ROOT / claims.PAGE).read_text())
        self.assertEqual({row.name for row in rows}, set(claims.Claims.ORDER))
        for row in rows:
            for field in (row.command, row.date, row.machine, row.spread, row.load):
                self.assertTrue(field, row.claim)


class Peers(unittest.TestCase):
    """docs/results/peer-tests.md: which of our tests stand for which of PyTorch's."""

    TESTS = {path.relative_to(ROOT): {name for _, name in TEST.findall(path.read_text())}
             for path in files("tests/region/*.cpp", "tests/selective/*.cpp", "tests/pipeline/*.cpp")}

    def test_our_tests_exist_in_the_files_that_the_page_names(self):
        text = (ROOT / "docs/results/peer-tests.md").read_text()
        stated = 0
        for heading, part in sections(text):
            for line in part.splitlines():
                cells = [cell.strip() for cell in line.strip("|").split("|")] if line.startswith("|") else []
                names = re.findall(r"\b(?:[A-Z][a-z0-9]*){3,}\b", re.sub(r"\([^)]*\)", "", cells[-1])) if cells else []
                if "our test" in line or not names:
                    continue
                there = self.files_of(heading, cells, names)
                for name in names:
                    with self.subTest(section=heading, test=name):
                        self.assertIn(name, there)
                        stated += 1
        self.assertGreater(stated, 60)

    def files_of(self, heading, cells, names):
        folder, prefix = ("pipeline", "") if "Pipelines" in heading else (
            ("selective", "") if "Selective" in heading else ("region", "checkpoint_"))
        listed = cells[1] if len(cells) > 2 else "nested, " + ", ".join(re.findall(r"(\w+):", cells[-1]))
        there = set()
        for short in re.findall(r"\w+", listed):
            name = f"{prefix}{short}_test.cpp" if short != "core" else "checkpoint_test.cpp"
            path = pathlib.Path("tests") / folder / name
            if path not in self.TESTS:
                path = pathlib.Path("tests") / folder / f"checkpoint_{short}_test.cpp"
            self.assertIn(path, self.TESTS, f"of {names}")
            there |= self.TESTS[path]
        return there


def expanded(name):
    match = re.search(r"\{([^}]*)\}", name)
    if match is None:
        return [name]
    return [each for part in match[1].split(",") for each in expanded(name[:match.start()] + part + name[match.end():])]


if __name__ == "__main__":
    unittest.main()
