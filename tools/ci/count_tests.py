#!/usr/bin/env python3
"""Names the failed cases of a folder of test results, then prints `N passed, N failed, N skipped`.

ctest.xml lists the programs; NAME.xml beside it, where a program wrote one (GoogleTest and pytest do), lists its cases.
A program without such a file counts as one case; one that failed without a failed case (a crash, a sanitizer's report)
as a failure more. A failed case is a line `failed: PROGRAM CASE` with the first lines of its message, indented, below.
Exits with 1 when something failed or nothing ran.
"""

import pathlib
import re
import sys
import xml.etree.ElementTree as ElementTree

MESSAGE_LINES = 8
# What matters in the output of a program that ended without a word to its results file.
REPORT = re.compile(
    r"ERROR: \w+Sanitizer|WARNING: ThreadSanitizer|runtime error:|check failed|terminate called|SUMMARY:"
)


def outcome(case):
    if case.find("failure") is not None or case.find("error") is not None or case.get("status") == "fail":
        return "failed"
    is_skipped = case.find("skipped") is not None or case.get("result") == "skipped"
    return "skipped" if is_skipped or case.get("status") in ("notrun", "disabled") else "passed"


def case_message(case):
    """GoogleTest puts its message in the attribute and again in the text; pytest's text is a trace that ends in it."""
    failure = case.find("failure") if case.find("failure") is not None else case.find("error")
    text = failure.text or failure.get("message") or ""
    lines = [line for line in text.splitlines() if line.strip()]
    if failure.get("message", "").strip() and text.lstrip().startswith(("def ", "@", "self =")):
        lines = [line for line in lines if line.startswith(("E ", ">"))] or failure.get("message").splitlines()
    return lines[:MESSAGE_LINES]


def crash_message(program):
    """From the first report on, else from the case that was running, else the last lines."""
    output = program.findtext("system-out") or ""
    lines = [line for line in output.splitlines() if line.strip()]
    for pattern in (REPORT, re.compile(r"\[ RUN      \]")):
        found = [i for i, line in enumerate(lines) if pattern.search(line)]
        if found:
            begin = found[0] if pattern is REPORT else found[-1]
            return lines[begin : begin + MESSAGE_LINES]
    return lines[-MESSAGE_LINES:]


def print_failure(program, case_name, message):
    print(" ".join(["failed:", program.get("name"), *([case_name] if case_name else [])]))
    for line in message:
        print("    " + line.strip()[:200])


def case_name(case):
    return ".".join(filter(None, (case.get("classname", "").rsplit(".", 1)[-1], case.get("name"))))


def count(results):
    counts = {"passed": 0, "failed": 0, "skipped": 0}
    for program in ElementTree.parse(results / "ctest.xml").iter("testcase"):
        cases_file = results / (program.get("name") + ".xml")
        outcomes = [outcome(program)]
        cases = []
        if cases_file.exists() and cases_file.stat().st_size > 0:
            cases = list(ElementTree.parse(cases_file).iter("testcase"))
        for case in cases:
            if outcome(case) == "failed":
                print_failure(program, case_name(case), case_message(case))
        case_outcomes = [outcome(case) for case in cases]
        if outcomes == ["failed"] and "failed" not in case_outcomes:
            print_failure(program, "", crash_message(program))
            case_outcomes.append("failed")
        for each in case_outcomes or outcomes:
            counts[each] += 1
    return counts


if __name__ == "__main__":
    totals = count(pathlib.Path(sys.argv[1]))
    print(", ".join(f"{number} {word}" for word, number in totals.items()))
    sys.exit(0 if totals["failed"] == 0 and totals["passed"] > 0 else 1)
