"""Graphs of one step share its budget.

While the k-th graph runs, forward or backward, the earlier ones hold what they have saved, so the peak of the step is
the largest of (held of the earlier ones + peak of this one). A gradient that comes in from a later graph counts as a
result's in each graph's own prediction.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from recals._errors import BudgetError
from recals.arguments import Budget, limits
from recals.eager.settings import Goal
from recals.eager.steps import PlannedStep

_ROUNDS = 6
"""Of the search between the smallest plans and the plain ones; fewer where there are many graphs to plan."""

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
        steps[0].plan_again(Goal(text, lean=True))
        return steps[0].bytes("budget")

    found: Bytes = {}
    for name, text in given.items():
        for device in accelerators if name == "" else [name]:
            if text != "min" and device in plain:
                found[device] = _limit(text, device, plain, in_bytes)
    return found


def plan_together(steps: list[PlannedStep], budget: Budget) -> None:
    """Plans the steps of graphs that run one after another, so that together they stay within `budget`.

    Each gets the same share of the way from its smallest peak to the plain one, the largest that fits. Where even the
    smallest do not, because what they hold adds up, they are planned to hold little. Raises BudgetError if that is not
    enough either.
    """
    unique = [step for step in dict.fromkeys(steps) if not step.settled]
    if not unique:
        return
    plain = _peak(steps, "plain_held", "plain_peak")
    wanted = _limits(unique, budget, plain)
    least = _plan(unique, steps, lambda step: Goal("min", lean=True))
    smallest = {step: step.bytes("peak") for step in unique}
    over = [device for device, limit in wanted.items() if least[device] > limit]
    if over:
        raise BudgetError(
            f"recals: the budget of {wanted[over[0]]} bytes on {over[0]} cannot be met: the {len(steps)} graphs that "
            f"the model breaks into need at least {least[over[0]]} together",
            least,
            least,
        )

    def goal(step: PlannedStep, share: float, lean: bool) -> Goal:
        whole = step.bytes("plain_peak")
        limits = {
            device: min(low + int(max(0, whole[device] - low) * share), step.most.get(device, low + whole[device]))
            for device, low in smallest[step].items()
        }
        return Goal(limits, lean)

    def fits(share: float, lean: bool) -> bool:
        try:
            peak = _plan(unique, steps, lambda step: goal(step, share, lean) if share else Goal("min", lean))
        except BudgetError:
            return False  # a plan that prefers to recompute may be smaller than one that does not
        return all(peak[device] <= limit for device, limit in wanted.items())

    if wanted:
        _widest(fits, max(2, min(_ROUNDS, 30 // len(unique))))
    for step in unique:
        step.most = step.bytes("budget")
        step.provisional = False


def _plan(unique: list[PlannedStep], steps: list[PlannedStep], goal: Callable[[PlannedStep], Goal]) -> Bytes:
    """The peak together, with plans for such goals."""
    for step in unique:
        step.plan_again(goal(step))
    return _peak(steps, "held", "peak")


def _widest(fits: Callable[[float, bool], bool], rounds: int) -> None:
    """Leaves the plans of the largest share that fits, not lean ones if there is a choice; the lean ones of 0 fit."""
    if fits(1.0, False):
        return
    lean = not fits(0.0, False)
    low, high = 0.0, 1.0
    for _ in range(rounds):
        middle = (low + high) / 2
        low, high = (middle, high) if fits(middle, lean) else (low, middle)
    fits(low, lean)
