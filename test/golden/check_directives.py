#!/usr/bin/env python3
"""Find the FileCheck directives that FileCheck would pass over in silence: it takes "CHECK-NEXT foo", without the
colon, "CHECK_NEXT:" or "CHEKC:" for prose, and the golden then checks less than it shows.

usage: check_directives.py [folder]      (default: this file's folder)
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

SUFFIXES = "NEXT|SAME|NOT|DAG|LABEL|EMPTY|COUNT-[0-9]+"
PREFIXES = re.compile(r"--check-prefix(?:es)?=([A-Z0-9,]+)")
# What was meant as one: CHECK at the start of a comment, and the usual slips of the finger.
MEANT = re.compile(r"^\s*#+\s*(CHECK|CHEKC|CHCEK|CEHCK|HCECK|RUN\b|(?i:check(-\w+)?:|run:))")
# A word in capitals and a colon: the directive of some prefix.
ANY = re.compile(rf"^\s*#\s*([A-Z][A-Z0-9]*)(-({SUFFIXES}))?(\{{LITERAL\}})?:")


def prefixes_of(run_lines: list[str]) -> set[str]:
    """The words that FileCheck looks for in this file."""
    prefixes = set()
    for line in run_lines:
        for command in line.split("%FileCheck")[1:]:
            named = PREFIXES.search(command)
            prefixes |= set(named[1].split(",")) if named else {"CHECK"}
    return prefixes


def problems_in(name: str, text: str) -> list[str]:
    """One line for each suspicious line of a golden file."""
    problems = []
    lines = text.splitlines()
    runs = [line for line in lines if line.startswith("# RUN:")]
    prefixes = prefixes_of(runs)
    used = set()
    for number, line in enumerate(lines, 1):
        directive = ANY.match(line)
        word = directive[1] if directive else ""
        used.add(word)
        meant = MEANT.match(line) or any(re.match(rf"\s*#+\s*{prefix}(?![a-z])", line) for prefix in prefixes)
        if not directive and meant:
            problems.append(f"{name}:{number}: looks like a directive, but FileCheck ignores it: {line.strip()}")
        elif directive and runs and word not in prefixes | {"RUN", "COM"}:
            problems.append(f"{name}:{number}: no RUN line looks for {word}: {line.strip()}")
    if any("FileCheck" in line for line in runs):
        for prefix in sorted(prefixes - used):
            problems.append(f"{name}:1: has a RUN line with FileCheck, and no {prefix} line")
    if used - {"", "RUN", "COM"} and not runs:
        problems.append(f"{name}:1: has CHECK lines, and no line that starts with '# RUN:', so nothing reads them")
    return problems


def self_check() -> None:
    """The slips that this is there to find are found, and good files pass."""
    run = "# RUN: %recals-opt %s | %FileCheck %s\n"
    for text, bad in [
        (run + "# CHECK: a\n# CHECK-NEXT: b\n# CHECK-COUNT-2: c\n# CHECK{LITERAL}: [[d]]\n", False),
        (run + "# CHECK: a\n# CHECK-NEXT b\n", True),
        (run + "# CHECK: a\n# CHECK_NEXT: b\n", True),
        (run + "# CHECK: a\n# CHECK-NXT: b\n", True),
        (run + "# CHECK a\n", True),
        (run + "# check: a\n", True),
        ("# RUN %recals-opt %s\n# CHECK: a\n", True),
        (run, True),
        ("# CHECK: a\n", True),
        ("# RUN: %recals-opt %s | %FileCheck %s --check-prefix=MINE\n# MINE: a\n# MINE-NEXT: b\n", False),
        ("# RUN: %recals-opt %s | %FileCheck %s --check-prefix=MINE\n# MINE: a\n# MINE_NEXT: b\n", True),
        ("# RUN: %recals-opt %s | %FileCheck %s --check-prefix=MINE\n# CHECK: a\n", True),
        (run + "# CHECK: a\n# OTHER: b\n", True),
        ("# A helper without directives.\n# Check that nobody takes this for one.\n", False),
    ]:
        assert bool(problems_in("self_check", text)) == bad, text


def main() -> int:
    self_check()
    here = Path(__file__).resolve().parent
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else here
    files = [f for f in sorted(folder.rglob("*")) if f.suffix in (".ts", ".ir")]
    problems = []
    for file in files:
        problems += problems_in(str(file.relative_to(folder)), file.read_text(encoding="utf-8"))
    for problem in problems:
        print(problem, file=sys.stderr)
    print(f"golden_directives: {len(files)} files, {len(problems)} problems")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
