"""The main job: a module that trains within a budget."""

from __future__ import annotations

import json
from typing import Any

import torch
from torch.jit._recursive import wrap_cpp_module

from recals._load import _C
from recals.arguments import Budget, CostModel, cost_model_text, example_tuple, limits, script_module


def optimize(
    module: torch.jit.ScriptModule,
    example_inputs: Any,
    budget: Budget,
    *,
    method: str = "forward",
    cost_model: CostModel | None = None,
) -> torch.jit.ScriptModule:
    """A module that is used exactly as `module`, and whose training step stays within `budget`.

    It has a type of its own and the very same parameters, buffers and submodules, so an optimizer made earlier goes on
    working, and `module` itself is untouched. The plan holds for inputs of the shapes, dtypes and devices of
    `example_inputs` and for the present training/eval modes; without gradients, or in another mode, a call runs the
    plain method. A module that was optimised before is planned anew from its plain form: one method of a module has
    a plan.

    Args:
        module: scripted or traced.
        example_inputs: the method's positional arguments, as in a training step. Their values do not matter.
        budget: the most bytes that a step (forward, loss, backward) may hold above parameters, their gradients, and
            inputs: an int, "512MiB", "50%" of the plain step's own peak, or a dict from device name to those.
        method: the method that is called in training.
        cost_model: where the times of ops come from: "built-in", "calibrated" (by `recals.calibrate`), the path of such
            a file, or "profile" to measure this step's ops on the example inputs, which must then be real data. By
            default what the environment variable RECALS_COST_MODEL says, else "built-in". It decides which of the plans
            within the budget is thought the fastest, and never bits or bytes.

    Raises:
        BudgetError: no plan fits; its `smallest` and its text give the smallest budget that works.
        ValueError, TypeError: the budget, the module or the inputs are of the wrong kind.
        RecalsError: the method cannot be analysed; the text names the node and its source line.
    """
    module = script_module(module, "optimize")
    inputs = example_tuple(example_inputs)
    texts = limits(budget)
    return wrap_cpp_module(_C.optimise(module._c, method, inputs, texts, cost_model_text(cost_model)))


def restore(module: torch.jit.ScriptModule) -> torch.jit.ScriptModule:
    """The plain module that `module` was made from: the same tensors, the original methods.

    Raises RecalsError if `module` was not made by `optimize`.
    """
    return wrap_cpp_module(_C.restore(script_module(module, "restore")._c))


def plan_of(module: torch.jit.ScriptModule) -> dict[str, Any]:
    """The plan that `module` runs (docs/plan-format.md): budgets, predicted peaks in bytes, the cost model that it was
    made with, regions, and for every storage its fate and the reason. Raises RecalsError if `module` was not made by
    `optimize`."""
    plan: dict[str, Any] = json.loads(_C.plan_of(script_module(module, "plan_of")._c))
    return plan
