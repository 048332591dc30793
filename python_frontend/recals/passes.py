"""The passes one by one, on ``torch._C.Graph``: graph -> sizes -> plan -> boundaries -> lower.

analysis = recals.passes.analyse(module, (x,))        # specialised graph, and the step's sizes
planned = recals.passes.plan(analysis, "50%")          # the plan, written into a copy of the graph as recals:: ops
net = recals.passes.lower(module, planned)             # methods that survive torch.jit.save

Passes of your own stand between them: see `register_pass`.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import torch

from recals._load import _C
from recals.arguments import (
    Budget,
    CostModel,
    Device,
    GpuDevices,
    Pins,
    Scratch,
    example_tuple,
    planning_options,
    script_module,
    step_options,
)
from recals.loss import Loss
from recals.report import Report, report_from
from recals.wrapping import wrap


class Analysis:
    """A method of a module for given input shapes: its straight-line graph, and what its plain step holds."""

    def __init__(self, handle: Any, method: str) -> None:
        self._handle = handle
        self.method = method

    @property
    def graph(self) -> torch._C.Graph:
        """The tensor ops in execution order; inputs are the module and the tensors of the example inputs."""
        graph: torch._C.Graph = self._handle.graph
        return graph

    @property
    def attributes(self) -> list[str]:
        """Non-tensor attributes that the graph depends on, "bn1.training=True"."""
        return list(self._handle.attributes)

    @property
    def report(self) -> Report:
        """What the plain step holds, as `recals.estimate` gives it."""
        return report_from(self._handle.report())


class Planned:
    """A plan for an analysed step."""

    def __init__(self, handle: Any) -> None:
        self._handle = handle

    @property
    def graph(self) -> torch._C.Graph:
        """The analysed graph with the plan's regions and marks."""
        graph: torch._C.Graph = self._handle.graph
        return graph

    @property
    def peak(self) -> dict[str, int]:
        """Device -> bytes: the peak of the step under the plan, of a run on meta tensors."""
        return dict(self._handle.peak)

    @property
    def simulated_peak(self) -> dict[str, int]:
        """Device -> bytes: the peak that the planner's simulator gives for the same plan."""
        return dict(self._handle.simulated_peak)

    @property
    def report(self) -> Report:
        """What the step holds under the plan."""
        return report_from(self._handle.report())

    @property
    def plan(self) -> dict[str, Any]:
        """The plan as `recals.plan_of` gives it."""
        plan: dict[str, Any] = json.loads(self._handle.plan())
        return plan


def analyse(
    module: torch.jit.ScriptModule,
    example_inputs: Any,
    *,
    method: str = "forward",
    cost_model: CostModel | None = None,
    target_device: Device | None = None,
    workspace_margin: int | None = None,
    scratch: Scratch | None = None,
    loss: Loss | None = None,
    preserve_rng_state: bool = True,
    gpu_devices: GpuDevices = "all",
) -> Analysis:
    """passes/graph and passes/sizes, and the passes that were registered after them. Errors are those of
    `recals.optimize`."""
    module = script_module(module, "analyse")
    inputs = example_tuple(example_inputs)
    options = step_options(
        cost_model=cost_model,
        target_device=target_device,
        workspace_margin=workspace_margin,
        scratch=scratch,
        loss=loss,
        preserve_rng_state=preserve_rng_state,
        gpu_devices=gpu_devices,
    )
    return Analysis(_C.analyse(module._c, method, inputs, options), method)


def plan(analysis: Analysis, budget: Budget, *, pins: Pins | None = None) -> Planned:
    """passes/plan and passes/boundaries, and the passes that were registered after them. `pins`: as for
    `recals.optimize`.

    Raises BudgetError, ValueError.
    """
    return Planned(_C.plan_step(analysis._handle, planning_options(analysis._handle, budget, pins)))


def remove_boundaries(graph: torch._C.Graph) -> bool:
    """Takes every recals:: op out of a planned graph again; returns whether there was one."""
    return bool(_C.remove_boundaries(graph))


def lower(module: torch.jit.ScriptModule, planned: Planned) -> torch.jit.ScriptModule:
    """passes/lower: the rewritten module. `module` must be the one that was analysed."""
    module = script_module(module, "lower")
    return wrap(_C.lower(planned._handle, module._c), module)


def available() -> dict[str, str]:
    """Every pass that a pipeline may name, with what it does."""
    return dict(_C.passes())


def register_pass(name: str, function: Callable[[torch._C.Graph], object], *, after: str = "graph") -> None:
    """Puts a pass of your own into the pipeline of `recals.optimize`, `recals.estimate` and this module.

    `function` changes the graph in place (or only reads it); what it returns is ignored. The graph is verified when it
    has returned. An exception in it stops the pipeline and reaches the caller as a RecalsError.

    Args:
        name: letters, digits, "-" and "_"; recals-opt's `--passes` knows passes of C++ libraries by such names.
        function: takes the graph that stands there.
        after: the pass behind which it runs: "graph" (the graph may be changed freely: sizes and plan are made from
            what it leaves), "sizes" or "plan" (it may look, but not change), "boundaries" (the planned graph; if it is
            changed, its peak is measured again and must still be within the budget), or a pass that was registered
            before.

    Raises ValueError if the name is taken or `after` is unknown.
    """
    _C.register_pass(name, function, after)


def unregister_pass(name: str) -> None:
    """Takes a registered pass out again. Raises ValueError if there is none, or another one stands after it."""
    _C.unregister_pass(name)
