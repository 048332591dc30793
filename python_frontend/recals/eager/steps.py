"""A captured graph, analysed and planned for the inputs of one call."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx, nn

from recals._load import _C
from recals.arguments import device_name, limits
from recals.eager.aten import aten_of
from recals.eager.importer import Imported, Input, imported
from recals.eager.loss_part import LossPart
from recals.eager.settings import Goal, Settings
from recals.eager.watch import Watch
from recals.loss import Loss


class CapturedStep:
    """A graph as a module of TorchScript, and its inputs: what the passes take."""

    def __init__(
        self, graph_module: fx.GraphModule, arguments: tuple[Any, ...], part: LossPart | None, one_scalar: bool
    ) -> None:
        """The loss is `part`; without it the only number among the results, if `one_scalar` says so; else all results.

        Raises RecalsError, or anything that torch's tracing raises, if the graph cannot be captured.
        """
        self.parts: Imported = imported(*aten_of(graph_module, arguments))
        self.places = [number for number, value in enumerate(arguments) if isinstance(value, Tensor)]
        self.module: torch._C.ScriptModule = _C.module_of(self.parts.graph)
        known = part is not None and all(self.parts.results[number] is not None for number in part.outputs)
        self._part = part if known else None
        self._scalars = self.parts.scalars if one_scalar and part is None and len(self.parts.scalars) == 1 else []

    def inputs(self, arguments: tuple[Any, ...]) -> tuple[Tensor, ...]:
        """Of `module`, for the inputs of a call."""
        return (*(arguments[place] for place in self.places), *self.parts.constants)

    def loss(self, arguments: tuple[Any, ...]) -> Loss | None:
        """The loss as a function of the results of `module`; None if it is not known."""
        if self._part is not None:
            return self._part.of(arguments, lambda number: self.parts.results[number] or 0)
        if self._scalars:
            (scalar,) = self._scalars
            return lambda results: results[scalar]
        return None

    def reached(self) -> set[int]:
        """The results that the loss gives gradients to."""
        if self._part is not None:
            return {self.parts.results[number] or 0 for number in self._part.outputs}
        return set(self._scalars or self.parts.differentiable)


def owed_to(arguments: tuple[Any, ...]) -> dict[str, int]:
    """Bytes by device that training will hold for parameters besides the step: gradients that they do not have yet, and
    two numbers for each element, which is what Adam keeps."""
    owed: dict[str, int] = {}
    for value in arguments:
        if isinstance(value, nn.Parameter) and value.requires_grad:
            device = device_name(value.device)
            owed[device] = owed.get(device, 0) + value.nbytes * (2 if value.grad is not None else 3)
    return owed


class PlannedStep:
    """A captured step with a plan. Called with the inputs of the graph, it gives the outputs of the graph."""

    def __init__(
        self,
        captured: CapturedStep,
        analysed: Any,
        settings: Settings,
        goal: Goal,
        owed: dict[str, int],
        on_gradient: Callable[[], None],
    ) -> None:
        """`owed`: as `owed_to` gives it. `on_gradient` is called if a result gets a gradient that the loss of
        `captured` does not give it. Raises BudgetError."""
        self.captured = captured
        self._settings = settings
        self._owed = owed
        self._watch = Watch(captured.parts, captured.reached(), on_gradient)
        self._analysed: Any = analysed
        self.most: dict[str, int] = {}
        """By device: what a plan may hold at most, because another step that this graph belongs to needs the rest."""
        self.provisional = goal.lean
        """Made before it was known what else runs in the step."""
        self.plan_again(goal)

    def plan_again(self, goal: Goal) -> None:
        """Makes another plan of the same step. Raises BudgetError."""
        planned = self._settings.plan(self._analysed, goal)
        if self._owed and "auto" in limits(goal.budget).values():
            # The graph's own module has no parameters, so nothing was taken off for them.
            devices = json.loads(planned.plan())["devices"]
            free = {line["name"]: max(1, line["budget"] - self._owed.get(line["name"], 0)) for line in devices}
            planned = self._settings.plan(self._analysed, goal._replace(budget=free))
        self.plan: dict[str, Any] = json.loads(planned.plan())
        self.warnings: list[str] = list(planned.warnings)
        self._module = _C.lower(planned, None)
        self._forward = self._module._get_method("forward")

    def settle(self) -> None:
        """No other plan will be made: what only that needs goes."""
        self._analysed = None

    @property
    def settled(self) -> bool:
        return self._analysed is None

    @property
    def module(self) -> torch._C.ScriptModule:
        """With its plan, as the passes take it."""
        return self._module

    def bytes(self, what: str) -> dict[str, int]:
        """Of each device: "peak", "held", "plain_peak", "plain_held" or "budget"."""
        return {device["name"]: int(device[what]) for device in self.plan["devices"]}

    def __call__(self, *arguments: Any) -> tuple[Any, ...]:
        parts, places = self.captured.parts, self.captured.places
        results = self._forward(*(arguments[place] for place in places), *parts.constants)
        self._watch(results)
        return tuple(
            results[number]
            if number is not None
            else arguments[places[other.number]]
            if isinstance(other, Input)
            else other
            for number, other in zip(parts.results, parts.others, strict=True)
        )
