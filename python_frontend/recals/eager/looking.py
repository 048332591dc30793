"""A model's step as the passes take it, from example inputs, without running anything of it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, fx, nn

from recals._errors import RecalsError
from recals.eager import dynamo
from recals.eager.graphs import break_of
from recals.eager.loss_part import split_loss, traced_call
from recals.eager.refusals import refusals
from recals.eager.regions import without_checkpoints, without_idle_autocasts
from recals.eager.steps import CapturedStep
from recals.loss import Loss


class _Captured(BaseException):
    """Ends the call before the graph runs."""

    def __init__(self, step: CapturedStep, inputs: tuple[Tensor, ...], loss: Loss | None) -> None:
        super().__init__()
        self.step = step
        self.inputs = inputs
        self.loss = loss


def _capture(graph_module: fx.GraphModule, arguments: tuple[Any, ...]) -> None:
    breaks = break_of(graph_module)
    if breaks is not None:
        raise RecalsError(
            f"recals: the model does not become one graph: {breaks[0]}. Only recals.optimize plans the graphs of "
            "such a model"
        )
    plain, part = split_loss(without_checkpoints(graph_module))
    plain = without_idle_autocasts(plain)
    for refusal in refusals(plain):
        raise RecalsError(f"recals: the model {refusal}, which cannot be planned")
    step = CapturedStep(plain, arguments, part, one_scalar=True)
    raise _Captured(step, step.inputs(arguments), step.loss(arguments))


def captured_step(
    model: nn.Module, arguments: tuple[Any, ...], keywords: dict[str, Any], loss: Loss | None
) -> tuple[torch._C.ScriptModule, tuple[Tensor, ...], Loss | None]:
    """The training step of `model` for such arguments: a module of TorchScript, its inputs, and the loss as a function
    of its results. Raises RecalsError for a model that does not become one graph that can be planned."""

    def backend(graph_module: fx.GraphModule, example_inputs: Any) -> Any:
        return lambda *given: _capture(graph_module, given)

    try:
        with dynamo.settings(), torch.enable_grad():
            torch.compile(traced_call(model, loss), backend=backend)(*arguments, **keywords)
    except _Captured as captured:
        return captured.step.module, captured.inputs, captured.loss
    raise RecalsError("recals: the model has no tensor op that depends on its inputs, so there is nothing to train")
