"""`torch.compile(model, backend="recals", options={"budget": ...})`: an entry point that torch finds by name."""

from __future__ import annotations

import warnings
from dataclasses import fields
from typing import Any

import torch
from torch import fx

from recals._errors import RecalsError
from recals.eager.facade import disabled
from recals.eager.graphs import CapturedGraph
from recals.eager.once import Once
from recals.eager.settings import Goal, Settings
from recals.eager.steps import PlannedStep


class _Alone(Once):
    """The owner of a graph of which no more is known: its budget is the graph's own."""

    def __init__(self, settings: Settings) -> None:
        super().__init__("a compiled graph", settings.on_mismatch)
        self.settings = settings
        self._planned = False
        self.all_outputs_count = False
        self._forget = False

    def begins(self, graph: CapturedGraph, signature: str, new: str) -> bool:
        if self._forget:
            self._forget = False
            graph.forget()
            return True
        if not new or not self._planned or self.settings.on_new_shape == "plan":
            return True
        text = "recals: a compiled graph is called with shapes that it was not planned for"
        if self.settings.on_new_shape == "error":
            raise RecalsError(text)
        text += "; it runs plain, outside of the budget"
        self.warn(text, text)
        return False

    def goal_of(self, graph: CapturedGraph) -> Goal:
        if graph.breaks is None:
            return Goal(self.settings.budget)
        why, place = graph.breaks
        text = (
            f"recals: the compiled model breaks into several graphs{place} ({why}), and a backend of torch.compile "
            "sees one at a time: this one is planned as small as it can be, and the budget of the step is not "
            "promised. recals.optimize(model, budget=...) plans them together"
        )
        self.warn(text, text)
        return Goal("min", lean=True)

    def one_scalar_is_loss(self, graph: CapturedGraph) -> bool:
        return graph.breaks is None and not self.all_outputs_count

    def planned(self, graph: CapturedGraph, step: PlannedStep) -> None:
        self._planned = True
        step.settle()
        for text in step.warnings:
            warnings.warn(text, stacklevel=2)

    def runs(self, graph: CapturedGraph, refused: bool, step: PlannedStep | None, arguments: tuple[Any, ...]) -> None:
        pass

    def gradient_came(self) -> None:
        if not self.all_outputs_count:
            self.all_outputs_count = self._forget = True
            self.warn(
                "gradient",
                "recals: an output of a compiled graph that was taken for no part of the loss has got a gradient, so "
                "this step may hold more than its budget; from the next one on each output counts",
            )


def _settings(options: dict[str, Any]) -> Settings:
    known = {entry.name for entry in fields(Settings)} - {"loss"}
    unknown = sorted(set(options) - known)
    if unknown:
        raise ValueError(f"recals: the backend has no option {unknown[0]!r}; there are {', '.join(sorted(known))}")
    if "budget" not in options:
        raise ValueError('recals: the backend needs a budget: torch.compile(..., options={"budget": "8GiB"})')
    settings = Settings(**options)
    settings.check()
    return settings


def backend(
    graph_module: fx.GraphModule, example_inputs: Any, *, options: dict[str, Any] | None = None, **_: Any
) -> Any:
    """As torch calls it. `options`: those of `recals.optimize` by name, without loss."""
    settings = _settings(options or {})
    if disabled() or not torch.is_grad_enabled():
        return graph_module.forward
    return CapturedGraph(graph_module, _Alone(settings))
