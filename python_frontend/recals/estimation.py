"""What a step will hold, before it is run."""

from __future__ import annotations

from typing import Any

from torch import nn

from recals._load import _C
from recals.arguments import CostModel, Device, Scratch, step_options
from recals.loss import Loss
from recals.modules import step_of
from recals.report import Report, report_from


def estimate(
    module: nn.Module,
    example_inputs: Any = None,
    *,
    example_kwargs: dict[str, Any] | None = None,
    method: str = "forward",
    cost_model: CostModel | None = None,
    target_device: Device | None = None,
    workspace_margin: int | None = None,
    scratch: Scratch | None = None,
    loss: Loss | None = None,
) -> Report:
    """Runs a training step on meta tensors (no data, no memory) and reports what it would hold, and when.

    The step is the one that a call of `module` runs: that of a module made by `recals.optimize` keeps to its plan, any
    other is plain. Plain means the eager module.

    Arguments and errors are those of `optimize`; a module with a plan also raises RecalsError for inputs of other
    shapes than the plan was made for.
    """
    step, inputs, loss = step_of(module, "estimate", example_inputs, example_kwargs, method, loss)
    options = step_options(
        cost_model=cost_model,
        target_device=target_device,
        workspace_margin=workspace_margin,
        scratch=scratch,
        loss=loss,
    )
    return report_from(_C.report(step, method, inputs, options))
