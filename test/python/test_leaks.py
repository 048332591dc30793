"""What goes, goes: resident memory after many plans, and after many steps over many shapes."""

import gc
from pathlib import Path

import pytest
import recals
import torch
from support import features, net
from torch import nn

pytestmark = pytest.mark.alone

MIB = 2**20


def resident() -> int:
    """Bytes, after what can go has gone."""
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096


def deep(layers: int = 20) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*(layer for _ in range(layers) for layer in (nn.Linear(8, 8), nn.ReLU())))


@pytest.mark.slow
def test_plans_go_with_their_modules() -> None:
    """1000 plans may leave 20 MB, so 100 may leave 2."""
    scripted = torch.jit.script(deep())
    inputs = (features(16, 8),)

    def plan_and_train(count: int) -> None:
        for _ in range(count):
            recals.optimize(scripted, inputs, "70%")(*inputs).sum().backward()

    plan_and_train(20)
    before = resident()
    plan_and_train(100)
    assert resident() - before < 2 * MIB


def test_nothing_of_a_plan_stays_in_torchs_own_unit() -> None:
    scripted = torch.jit.script(net())
    inputs = (features(),)
    unit = torch.jit._state._python_cu
    recals.optimize(scripted, inputs, "70%")
    before = len(unit.get_functions())
    for _ in range(3):
        module = recals.optimize(scripted, inputs, "70%")
        module(*inputs).sum().backward()
        recals.restore(module)
    assert len(unit.get_functions()) == before
    assert not [function for function in unit.get_functions() if "recals" in function.name]


@pytest.mark.slow
def test_a_long_run_over_many_shapes_stays_flat() -> None:
    module, shapes, steps = net(), [(rows, 24) for rows in range(16, 36)], 60
    scripted = torch.jit.script(module)
    optimizer = torch.optim.SGD(module.parameters(), lr=1e-3)
    planned = {shape: recals.optimize(scripted, (features(*shape),), "70%") for shape in shapes}

    def epoch(count: int) -> None:
        for step in range(count):
            for shape, model in planned.items():
                optimizer.zero_grad()
                model(features(*shape, seed=step)).square().mean().backward()
                optimizer.step()

    epoch(20)
    before = resident()
    epoch(steps)
    assert resident() - before < 2 * MIB
