"""A step as the passes take it, of scripted and of eager modules alike."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from recals.arguments import example_tuple, positional, torch_module
from recals.eager.facade import planned_step
from recals.eager.looking import captured_step
from recals.loss import Loss


def step_of(
    module: nn.Module,
    what: str,
    example_inputs: Any,
    example_kwargs: dict[str, Any] | None,
    method: str,
    loss: Loss | None,
    under_its_plan: bool = True,
) -> tuple[torch._C.ScriptModule, tuple[Any, ...], Loss | None]:
    """The module whose `method` is the step, its inputs, and the loss as a function of what that returns.

    An eager module that `optimize` has made gives the step of its plan, with the loss that it was planned with.

    Raises TypeError for what is no module, RecalsError for an eager one that cannot be captured.
    """
    if isinstance(module, torch.jit.ScriptModule):
        return module._c, positional(example_inputs, example_kwargs), loss
    torch_module(module, what)
    if method != "forward":
        raise TypeError("recals: method= is for scripted modules; the step of an eager module is its call")
    arguments = () if example_inputs is None else example_tuple(example_inputs)
    planned = planned_step(module, arguments, example_kwargs or {}) if under_its_plan else None
    return planned or captured_step(module, arguments, example_kwargs or {}, loss)
