#!/usr/bin/env python3
"""What a reader of a failed job needs, from its log: digest.py LOG, at most 40 lines.

The failed cases that count_tests.py named; where there are none, the errors of the compiler and of other tools; where
there are none either, the last lines."""

import pathlib
import re
import sys

MAX_LINES = 40
MAX_COLUMNS = 200
ERROR = re.compile(
    r"^FAILED: |\berror:|\berror while|\bERROR\b|^E: |undefined reference|CMake Error|No space left|Traceback"
)
LINES_PER_ERROR = 4


def failed_cases(lines):
    """The blocks `failed: ...`, each with its indented message; a message gives up lines when many cases failed."""
    blocks = []
    for line in lines:
        if line.startswith("failed: "):
            blocks.append([line])
        elif blocks and blocks[-1] and line.startswith("    "):
            blocks[-1].append(line)
        else:
            blocks.append([])
    blocks = [block for block in blocks if block]
    if not blocks:
        return []
    room = max(1, (MAX_LINES - 1) // len(blocks))
    return [line for block in blocks for line in block[:room]]


def errors(lines):
    picked = []
    last = -1
    for i, line in enumerate(lines):
        if ERROR.search(line) and i > last:
            last = i + LINES_PER_ERROR - 1
            picked += lines[i : last + 1]
    return picked


def digest(lines):
    lines = [line.rstrip()[:MAX_COLUMNS] for line in lines if line.strip()]
    found = failed_cases(lines) or errors(lines) or lines[-20:]
    if len(found) > MAX_LINES:
        found = found[: MAX_LINES - 1] + [f"... and {len(found) - MAX_LINES + 1} lines more"]
    return found


if __name__ == "__main__":
    for each in digest(pathlib.Path(sys.argv[1]).read_text(errors="replace").splitlines()):
        print("  " + each)
