#!/usr/bin/env python3
"""Prints `N passed, N failed, N skipped` for a folder of test results.

ctest.xml lists the programs; NAME.xml beside it, where a program wrote one (GoogleTest and pytest do), lists its cases.
A program without such a file counts as one case; one that failed without a failed case (a crash) as a failure more.
Exits with 1 when something failed or nothing ran.
"""

import pathlib
import sys
import xml.etree.ElementTree as ElementTree


def outcome(case):
    if case.find("failure") is not None or case.find("error") is not None or case.get("status") == "fail":
        return "failed"
    is_skipped = case.find("skipped") is not None or case.get("result") == "skipped"
    return "skipped" if is_skipped or case.get("status") in ("notrun", "disabled") else "passed"


def count(results):
    counts = {"passed": 0, "failed": 0, "skipped": 0}
    for program in ElementTree.parse(results / "ctest.xml").iter("testcase"):
        cases_file = results / (program.get("name") + ".xml")
        outcomes = [outcome(program)]
        if cases_file.exists() and cases_file.stat().st_size > 0:
            cases = [outcome(case) for case in ElementTree.parse(cases_file).iter("testcase")]
            has_unlisted_failure = outcomes == ["failed"] and "failed" not in cases
            outcomes = cases + (["failed"] if has_unlisted_failure else [])
        for each in outcomes:
            counts[each] += 1
    return counts


if __name__ == "__main__":
    totals = count(pathlib.Path(sys.argv[1]))
    print(", ".join(f"{number} {word}" for word, number in totals.items()))
    sys.exit(0 if totals["failed"] == 0 and totals["passed"] > 0 else 1)
