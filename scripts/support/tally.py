"""Counts the cases of a ctest run: those inside a test program by GoogleTest's report, every other entry as
one. Prints `<passed> <failed>` and, on standard error, what failed. A program that crashed or ran out of
time counts as one failure more than it reported."""

import json
import pathlib
import sys
import xml.etree.ElementTree as xml


def cases_of(report):
    """(passed, names of failures) of a GoogleTest report; skipped cases count as neither."""
    passed, failed = 0, []
    for suite in json.loads(report.read_text())["testsuites"]:
        for case in suite["testsuite"]:
            if case.get("failures"):
                failed.append(f"{suite['name']}.{case['name']}")
            elif case["status"] == "RUN" and case["result"] == "COMPLETED":
                passed += 1
    return passed, failed


def main(junit, reports):
    passed, failures = 0, []
    for entry in xml.parse(junit).getroot().iter("testcase"):
        name = entry.get("name")
        ok = entry.get("status") == "run"
        report = pathlib.Path(reports) / f"{name}.json"
        if report.exists():
            inside, failed = cases_of(report)
            passed += inside
            failures += [f"{name}: {case}" for case in failed]
            if not ok and not failed:
                failures.append(f"{name}: ended without a report of every case (crash or time limit)")
        elif ok:
            passed += 1
        else:
            failures.append(name)
    print(passed, len(failures))
    for failure in failures:
        print(f"FAILED {failure}", file=sys.stderr)


if __name__ == "__main__":
    main(*sys.argv[1:])
