"""Counts the cases of a ctest run: those of a test program by GoogleTest's report, those of pytest by its report, those of a
Python test by what unittest printed, and every other entry as one. Prints `<passed> <failed> <skipped>` and, on standard
error, what failed and why cases were skipped. A program that crashed or ran out of time counts as one failure more than it
reported."""

import collections
import pathlib
import re
import sys
import xml.etree.ElementTree as xml

RAN = re.compile(r"^Ran (\d+) tests? in ", re.MULTILINE)
# Also of a part of a test (unittest's subTest), which names its test the same way.
BROKEN = re.compile(r"^(?:FAIL|ERROR): (\S+ \(\S+\))", re.MULTILINE)
SKIPPED = re.compile(r"\.\.\. skipped (['\"])(.*)\1$", re.MULTILINE)


class Counts:
    def __init__(self):
        self.passed, self.failures, self.skipped = 0, [], collections.Counter()

    def add_program(self, name, report, ended_well):
        """Of a report that a test program wrote."""
        root = xml.parse(report).getroot()
        if root.find("testsuite") is not None and root.find("testsuite").get("name") == "pytest":
            return self.add_pytest(name, root.iter("testcase"), ended_well)
        found = False
        for case in root.iter("testcase"):
            if case.find("failure") is not None:
                found = True
                self.failures.append(f"{name}: {case.get('classname')}.{case.get('name')}")
            elif case.get("result") == "skipped":
                # Its place in the sources, a line's end, and the reason.
                texts = [each.get("message").split("\n", 1)[-1].strip() for each in case.iter("skipped")]
                self.skipped["; ".join(texts) or "no reason given"] += 1
            elif case.get("status") == "run" and case.get("result") == "completed":
                self.passed += 1
        if not ended_well and not found:
            self.failures.append(f"{name}: ended without a report of every case (crash or time limit)")

    def add_pytest(self, name, cases, ended_well):
        """Of a report that pytest wrote."""
        before = len(self.failures)
        for case in cases:
            if case.find("failure") is not None or case.find("error") is not None:
                self.failures.append(f"{name}: {case.get('classname')}.{case.get('name')}")
            elif case.find("skipped") is not None:
                self.skipped[case.find("skipped").get("message") or "no reason given"] += 1
            else:
                self.passed += 1
        if not ended_well and len(self.failures) == before:
            self.failures.append(f"{name}: ended badly after its tests")

    def add_script(self, name, output, ended_well):
        """Of what `unittest -v` printed; False if that is not what it is."""
        ran = RAN.search(output)
        if ran is None:
            return False
        reasons = [reason for _, reason in SKIPPED.findall(output)]
        broken = sorted(set(BROKEN.findall(output)))
        self.skipped.update(reasons)
        self.passed += max(int(ran[1]) - len(reasons) - len(broken), 0)
        self.failures += [f"{name}: {each}" for each in broken]
        if not ended_well and not broken:
            self.failures.append(f"{name}: ended badly after its tests")
        return True

    def add(self, entry, reports):
        name, ended_well = entry.get("name"), entry.get("status") == "run"
        report = pathlib.Path(reports) / f"{name}.xml"
        output = entry.find("system-out")
        if report.exists():
            self.add_program(name, report, ended_well)
        elif self.add_script(name, (output is not None and output.text) or "", ended_well):
            pass
        elif ended_well:
            self.passed += 1
        else:
            self.failures.append(name)


def tally(junit, reports):
    counts = Counts()
    for entry in xml.parse(junit).getroot().iter("testcase"):
        counts.add(entry, reports)
    return counts


def main(junit, reports):
    counts = tally(junit, reports)
    print(counts.passed, len(counts.failures), counts.skipped.total())
    for reason, count in counts.skipped.most_common():
        print(f"   skipped {count}: {reason}", file=sys.stderr)
    for failure in counts.failures:
        print(f"FAILED {failure}", file=sys.stderr)


if __name__ == "__main__":
    main(*sys.argv[1:])
