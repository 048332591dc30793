"""Graphs of one step share its budget.

While the k-th graph runs, forward or backward, the earlier ones hold what they have saved, so the peak of the step is
the largest of (held of the earlier ones + peak of this one). A gradient that comes in from a later graph counts as a
result's in each graph's own prediction.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from recals._errors import BudgetError
from recals.arguments import Budget, limits
from recals.eager.steps import PlannedStep

_ROUNDS = 6
"""Of the search between the smallest plans and the plain ones."""

Bytes = dict[str, int]


def _peak(steps: list[PlannedStep], held: str, peak: str) -> Bytes:
    """Of the step that runs `steps` one after another, by device."""
    most: Bytes = {}
    before: Bytes = {}
    for step in steps:
        for device, count in step.bytes(peak).items():
            most[device] = max(most.get(device, 0), before.get(device, 0) + count)
        for device, count in step.bytes(held).items():
            before[device] = before.get(device, 0) + count
    return most


def _limit(text: str, device: str, plain: Bytes, of_step: Callable[[str], Bytes]) -> int:
    share = re.fullmatch(r"\s*([0-9.]+)\s*%\s*", text)
    if share:
        return int(plain[device] * float(share.group(1)) / 100)
    return of_step(text)[device]


def _limits(steps: list[PlannedStep], budget: Budget, plain: Bytes) -> Bytes:
    """Bytes by device; empty for "min"."""
    given = limits(budget)
    accelerators = [device for device in plain if device != "cpu"] or list(plain)

    def in_bytes(text: str) -> Bytes:
        steps[0].plan_again(text)
        return steps[0].bytes("budget")

    found: Bytes = {}
    for name, text in given.items():
        for device in accelerators if name == "" else [name]:
            if text != "min" and device in plain:
                found[device] = _limit(text, device, plain, in_bytes)
    return found


def plan_together(steps: list[PlannedStep], budget: Budget) -> None:
    """Plans the steps of graphs that run one after another, so that together they stay within `budget`.

    Raises BudgetError if even their smallest plans do not.
    """
    unique = list(dict.fromkeys(steps))
    plain = _peak(steps, "plain_held", "plain_peak")
    wanted = _limits(unique, budget, plain)
    for step in unique:
        step.plan_again("min")
    smallest = {step: step.bytes("peak") for step in unique}
    least = _peak(steps, "held", "peak")
    over = {device: limit for device, limit in wanted.items() if least[device] > limit}
    if over:
        device, limit = next(iter(over.items()))
        raise BudgetError(
            f"recals: the budget of {limit} bytes on {device} cannot be met: the {len(steps)} graphs that the model "
            f"breaks into need at least {least[device]} together",
            least,
            least,
        )
    if not wanted:
        for step in unique:
            step.most = smallest[step]
        return

    def budgets(step: PlannedStep, share: float) -> Any:
        whole = step.bytes("plain_peak")
        return {
            device: min(low + int(max(0, whole[device] - low) * share), step.most.get(device, low + whole[device]))
            for device, low in smallest[step].items()
        }

    def fits(share: float) -> bool:
        for step in unique:
            step.plan_again(budgets(step, share))
        return all(_peak(steps, "held", "peak")[device] <= limit for device, limit in wanted.items())

    if not fits(1.0):
        low, high = 0.0, 1.0
        for _ in range(_ROUNDS):
            middle = (low + high) / 2
            low, high = (middle, high) if fits(middle) else (low, middle)
        fits(low)
    for step in unique:
        step.most = step.bytes("budget")
