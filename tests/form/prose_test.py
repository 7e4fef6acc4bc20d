"""Prose that is read twice does not spread: by place, what prose.py finds is at most what prose_counts.json says, and in
errors, warnings and help it finds nothing. Who rewrites a file lowers the counts: `python3 tests/form/prose_test.py --lower`."""

import collections
import json
import pathlib
import subprocess
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/form"))
from prose import findings, findings_in, findings_in_texts, paragraphs_of_comments, paragraphs_of_markdown  # noqa: E402
from texts import texts_of_source  # noqa: E402

COUNTS = ROOT / "tests/form/prose_counts.json"
# Tables of measurements, and what a program wrote, are no prose.
SKIPPED = ("docs/results/",)
WITH_TEXTS = ("src", "apps", "include", "models")


def place_of(name):
    """README.md, docs, include/reprise, src/tape, apps, tests, ..."""
    parts = pathlib.PurePath(name).parts
    if len(parts) == 1:
        return name
    return "/".join(parts[:2]) if parts[0] in ("src", "include") else parts[0]


def counts():
    names = subprocess.run(["git", "ls-files", "-co", "--exclude-standard", "--", "*.md", "*.h", "*.cpp"], cwd=ROOT, check=True,
                           stdout=subprocess.PIPE, text=True).stdout.split()
    found = collections.Counter()
    for name in sorted(set(names)):
        if (ROOT / name).is_file() and not name.startswith(SKIPPED):
            found[place_of(name)] += len(findings(ROOT / name))
            first = name.split("/")[0]
            if first in WITH_TEXTS and not name.endswith(".md"):
                found[f"errors of {first}"] += len(findings_in_texts((ROOT / name).read_text()))
    return found


class Prose(unittest.TestCase):
    def test_no_place_has_more_findings_than_it_had(self):
        most = json.loads(COUNTS.read_text())
        for place, count in counts().items():
            with self.subTest(place=place):
                self.assertLessEqual(count, most.get(place, 0), f"`python3 tests/form/prose.py FILE...` lists those of {place}")

    def kinds(self, paragraphs):
        return [found.kind for found in findings_in(paragraphs)]

    def test_a_fragment_is_found_and_a_sentence_with_a_main_clause_is_not(self):
        text = ("// Of what it writes to, only the frame.\n\n// Where a store is given, values are parked.\n\n"
                "// For the step.\n\n// Formats are listed below.\n")
        self.assertEqual(self.kinds(paragraphs_of_comments(text, "//")), ["fragment", "fragment"])

    def test_words_for_a_term_of_the_field_are_found_but_not_in_code(self):
        text = "The value gives up its bytes, of which `goes first` is one.\n\n```\nthose that\n```\n"
        self.assertEqual(self.kinds(paragraphs_of_markdown(text)), ['"gives up"', '"of which"'])

    def test_a_sentence_of_more_than_thirty_words_is_found_and_lists_are_not_one_sentence(self):
        words = " ".join(["word"] * 20)
        text = f"- Every {words}.\n- Every {words}.\n\nEvery {words} and {words}.\n"
        self.assertEqual(self.kinds(paragraphs_of_markdown(text)), ["42 words"])

    def test_the_pieces_of_an_error_are_one_text_with_a_word_for_each_value(self):
        for source in ('throw UsageError("the step has " + std::to_string(n) + (n > 1 ? " operators" : " one") + "; it takes " + most);',
                       'throw UsageError(c10::str("the step has ", n, " operators; it takes ", most));',
                       'text << "the step has " << n << " operators; "\n  // Not "this".\n  "it takes " << most;',
                       'fail(fmt::format("the step has {} operators; it takes {:.1f}", n, most));'):
            self.assertEqual(texts_of_source(source), [(1, "the step has x operators; it takes x")], source)

    def test_arguments_and_branches_are_texts_of_their_own_and_names_are_none(self):
        source = 'refuse("alpha", "at least 0 and below 1");\nreturn is_set ? "a file of this run" : "a file of another run";\n'
        self.assertEqual([text for _, text in texts_of_source(source)],
                         ["at least 0 and below 1", "a file of another run", "a file of this run"])

    def test_prose_that_is_read_twice_is_found_in_an_error(self):
        words = " ".join(["word"] * 31)
        source = f'throw Error("run(): " "of what it has nothing is left");\nTORCH_WARN("it gives up its bytes");\nflag("--a", "{words}");'
        self.assertEqual([found.kind for found in findings_in_texts(source)], ["fragment", '"gives up"', "31 words"])


if __name__ == "__main__":
    if sys.argv[1:] == ["--lower"]:
        most = json.loads(COUNTS.read_text()) if COUNTS.exists() else {}
        lower = {place: min(count, most.get(place, count)) for place, count in sorted(counts().items())}
        COUNTS.write_text(json.dumps(lower, indent=2) + "\n")
    else:
        unittest.main()
