"""What an eager module is planned with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from recals._load import _C
from recals.arguments import (
    Budget,
    CostModel,
    GpuDevices,
    OnMismatch,
    Pins,
    Scratch,
    limits,
    planning_options,
    step_options,
)
from recals.loss import Loss

OnNewShape: TypeAlias = Literal["plan", "plain", "error"]
"""What a training step does whose shapes no plan was made for, when others have been."""


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
        options = self.analysis(None)
        options.budgets = limits(self.budget)
        if self.loss is not None and not callable(self.loss):
            raise TypeError(
                f"recals: loss is a function of what the module returns, not {self.loss!r} ({type(self.loss).__name__})"
            )
        if not isinstance(self.on_mismatch, str):
            raise TypeError(f"recals: on_mismatch is 'warn', 'error' or 'plain', not {self.on_mismatch!r}")
        options.on_mismatch = self.on_mismatch
        if self.on_new_shape not in ("plan", "plain", "error"):
            raise ValueError(f"recals: on_new_shape is 'plan', 'plain' or 'error', not {self.on_new_shape!r}")
        if isinstance(self.max_plans, bool) or not isinstance(self.max_plans, int) or self.max_plans < 1:
            raise ValueError(f"recals: max_plans is a number of plans, at least 1, not {self.max_plans!r}")

    def analysis(self, loss: Loss | None) -> Any:
        """What a step is analysed with. `loss`: of the results of a captured graph."""
        return step_options(
            cost_model=self.cost_model,
            target_device=None,
            workspace_margin=self.workspace_margin,
            scratch=self.scratch,
            loss=loss,
            preserve_rng_state=self.preserve_rng_state,
            gpu_devices=self.gpu_devices,
        )

    def planning(self, analysed: Any, budget: Budget) -> Any:
        """What a plan of an analysed step is made with."""
        return planning_options(analysed, budget, self.pins, self.on_mismatch)

    def plan(self, analysed: Any, budget: Budget) -> Any:
        """A planned step. Raises BudgetError."""
        return _C.plan_step(analysed, self.planning(analysed, budget))
