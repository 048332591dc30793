"""Time: a budget that asks for nothing costs nothing."""

import copy
from collections.abc import Callable

import models
import pytest
import recals
import torch
import training

pytestmark = pytest.mark.alone

SLOWEST = 1.05
PAIRS = 81
"""One median, however it comes out: the best of several would hide what is slower half of the time."""


@pytest.mark.smoke
@pytest.mark.parametrize("name", models.MAIN)
def test_nothing_is_recomputed_at_the_plain_peak(name: str) -> None:
    agreed = training.budgeted(models.build(name, "small"), "100%")
    recals.reset_counters()
    agreed.trainee.gradients(0)()
    counters = recals.counters()
    assert counters["recomputed_nodes"] == 0
    assert counters["recomputed_bytes"] == 0
    assert counters["replays"] == 0
    plan = recals.plan_of(agreed.trainee.module)
    assert plan["recompute_seconds"] == 0
    assert plan["nodes_replayed"] == []


@pytest.mark.parametrize("name", models.MAIN)
def test_no_slower_than_the_scripted_module_at_the_plain_peak(
    name: str, record_property: Callable[[str, object], None]
) -> None:
    """Median over neighbouring pairs of steps, which a busy machine slows down alike."""
    workload = models.build(name, "small")
    scripted = training.Trainee(workload, torch.jit.script(copy.deepcopy(workload.module)))
    budgeted = training.budgeted(workload, "100%").trainee
    for number in range(3):
        scripted.gradients(number)()
        budgeted.gradients(number)()
    ratio = training.paired_ratio(scripted.gradients, budgeted.gradients, PAIRS)
    record_property("table", f"{name:9} at the plain peak: time {ratio:.3f}")
    assert ratio <= SLOWEST


def test_without_gradients_there_is_no_overhead() -> None:
    """A plain call: as fast as the scripted module, with nothing counted."""
    workload = models.build("gpt", "small")
    inputs, _ = workload.make_batch(0)
    scripted = torch.jit.script(copy.deepcopy(workload.module)).eval()
    budgeted = training.budgeted(workload, "50%").trainee.module.eval()
    recals.reset_counters()
    with torch.no_grad():
        for _ in range(3):
            scripted(*inputs)
            budgeted(*inputs)
        pair = [lambda number, module=module: lambda: module(*inputs) for module in (scripted, budgeted)]
        ratio = training.paired_ratio(*pair, PAIRS)
    assert ratio <= SLOWEST
    assert recals.counters()["recomputed_nodes"] == 0
