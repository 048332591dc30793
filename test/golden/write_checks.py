#!/usr/bin/env python3
"""Write the CHECK lines of a golden anew from what its commands print now, for a person to prune.

usage: write_checks.py BUILD FILE...      BUILD: the build tree whose recals-opt runs, build/dev

For each RUN line that ends in FileCheck, its output becomes directives of its prefix: CHECK for the first line,
CHECK-NEXT for the others, names of values bound where they first appear (%[[Y:.*]]) and used after that. Old directives
are taken out. What the golden is about then has to be found by hand: delete the rest, and write bytes as arithmetic.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path

from check_directives import ANY, PREFIXES

HERE = Path(__file__).resolve().parent
VALUE = re.compile(r"%([a-zA-Z_][\w.]*|\d+)")


def output_of(command: str, golden: Path, build: Path, scratch: Path) -> str:
    """What a RUN line prints for FileCheck, with the substitutions of lit.cfg.py."""
    tools = build / "python" / "recals" / "bin"
    for name, value in [
        ("%exit", """sh -c '"$@" 2>&1; echo "exit $?"' sh"""),
        ("%recals-opt", str(tools / "recals-opt")),
        ("%python", sys.executable),
        ("%not", "!"),
        ("%%", "%"),
        ("%S", str(golden.parent)),
        ("%s", str(golden)),
        ("%t", str(scratch / "t")),
    ]:
        command = command.replace(name, value)
    return subprocess.run(command, shell=True, stdout=subprocess.PIPE, text=True, check=False).stdout


def directives(prefix: str, output: str) -> list[str]:
    """One directive for each line that is not blank."""
    bound: dict[str, str] = {}

    def captured(match: re.Match[str]) -> str:
        name = match[1]
        if name in bound:
            return f"%[[{bound[name]}]]"
        bound[name] = "V" + name.upper() if name[0].isdigit() else re.sub(r"\W", "_", name).upper()
        return f"%[[{bound[name]}:.*]]"

    lines = [line for line in output.splitlines() if line.strip()]
    return [
        f"# {prefix}{'-NEXT' if number else ''}: {VALUE.sub(captured, line.replace('[[', '{{[[][[]}}').strip())}"
        for number, line in enumerate(lines)
    ]


def rewrite(golden: Path, build: Path) -> None:
    """Runs every RUN line, in order, and replaces the directives."""
    text = golden.read_text(encoding="utf-8")
    runs = [line.removeprefix("# RUN:").strip() for line in text.splitlines() if line.startswith("# RUN:")]
    kept = [line for line in text.splitlines() if not ANY.match(line) or line.startswith("# RUN:")]
    added: list[str] = []
    with tempfile.TemporaryDirectory() as scratch:
        for run in runs:
            command, check, options = run.partition("%FileCheck")
            if not check:
                output_of(run, golden, build, Path(scratch))
                continue
            command = command.strip().removesuffix("|")
            redirected = re.search(r"< (\S+)", options)
            command = command or f"cat {redirected[1] if redirected else ''}"
            named = PREFIXES.search(options)
            prefix = named[1].split(",")[-1] if named else "CHECK"
            added += ["", *directives(prefix, output_of(command, golden, build, Path(scratch)))]
    golden.write_text("\n".join(kept).rstrip() + "\n" + "\n".join(added) + "\n", encoding="utf-8")


def main() -> int:
    if len(sys.argv) < 3:
        print(__doc__, file=sys.stderr)
        return 2
    for name in sys.argv[2:]:
        rewrite(Path(name).resolve(), Path(sys.argv[1]).resolve())
    return 0


if __name__ == "__main__":
    sys.exit(main())
