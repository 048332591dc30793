#!/usr/bin/env python3
"""Check that the layers include only what they may: each #include and import of the tree against the rules below.

usage: layers.py [repository root]

The CMake targets already keep LibTorch away from passes/plan; headers of this repository, though, are all found from
its root, so that a wrong include of one of them would compile.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ANY_TORCH = ("torch/", "ATen/", "c10/", "caffe2/")

# folder -> what may follow #include there; "<>" is any header without a folder, which is the standard library's shape.
# The longest folder that holds a file decides.
RULES: dict[str, tuple[str, ...]] = {
    "runtime": ("<>", *ANY_TORCH, "recals/export.h", "runtime/"),
    "runtime/cuda": ("<>", *ANY_TORCH, "recals/export.h", "runtime/"),
    "passes/plan": ("<>", "nlohmann/", "passes/plan/"),
    "passes/meta": ("<>", *ANY_TORCH, "runtime/device_table.h", "passes/meta/"),
    "passes/graph": ("<>", *ANY_TORCH, "runtime/", "passes/meta/", "passes/graph/"),
    "passes/measure": ("<>", *ANY_TORCH, "sys/", "runtime/", "passes/measure/"),
    "passes/sizes": (
        "<>", *ANY_TORCH, "nlohmann/", "runtime/", "passes/measure/", "passes/meta/", "passes/graph/", "passes/plan/",
        "passes/sizes/",
    ),
    "passes/report": (
        "<>", *ANY_TORCH, "nlohmann/", "runtime/", "passes/plan/", "passes/sizes/", "passes/report/",
    ),
    "passes/boundaries": (
        "<>", *ANY_TORCH, "runtime/", "passes/graph/", "passes/plan/", "passes/sizes/", "passes/boundaries/",
    ),
    "passes/lower": (
        "<>", *ANY_TORCH, "runtime/", "passes/graph/", "passes/plan/", "passes/boundaries/", "passes/lower/",
    ),
    "passes/verify": ("<>", *ANY_TORCH, "runtime/", "passes/graph/", "passes/plan/", "passes/verify/"),
    "passes": ("<>", *ANY_TORCH, "nlohmann/", "recals/export.h", "runtime/", "passes/"),
    "python_frontend": (
        "<>", *ANY_TORCH, "nlohmann/", "pybind11/", "Python.h", "recals/export.h", "runtime/", "passes/",
        "python_frontend/",
    ),
    "tools": ("<>", *ANY_TORCH, "nlohmann/", "CLI/", "sys/", "runtime/", "passes/", "tools/"),
    "test/core": ("<>", "nlohmann/", "gtest/", "gmock/", "passes/plan/", "test/core/"),
    "test/oracle": ("<>", "nlohmann/", "passes/plan/", "test/core/"),
}  # fmt: skip

# Headers of LibTorch that bring Python: only the binding may. python_print.h prints TorchScript, without Python.
PYTHON = re.compile(
    r"^(Python\.h|pybind11/|torch/extension\.h|torch/python\.h"
    r"|torch/csrc/(utils/pybind\.h|(?!jit/serialization/python_print\.h$).*python.*))"
)
PYTHON_ALLOWED = ("python_frontend",)

# Headers of CUDA, and of LibTorch's part for it, which a LibTorch without CUDA lacks or cannot compile.
CUDA = re.compile(r"^(cuda[_a-z]*\.h|(ATen|c10)/cuda/|torch/csrc/cuda/)")
CUDA_ALLOWED = ("runtime/cuda/", "test/cuda/")

# Benchmarks time the steps that the tests are made of.
TESTS = ("test/", "benchmarks/")

INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')
SUFFIXES = {".h", ".hpp", ".cpp", ".cc", ".inc", ".cu", ".cuh"}
FOLDERS = ("runtime", "passes", "python_frontend", "tools", "test", "examples", "benchmarks")


def rule_of(path: str) -> tuple[str, tuple[str, ...]] | None:
    """The folder whose rule holds for `path`, and the rule."""
    holding = [folder for folder in RULES if path.startswith(folder + "/")]
    return max(((folder, RULES[folder]) for folder in holding), key=lambda rule: len(rule[0]), default=None)


def allowed(target: str, rule: tuple[str, ...]) -> bool:
    """Whether a rule lets `target` be included. A path in it that climbs is never allowed."""
    if ".." in target.split("/"):
        return False
    if "/" not in target and target != "Python.h":
        return "<>" in rule
    return any(target == entry or (entry.endswith("/") and target.startswith(entry)) for entry in rule)


def problems_in(path: str, text: str) -> list[str]:
    """What the file at `path` (from the root) includes and may not, one line each."""
    problems = []
    found = rule_of(path)
    for number, line in enumerate(text.splitlines(), 1):
        match = INCLUDE.match(line)
        if not match:
            continue
        quote, target = match.groups()
        if target.startswith("test/") and not path.startswith(TESTS):
            problems.append(f'{path}:{number}: includes "{target}": only tests and benchmarks may include test/')
        elif CUDA.match(target) and not path.startswith(CUDA_ALLOWED):
            problems.append(f'{path}:{number}: includes "{target}": only {", ".join(CUDA_ALLOWED)} may know CUDA')
        elif target.startswith("runtime/cuda/") and not path.startswith(CUDA_ALLOWED):
            problems.append(f'{path}:{number}: includes "{target}": it is loaded, not included')
        elif PYTHON.match(target) and not path.startswith(PYTHON_ALLOWED):
            problems.append(f'{path}:{number}: includes "{target}": only python_frontend/ may know Python')
        elif found and not allowed(target, found[1]):
            folder, rule = found
            problems.append(f'{path}:{number}: includes "{target}": {folder}/ may include only {", ".join(rule)}')
        elif quote == '"' and "/" not in target and not path.startswith("test/"):
            problems.append(f'{path}:{number}: includes "{target}": write the path from the repository root')
    return problems


def self_check() -> None:
    """The rules reject what they are there to reject; otherwise an empty answer would mean nothing."""
    for path, line, bad in [
        ("passes/plan/a.cpp", "#include <vector>", False),
        ("passes/plan/a.cpp", '#include "passes/plan/plan.h"', False),
        ("passes/plan/a.cpp", "#include <nlohmann/json.hpp>", False),
        ("passes/plan/a.cpp", "#include <ATen/ATen.h>", True),
        ("passes/plan/a.cpp", '#include "runtime/ops.h"', True),
        ("passes/plan/a.cpp", '#include "passes/plan/../sizes/sizes.h"', True),
        ("passes/sizes/a.cpp", '#include "passes/lower/lower.h"', True),
        ("runtime/a.cpp", '#include "passes/plan/plan.h"', True),
        ("runtime/a.cpp", "#include <torch/extension.h>", True),
        ("runtime/a.cpp", "#include <Python.h>", True),
        ("runtime/a.cpp", "#include <torch/csrc/autograd/python_variable.h>", True),
        ("runtime/a.cpp", "#include <torch/library.h>", False),
        ("runtime/a.cpp", "#include <ATen/cuda/CUDAGeneratorImpl.h>", True),
        ("runtime/a.cpp", "#include <cuda_runtime_api.h>", True),
        ("runtime/a.cpp", '#include "runtime/cuda/cuda_rng.h"', True),
        ("runtime/cuda/a.cpp", "#include <ATen/cuda/CUDAGeneratorImpl.h>", False),
        ("runtime/cuda/a.cpp", "#include <cuda_runtime_api.h>", False),
        ("runtime/cuda/a.cpp", '#include "runtime/rng_backend.h"', False),
        ("runtime/cuda/a.cpp", '#include "passes/plan/plan.h"', True),
        ("tools/a.cpp", "#include <torch/csrc/jit/serialization/python_print.h>", False),
        ("tools/a.cpp", "#include <torch/csrc/jit/python/pybind_utils.h>", True),
        ("passes/a.cpp", '#include "test/unit/helpers.h"', True),
        ("test/core/a.cpp", '#include "runtime/ops.h"', True),
        ("test/unit/a.cpp", '#include "test/unit/helpers.h"', False),
        ("benchmarks/a.cpp", '#include "test/core/families.h"', False),
        ("runtime/a.cpp", '#include "ops.h"', True),
    ]:
        assert bool(problems_in(path, line)) == bad, (path, line, problems_in(path, line))


def main() -> int:
    root = Path(sys.argv[1] if len(sys.argv) > 1 else ".")
    self_check()
    problems = []
    count = 0
    for folder in FOLDERS:
        for file in sorted((root / folder).rglob("*")):
            if file.suffix in SUFFIXES and file.is_file():
                count += 1
                problems += problems_in(file.relative_to(root).as_posix(), file.read_text(encoding="utf-8"))
    for problem in problems:
        print(problem, file=sys.stderr)
    print(f"layers: {count} files, {len(problems)} problems")
    return 1 if problems or count == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
