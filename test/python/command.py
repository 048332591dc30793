"""recals-opt as a process, for tests."""

import os
import subprocess
from pathlib import Path
from typing import Any

import recals
import torch
from torch import Tensor

COMMAND = Path(recals.__file__).parent / "bin" / "recals-opt"

DTYPES = {torch.float32: "f32", torch.float64: "f64", torch.int64: "i64", torch.bool: "b8"}


def command_line(arguments: tuple[Any, ...]) -> dict[str, Any]:
    """The command and its environment, which holds nothing of Python's."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    return {"args": [COMMAND, *map(str, arguments)], "env": environment, "text": True}


def begin(*arguments: Any) -> subprocess.Popen[str]:
    """Starts the command beside this process."""
    return subprocess.Popen(**command_line(arguments), stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def recals_opt(*arguments: Any, expect: int | None = 0, **how: Any) -> subprocess.CompletedProcess[str]:
    """Runs the command; `expect` is its exit code, None for any."""
    done = subprocess.run(**command_line(arguments), capture_output=True, timeout=120, check=False, **how)
    assert expect is None or done.returncode == expect, (done.returncode, done.stderr)
    return done


def failure(*arguments: Any, expect: int, **how: Any) -> str:
    """The one line that a failing command prints; nothing is on stdout."""
    done = recals_opt(*arguments, expect=expect, **how)
    assert done.stdout == ""
    assert done.stderr.startswith("recals-opt: ")
    assert done.stderr.endswith("\n")
    assert done.stderr.count("\n") == 1
    return done.stderr


def spec_of(value: Any) -> str:
    """A value as recals-opt reads it."""
    if isinstance(value, Tensor):
        grad = "+grad" if value.requires_grad else ""
        strides = "" if value.is_contiguous() else f" strides{list(value.stride())}"
        return f"{DTYPES[value.dtype]}{list(value.shape)}{strides}@{value.device}{grad}"
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    if isinstance(value, dict):
        return "{" + ", ".join(f"{spec_of(key)}: {spec_of(item)}" for key, item in value.items()) + "}"
    if isinstance(value, tuple):
        return "(" + ", ".join(map(spec_of, value)) + ")"
    if isinstance(value, list):
        return "[" + ", ".join(map(spec_of, value)) + "]"
    return str(value)


def inputs_of(values: tuple[Any, ...]) -> list[str]:
    return [f"--input={spec_of(value)}" for value in values]
