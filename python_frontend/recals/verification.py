"""A step on the device beside its prediction."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

from torch import nn

from recals._errors import BudgetWarning, RecalsError
from recals._load import _C
from recals.arguments import OnMismatch, Scratch, step_options
from recals.loss import Loss
from recals.modules import step_of


@dataclass(frozen=True)
class Verification:
    """What one step held, and what was predicted of it. `str()` is a text for people."""

    predicted: dict[str, int]
    """Peak in bytes, per device."""
    measured: dict[str, int]
    """The same, of the step that was run."""
    differences: list[str]
    """Nodes whose autograd nodes saved more than the dry run did: op, source line, both sides."""
    holds: bool
    """No device held more than was predicted, and no node differs."""
    text: str

    def __str__(self) -> str:
        return self.text


def verify(
    module: nn.Module,
    example_inputs: Any = None,
    *,
    example_kwargs: dict[str, Any] | None = None,
    method: str = "forward",
    loss: Loss | None = None,
    scratch: Scratch | None = None,
    on_mismatch: OnMismatch = "warn",
) -> Verification:
    """Runs one training step of `module` on copies of it and of the inputs, and compares it with its prediction.

    A module made by `recals.optimize` runs its plan, any other its plain step. Parameters, gradients, buffers and
    random streams stay as they are; memory is needed for a second set of parameters and gradients, and for the step.
    The first training step of every plan is compared with the dry run, too, node by node but without its peak; `verify`
    looks before anything is trained. Call it under the settings (autocast, `sdpa_kernel`, threads) of the training.

    Args:
        module, example_inputs, method, scratch: as `optimize` takes them; inputs with data.
        loss: as `optimize` takes it; without it the step's loss is the mean of the squares of the outputs.
        on_mismatch: what is done where the step holds more than was predicted: "warn" (`recals.BudgetWarning`), "error"
            (`RecalsError`), or "plain" for nothing; the result tells in any case.

    Raises RecalsError if the step cannot be run, or did not run its plan.
    """
    step, inputs, loss = step_of(module, "verify", example_inputs, example_kwargs, method, loss)
    options = step_options(cost_model=None, target_device=None, workspace_margin=None, scratch=scratch, loss=loss)
    options.on_mismatch = on_mismatch
    found = _C.verify_step(step, method, inputs, options, loss)
    result = Verification(
        dict(found.predicted), dict(found.measured), list(found.differences), found.holds(), found.text().rstrip()
    )
    if not result.holds and on_mismatch != "plain":
        text = "recals: the step holds more than was predicted, so its budget may not hold:\n" + result.text
        if on_mismatch == "error":
            raise RecalsError(text)
        warnings.warn(text, BudgetWarning, stacklevel=2)
    return result
