"""Where a node of a captured graph stands in the user's program: the module's path, and the line."""

from __future__ import annotations

import linecache
import re
from pathlib import Path
from typing import NamedTuple

import torch
from torch import fx


class Place(NamedTuple):
    """A line of the user's program. `file` is empty where it is not known."""

    file: str
    line: int
    text: str

    def __str__(self) -> str:
        return f" at {self.file.rsplit('/', 1)[-1]}:{self.line}" if self.file else ""


_FRAME = re.compile(r'^\s*File "(?P<file>[^"]+)", line (?P<line>\d+)')
_ROOT = re.compile(r"^[LG]\['[^']*'\](\.__self__)?")
_MEMBER = re.compile(r"\.?_modules\['([^']*)'\]")
_NOWHERE = Place("", 0, "")
_NOT_THE_USERS = (torch.__path__[0], str(Path(__file__).parent), str(Path(__file__).resolve().parent), "<")


def place_in(frames: list[tuple[str, int]]) -> Place:
    """The innermost of `frames` that is neither torch's nor one of this package."""
    for file, line in reversed(frames):
        if not file.startswith(_NOT_THE_USERS):
            return Place(file, line, linecache.getline(file, line).strip())
    return _NOWHERE


def place_of(node: fx.Node) -> Place:
    """The line of the program that `node` comes from."""
    trace = node.meta.get("stack_trace") or ""
    found = (_FRAME.match(line) for line in trace.splitlines())
    return place_in([(match["file"], int(match["line"])) for match in found if match])


def module_of(node: fx.Node) -> str:
    """The path of the module that `node` belongs to, "" for the outermost."""
    stack = node.meta.get("nn_module_stack") or {}
    if not stack:
        return ""
    path = str(list(stack.values())[-1][0])
    return _MEMBER.sub(r".\1", _ROOT.sub("", path)).lstrip(".")
