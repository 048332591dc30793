"""What an eager module is planned with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeAlias

from recals._errors import BudgetError
from recals._load import _C
from recals.arguments import (
    Budget,
    CostModel,
    Device,
    GpuDevices,
    OnMismatch,
    Pins,
    Scratch,
    planning_options,
    set_goal,
    step_options,
)
from recals.loss import Loss

OnNewShape: TypeAlias = Literal["plan", "plain", "error"]
"""What a training step does whose shapes no plan was made for, when others have been."""


class Goal(NamedTuple):
    """What one plan is made for."""

    budget: Budget
    lean: bool = False
    """It prefers to recompute, so that it holds little for the backward even where the budget would let it."""


@dataclass(frozen=True)
class Settings:
    """As `recals.optimize` takes them."""

    budget: Budget
    pins: Pins | None = None
    cost_model: CostModel | None = None
    workspace_margin: int | None = None
    scratch: Scratch | None = None
    loss: Loss | None = None
    preserve_rng_state: bool = True
    gpu_devices: GpuDevices = "all"
    on_mismatch: OnMismatch = "warn"
    on_new_shape: OnNewShape = "plan"
    max_plans: int = 64

    def check(self) -> None:
        """Raises ValueError, TypeError for what can be told without a step."""
        set_goal(self.analysis(self.loss), self.budget, self.on_mismatch)
        if self.on_new_shape not in ("plan", "plain", "error"):
            raise ValueError(f"recals: on_new_shape is 'plan', 'plain' or 'error', not {self.on_new_shape!r}")
        if isinstance(self.max_plans, bool) or not isinstance(self.max_plans, int) or self.max_plans < 1:
            raise ValueError(f"recals: max_plans is a number of plans, at least 1, not {self.max_plans!r}")

    def analysis(self, loss: Loss | None, target_device: Device | None = None) -> Any:
        """What a step is analysed with. `loss`: of the results of the module that is analysed."""
        return step_options(
            cost_model=self.cost_model,
            target_device=target_device,
            workspace_margin=self.workspace_margin,
            scratch=self.scratch,
            loss=loss,
            preserve_rng_state=self.preserve_rng_state,
            gpu_devices=self.gpu_devices,
        )

    def plan(self, analysed: Any, goal: Goal) -> Any:
        """A planned step. Raises BudgetError."""
        if goal.lean:
            try:
                return self._plan(analysed, goal.budget, _lean(self.pins))
            except ValueError as error:
                if isinstance(error, BudgetError) or "the pin '*'" not in str(error):
                    raise
                # Nothing in this step could be kept.
        return self._plan(analysed, goal.budget, self.pins)

    def _plan(self, analysed: Any, budget: Budget, pins: Pins | None) -> Any:
        return _C.plan_step(analysed, planning_options(analysed, budget, pins, self.on_mismatch))


def _lean(pins: Pins | None) -> Pins:
    """`pins`, and a wish to recompute the rest."""
    if callable(pins):
        asked = pins
        return lambda op, module, name, size: asked(op, module, name, size) or "prefer_recompute"
    return {"*": "prefer_recompute", **(pins or {})}
