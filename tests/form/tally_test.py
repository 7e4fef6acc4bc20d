"""How scripts/test counts: what was skipped has its reason and is not among what passed, and a run that is repeated leaves
no program behind."""

import os
import pathlib
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts/support"))
import repeat  # noqa: E402
from tally import tally  # noqa: E402


def case(name, result="completed", status="run", inside=""):
    return f'<testcase name="{name}" status="{status}" result="{result}" classname="Suite">{inside}</testcase>'


class Tally(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp())

    def count(self, entries, reports=()):
        for name, cases in dict(reports).items():
            (self.folder / f"{name}.xml").write_text(f"<testsuites><testsuite>{''.join(cases)}</testsuite></testsuites>")
        junit = self.folder / "ctest.xml"
        junit.write_text("<testsuite>" + "".join(
            f'<testcase name="{name}" status="{status}"><system-out>{output}</system-out></testcase>'
            for name, status, output in entries) + "</testsuite>")
        return tally(junit, self.folder)

    def test_skipped_cases_of_a_program_have_their_reasons_and_did_not_pass(self):
        why = '<skipped message="tests/a.cpp:7&#x0A;no accelerator&#x0A;"></skipped>'
        counts = self.count([("a.1of1", "run", "")], {"a.1of1": [
            case("Passes"), case("Fails", inside='<failure message="1 is not 2"/>'), case("Needs", "skipped", inside=why),
            case("NeedsToo", "skipped", inside=why), case("Off", "suppressed", "notrun")]})
        self.assertEqual(counts.passed, 1)
        self.assertEqual(counts.failures, ["a.1of1: Suite.Fails"])
        self.assertEqual(counts.skipped, {"no accelerator": 2})

    def test_a_script_whose_data_are_missing_is_skipped(self):
        counts = self.count([("tape.sweep", "run", """
test_one (__main__.Sweep.test_one) ... skipped 'no database: No module named "expecttest"'
test_two (__main__.Sweep.test_two) ... skipped 'no database: No module named "expecttest"'

----------------------------------------------------------------------
Ran 2 tests in 0.000s

OK (skipped=2)
""")])
        self.assertEqual((counts.passed, counts.failures), (0, []))
        self.assertEqual(counts.skipped, {'no database: No module named "expecttest"': 2})

    def test_cases_of_a_script_are_counted_each(self):
        counts = self.count([("form.x", "fail", """
test_a (x.A.test_a) ... ok
test_b (x.A.test_b) ... said something
FAIL
test_c (x.A.test_c) ... 
FAIL: test_b (x.A.test_b)
FAIL: test_c (x.A.test_c) (operator='add')
FAIL: test_c (x.A.test_c) (operator='mul')
Ran 3 tests in 1.5s
FAILED (failures=3)
""")])
        self.assertEqual(counts.passed, 1)
        self.assertEqual(counts.failures, ["form.x: test_b (x.A.test_b)", "form.x: test_c (x.A.test_c)"])

    def test_what_crashed_failed(self):
        counts = self.count([("a.1of1", "fail", ""), ("form.x", "fail", "Traceback"), ("packaging.y", "run", "built")],
                            {"a.1of1": [case("Passes")]})
        self.assertEqual(counts.passed, 2)
        self.assertEqual(len(counts.failures), 2)


class Repeating(unittest.TestCase):
    def test_programs_that_keep_the_cores_busy_end_with_the_run(self):
        with self.assertRaises(ZeroDivisionError), repeat.busy(2) as programs:
            self.assertEqual([program.poll() for program in programs], [None, None])
            raise ZeroDivisionError
        for program in programs:
            self.assertIsNotNone(program.returncode)
            with self.assertRaises(ProcessLookupError):
                os.kill(program.pid, 0)


if __name__ == "__main__":
    unittest.main()
