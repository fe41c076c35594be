#!/usr/bin/env python3
"""Refuses what the compiler cannot: includes against the layers of docs/architecture.md, libraries and getenv outside
their folder, files that are too long, open ends without an issue number. Closes with N passed, N failed, N skipped."""

import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
SOURCES = ROOT / "src"

# A folder may include itself and those it lists here.
LAYERS = {"base": []}
LAYERS["device"] = ["base"]
LAYERS["formats"] = ["base"]
LAYERS["hub"] = ["base", "formats"]
LAYERS["text"] = ["base", "formats"]
LAYERS["memory"] = ["base", "device", "formats"]
LAYERS["ops"] = ["base", "device", "formats", "memory"]
LAYERS["models"] = ["base", "device", "formats", "memory", "ops"]
LAYERS["drafters"] = LAYERS["models"] + ["models"]
LAYERS["engine"] = LAYERS["drafters"] + ["drafters", "hub", "text"]
LAYERS["server"] = ["base", "hub", "text", "engine"]
LAYERS["cli"] = ["base", "hub", "text", "formats", "memory", "ops", "models", "engine", "server"]

# What an include or a call may look like only in certain files.
CONFINED = [
    (re.compile(r"#include <boost/(asio|beast)"), ["server/http.cc"]),
    (re.compile(r"#include <CLI/"), ["cli/"]),
    (re.compile(r"\b(std::)?(secure_)?getenv\("), ["cli/"]),
    (re.compile(r"#include <hwy/"), ["ops/"]),
    (re.compile(r"#include <pcre2"), ["text/"]),
    (re.compile(r"#include <utf8proc"), ["text/"]),
    (re.compile(r"\bassert\("), []),
    (re.compile(r"\b(exit|abort)\("), ["base/check.cc", "cli/"]),
]
OPEN_END = re.compile(r"\b(TODO|FIXME|XXX)\b(?!.*#[0-9]+)")
MAX_LINES = 800


def check_file(path):
    name = path.relative_to(SOURCES).as_posix()
    folder = name.split("/")[0]
    lines = path.read_text().splitlines()
    if len(lines) > MAX_LINES:
        yield f"src/{name}: {len(lines)} lines; split before {MAX_LINES}"
    for number, line in enumerate(lines, 1):
        where = f"src/{name}:{number}"
        include = re.match(r'#include "(\w+)/', line)
        if include and include[1] in LAYERS and include[1] not in LAYERS[folder] + [folder]:
            yield f"{where}: {folder} may not include {include[1]}"
        code = line.split("//")[0]
        for pattern, homes in CONFINED:
            if pattern.search(code) and not any(name.startswith(home) for home in homes):
                yield f"{where}: '{pattern.search(code)[0]}' belongs in {', '.join(homes) or 'no file'}"
        if OPEN_END.search(line):
            yield f"{where}: an open end without an issue number"


def main():
    files = [p for p in sorted(SOURCES.rglob("*")) if p.suffix in (".cc", ".h", ".cu", ".cuh")]
    failures = 0
    for path in files:
        problems = list(check_file(path))
        failures += bool(problems)
        for problem in problems:
            print(problem)
    print(f"{len(files) - failures} passed, {failures} failed, 0 skipped")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
