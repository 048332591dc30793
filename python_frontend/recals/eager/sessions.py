"""A model that is optimised in place: its calls, its graphs, and the plans of them together."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx, nn

from recals._errors import RecalsError
from recals.eager import dynamo
from recals.eager.graphs import PLANNING, CapturedGraph
from recals.eager.joint import plan_together
from recals.eager.loss_part import traced_call
from recals.eager.once import Once
from recals.eager.settings import Goal, Settings
from recals.eager.steps import PlannedStep


class Looked(BaseException):
    """Ends a call that is only to be planned, before anything of it runs."""


class NotPlanned(BaseException):
    """Ends a call whose only graph is refused, before anything of it runs: Python runs all of it.

    Dynamo's graph would do, but for models that ask whether they are compiled, and then compute in another way.
    """


@dataclass
class Call:
    """One call of the model."""

    look: bool = False
    reasons: dynamo.Reasons = field(default_factory=dynamo.Reasons)
    trail: list[tuple[CapturedGraph, str]] = field(default_factory=list)
    """The graphs that it runs, in order, each with its signature."""
    found: tuple[PlannedStep, tuple[Any, ...]] | None = None
    """Of a call that is only to be planned: the plan of its first graph, and that one's inputs."""
    new: list[PlannedStep] = field(default_factory=list)
    """Plans that it made."""


class Session(Once):
    """What `recals.optimize` knows of a model; dynamo's backend for it."""

    def __init__(self, settings: Settings, name: str) -> None:
        super().__init__(f"a part of {name}", settings.on_mismatch)
        self.settings = settings
        self.graphs: list[CapturedGraph] = []
        self._name = name
        self._local = threading.local()
        self._trained = False
        self._whole = True
        self._shapes: set[str] = set()
        self.all_outputs_count = False
        self._together: set[tuple[tuple[int, str], ...]] = set()

    # --- dynamo's side ------------------------------------------------------------------------------------------------

    def __call__(self, graph_module: fx.GraphModule, example_inputs: Any) -> Any:
        if not torch.is_grad_enabled():
            return graph_module.forward
        graph = CapturedGraph(graph_module, self)
        self.graphs.append(graph)
        return graph

    # --- the graphs' side: Owner --------------------------------------------------------------------------------------

    def begins(self, graph: CapturedGraph, signature: str, new: str) -> bool:
        call = self._call()
        call.trail.append((graph, signature))
        free = call.look or not self._trained or self.settings.on_new_shape == "plan"
        if free or not new or new in self._shapes:
            self._shapes.add(new)
            return True
        text = (
            f"recals: {self._name} is called with inputs that it was not planned for: {_shortened(signature)}. "
            "on_new_shape='plan' makes a plan for each shape"
        )
        if self.settings.on_new_shape == "error":
            raise RecalsError(text)
        self.warn("new shape", text + "; this step and others like it run plain, outside of the budget")
        return False

    def goal_of(self, graph: CapturedGraph) -> Goal:
        self._say_break(graph)
        return Goal(self.settings.budget) if self._is_alone(graph) else Goal("min", lean=True)

    def _say_break(self, graph: CapturedGraph) -> None:
        if graph.breaks is not None:
            why, place = graph.breaks
            self.warn(
                f"break{why}{place}",
                f"recals: {self._name} does not become one graph: it breaks{place} ({why}). Its graphs are planned "
                "together after the first step, which keeps as little as it can; what runs between them is not counted",
            )

    def one_scalar_is_loss(self, graph: CapturedGraph) -> bool:
        return not self.all_outputs_count and self._is_alone(graph)

    def _is_alone(self, graph: CapturedGraph) -> bool:
        """Whether `graph` is all of the model, as far as is known when it is called."""
        call = self._call()
        return self._whole and graph.breaks is None and len(call.trail) == 1 and not call.reasons.new()

    def planned(self, graph: CapturedGraph, step: PlannedStep) -> None:
        for text in step.warnings:
            self.warn(text, text, UserWarning)
        self._call().new.append(step)

    def runs(self, graph: CapturedGraph, refused: bool, step: PlannedStep | None, arguments: tuple[Any, ...]) -> None:
        call = self._call()
        if call.look:
            call.found = None if step is None else (step, arguments)
            raise Looked
        if refused and self._is_alone(graph):
            raise NotPlanned

    def gradient_came(self) -> None:
        if not self.all_outputs_count:
            self.all_outputs_count = True  # the next step is planned anew
            for graph in self.graphs:
                graph.forget()
            self._together.clear()
            self.warn(
                "gradient",
                f"recals: an output of {self._name} that was taken for no part of the loss has got a gradient, so this "
                "step may hold more than its budget; from the next one on each output counts. Say what the loss is: "
                "recals.optimize(..., loss=lambda out: ...)",
            )

    # --- the model's side ---------------------------------------------------------------------------------------------

    def run(self, compiled: Any, plain: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        """A call of the model."""
        call = Call()
        outer, self._local.call = getattr(self._local, "call", None), call
        try:
            with dynamo.settings():
                result = compiled(*arguments, **keywords)
        except NotPlanned:
            self._trained = True
            return plain(*arguments, **keywords)
        except Exception as error:
            if dynamo.reached_its_limit(error):
                raise RecalsError(
                    f"recals: {self._name} was compiled too often, for inputs or attributes that always differ: {error}"
                ) from error
            if not dynamo.is_dynamos_own(error) or call.trail:
                raise
            first = str(error).strip().splitlines()[0]
            self.cannot_plan(f"cannot be captured by torch: {type(error).__name__}: {first}")
            return plain(*arguments, **keywords)
        finally:
            self._local.call = outer
        self._after(call, result)
        return result

    def look(self, compiled: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Call:
        """Plans for such a call, without running it."""
        call = Call(look=True)
        outer, self._local.call = getattr(self._local, "call", None), call
        try:
            with dynamo.settings(), torch.enable_grad():
                compiled(*arguments, **keywords)
        except Looked:
            pass
        finally:
            self._local.call = outer
        self._settle(call)
        return call

    def plans(self) -> list[dict[str, Any]]:
        """Of every graph and signature: the plan, with the signature."""
        return [
            {"graph": number, "signature": signature, **step.plan}
            for number, graph in enumerate(self.graphs)
            for signature, step in graph.plans.items()
            if step is not None
        ]

    def _after(self, call: Call, result: Any) -> None:
        self._trained = True
        for graph, _ in call.trail:
            self._say_break(graph)
        broken = any(graph.breaks is not None for graph, _ in call.trail)
        if not call.trail and _needs_gradient(result):
            why = "; ".join(call.reasons.new())
            if why or not self.said:
                self.cannot_plan(f"cannot be captured by torch: {why or 'TORCH_LOGS=graph_breaks tells why'}")
        elif not broken and (new := call.reasons.new()):
            self.warn(
                new[0],
                f"recals: {self._name} does not become one graph ({'; '.join(new)}). Its graphs are planned together "
                "after the first step; what runs outside of them is not counted",
            )
        trail = tuple((id(graph), signature) for graph, signature in call.trail)
        steps = [graph.plans.get(signature) for graph, signature in call.trail]
        planned = [step for step in steps if step is not None]
        with PLANNING:
            if trail not in self._together and (len(planned) > 1 or any(step.provisional for step in planned)):
                plan_together(planned, self.settings.budget)
                self._together.add(trail)
        self._settle(call)

    def _settle(self, call: Call) -> None:
        self._whole = self._whole and not call.reasons.new()
        if self._whole and len(call.trail) == 1 and call.trail[0][0].breaks is None:
            for step in call.new:
                step.settle()

    def _call(self) -> Call:
        call = getattr(self._local, "call", None)
        return call if call is not None else Call()


def _needs_gradient(result: Any) -> bool:
    leaves = torch.utils._pytree.tree_leaves(result)
    return any(isinstance(leaf, torch.Tensor) and leaf.requires_grad for leaf in leaves)


def _shortened(signature: str) -> str:
    return signature if len(signature) < 300 else signature[:300] + " ..."


def compiled_call(model: nn.Module, session: Session) -> Any:
    """`model`'s call through dynamo. With a loss= it is traced behind the model, and what it gives is left out."""
    loss = session.settings.loss
    compiled = torch.compile(traced_call(model, loss), backend=session)
    if loss is None:
        return compiled

    def without_loss(*arguments: Any, **keywords: Any) -> Any:
        return compiled(*arguments, **keywords)[0]

    return without_loss
