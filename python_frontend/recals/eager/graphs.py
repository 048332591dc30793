"""One graph of dynamo: what it is called with decides which of its plans runs."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Any, Protocol

import torch
from torch import Tensor, fx

from recals._errors import RecalsError
from recals._load import _C
from recals.eager.loss_part import split_loss
from recals.eager.numbers import Numbers
from recals.eager.places import Place, place_in
from recals.eager.refusals import refusals
from recals.eager.regions import without_checkpoints, without_idle_autocasts
from recals.eager.settings import Goal, Settings
from recals.eager.steps import CapturedStep, PlannedStep, owed_to

PLANNING = threading.RLock()
"""One plan at a time: the passes work on types that modules share."""


class Owner(Protocol):
    """Whose step the graphs are."""

    settings: Settings
    all_outputs_count: bool
    """Whether each output is to have a gradient, whatever the loss is said to be."""

    def begins(self, graph: CapturedGraph, signature: str, new: str) -> bool:
        """Says that a graph is called. `new`: the shapes of its tensors, if it has no plan for them, else "".

        False: it is to run plain. May raise RecalsError.
        """

    def goal_of(self, graph: CapturedGraph) -> Goal:
        """For the plan of a graph that is called now, for the first time with these inputs."""

    def one_scalar_is_loss(self, graph: CapturedGraph) -> bool:
        """Whether the only number among the results of a graph that is called now is the loss."""

    def planned(self, graph: CapturedGraph, step: PlannedStep) -> None:
        """Says that a plan was made."""

    def runs(self, graph: CapturedGraph, refused: bool, step: PlannedStep | None, arguments: tuple[Any, ...]) -> None:
        """Says that a graph is about to run; `refused`: as dynamo has captured it. May raise, so that it does not."""

    def cannot_plan(self, text: str) -> None:
        """A graph will run plain: warns, or raises RecalsError."""

    def gradient_came(self) -> None:
        """A result that was to have no gradient has got one."""


def break_of(graph_module: fx.GraphModule) -> tuple[str, Place] | None:
    """Why and where a graph ends before the model does; None if it does not."""
    reason = getattr(graph_module, "compile_subgraph_reason", None)
    if reason is None or not reason.graph_break:
        return None
    frames = [(frame.filename, frame.lineno or 0) for frame in reason.user_stack]
    return str(reason.reason).strip().splitlines()[0], place_in(frames)


def _shapes(arguments: tuple[Any, ...]) -> str:
    """The same for graphs that dynamo has made of one model, whichever sizes it has as inputs, and in which order."""
    return ", ".join(sorted(_C.step_text((value,)) for value in arguments if isinstance(value, Tensor)))


class CapturedGraph:
    """What dynamo calls in the place of a graph."""

    def __init__(self, graph_module: fx.GraphModule, owner: Owner) -> None:
        self._owner = owner
        self.breaks = break_of(graph_module)
        self._plain, self._loss = split_loss(without_checkpoints(graph_module))
        self._numbers: Numbers | None = None
        self._refused: set[str] = set()
        self.plans: OrderedDict[str, PlannedStep | None] = OrderedDict()
        """By signature; None: it runs plain."""

    def __call__(self, *arguments: Any) -> Any:
        if not torch.is_grad_enabled():
            return self._plain.forward(*arguments)
        if self._numbers is None:
            self._numbers = Numbers(self._plain, arguments)
        signature = _C.step_text(tuple(arguments[place] for place in self._numbers.read))
        step = self._step_for(signature, arguments)
        self._owner.runs(self, signature in self._refused, step, arguments)
        return self._plain.forward(*arguments) if step is None else self._numbers.put(arguments, step(*arguments))

    def _step_for(self, signature: str, arguments: tuple[Any, ...]) -> PlannedStep | None:
        new = "" if signature in self.plans else _shapes(arguments)
        if not self._owner.begins(self, signature, new):
            self._refused.add(signature)
            return None
        with PLANNING:
            if signature not in self.plans:
                self.plans[signature] = self._make(signature, arguments)
                while len(self.plans) > self._owner.settings.max_plans:
                    self.plans.popitem(last=False)
            self.plans.move_to_end(signature)
            return self.plans[signature]

    def forget(self) -> None:
        """All plans, so that they are made anew."""
        with PLANNING:
            self.plans.clear()

    def _make(self, signature: str, arguments: tuple[Any, ...]) -> PlannedStep | None:
        graph_module = without_idle_autocasts(self._plain)
        for refusal in refusals(graph_module):
            self._refuse(signature, str(refusal))
            return None
        settings = self._owner.settings
        part = None if self._owner.all_outputs_count else self._loss
        one_scalar = self._owner.one_scalar_is_loss(self)
        try:
            captured = CapturedStep(graph_module, arguments, part, one_scalar)
            if not captured.parts.differentiable:
                return None  # nothing to train in it, so nothing is saved for a backward
            options = settings.analysis(captured.loss(arguments))
            analysed = _C.analyse(captured.module, "forward", captured.inputs(arguments), options)
        except (RecalsError, RuntimeError, NotImplementedError, AssertionError) as error:
            self._refuse(signature, str(error))
            return None
        goal = self._owner.goal_of(self)
        owed = owed_to(arguments)
        step = PlannedStep(captured, analysed, settings, goal, owed, self._owner.gradient_came)
        self._owner.planned(self, step)
        return step

    def _refuse(self, signature: str, why: str) -> None:
        self._refused.add(signature)
        self._owner.cannot_plan(why.removeprefix("recals: ").splitlines()[0])
