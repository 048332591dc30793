#!/usr/bin/env python3
"""Write what recals-opt says of itself into docs/recals-opt.md, or check that it stands there.

usage: write_docs.py [--check] RECALS_OPT

The page has places between "<!-- recals-opt ARGUMENTS -->" and "<!-- end -->"; what the command prints for the
arguments goes there.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

PAGE = Path(__file__).resolve().parents[2] / "docs" / "recals-opt.md"
PLACE = re.compile(r"(<!-- recals-opt (.+?) -->\n)(.*?)(<!-- end -->)", re.DOTALL)


def filled(page: str, command: str) -> str:
    """The page with every place as the command prints it."""

    def print_place(match: re.Match[str]) -> str:
        done = subprocess.run([command, *match[2].split()], capture_output=True, text=True, check=True)
        lines = [line.rstrip() for line in done.stdout.strip().splitlines()]
        return match[1] + "```text\n" + "\n".join(lines) + "\n```\n" + match[4]

    text, count = PLACE.subn(print_place, page)
    if count == 0:
        sys.exit(f"{PAGE} has no place for what recals-opt prints")
    return text


def main() -> int:
    arguments = sys.argv[1:]
    check = arguments[:1] == ["--check"]
    command = arguments[1:] if check else arguments
    if len(command) != 1:
        print(__doc__, file=sys.stderr)
        return 2
    page = PAGE.read_text(encoding="utf-8")
    text = filled(page, command[0])
    if check and text != page:
        print(f"{PAGE} does not say what recals-opt says; run {Path(__file__).name} {command[0]}", file=sys.stderr)
        return 1
    if not check:
        PAGE.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
