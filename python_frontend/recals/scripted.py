"""Scripted modules that train within a budget."""

from __future__ import annotations

import json
import warnings
from typing import Any

import torch

from recals._errors import CaptureWarning
from recals._load import _C
from recals.arguments import Budget, OnMismatch, Pins, planning_options
from recals.capture import capture_warnings
from recals.wrapping import wrap


def optimize_scripted(
    module: torch.jit.ScriptModule,
    inputs: tuple[Any, ...],
    budget: Budget,
    pins: Pins | None,
    method: str,
    on_mismatch: OnMismatch,
    options: Any,
) -> torch.jit.ScriptModule:
    """A module like `module` with a plan; `options` as `step_options` gives them."""
    analysed = _C.analyse(module._c, method, inputs, options)
    planned = _C.plan_step(analysed, planning_options(analysed, budget, pins, on_mismatch))
    for text in capture_warnings(module, analysed.graph):
        warnings.warn(text, CaptureWarning, stacklevel=3)
    for text in planned.warnings:
        warnings.warn(text, stacklevel=3)
    return wrap(_C.lower(planned, None), module)


def restore_scripted(module: torch.jit.ScriptModule) -> torch.jit.ScriptModule:
    """The plain module that `module` was made from. Raises RecalsError if it was not made by `optimize`."""
    return wrap(_C.restore(module._c), module)


def plan_of_scripted(module: torch.jit.ScriptModule) -> dict[str, Any]:
    """The plan that `module` runs. Raises RecalsError if it was not made by `optimize`."""
    plan: dict[str, Any] = json.loads(_C.plan_of(module._c))
    return plan
