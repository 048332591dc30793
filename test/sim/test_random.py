"""Random numbers of a device: its own generator is found, stored and set."""

from types import ModuleType

import pytest
import random_ops
import recals
import torch
from random_ops import check, drawn_again, inputs_on, module_of, twin
from support import assert_same, step
from torch import Tensor, nn
from training import prepare_gradients

MISSING = {"gru.input", "lstm.input"}
"""Whose fused cells only the CPU and CUDA have."""


@pytest.fixture(scope="module")
def modules(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    return random_ops.modules(tmp_path_factory.mktemp("random_ops"))


@pytest.mark.parametrize("op", [op for op in random_ops.CALLS if op not in MISSING])
def test_drawn_again(modules: ModuleType, op: str) -> None:
    module, inputs = module_of(modules, op, "sim:1"), inputs_on("sim:1")
    budgeted = recals.optimize(torch.jit.script(twin(module)), inputs, "1GiB", pins=drawn_again)
    recals.reset_counters()
    check(module, budgeted, inputs)
    assert recals.counters()["rng_restores"] >= 2


class Noise(nn.Module):
    """On every device it draws."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleList([nn.Linear(32, 32).to(f"sim:{index}") for index in range(3)])

    def forward(self, x: Tensor) -> Tensor:
        for index, part in enumerate(self.parts):
            x = part(x.to(f"sim:{index}"))
            x = torch.tanh(x * torch.rand_like(x))
        return x


@pytest.mark.parametrize(
    ("options", "restores"),
    [
        ({}, 3),
        ({"gpu_devices": "none"}, 0),
        ({"gpu_devices": [0, 2]}, 2),
        ({"gpu_devices": 1}, 1),
        ({"preserve_rng_state": False}, 0),
    ],
    ids=str,
)
def test_states_of_the_devices_that_may_be_set(options: dict[str, object], restores: int) -> None:
    """What would be drawn again elsewhere is kept, and no bit changes."""
    inputs = inputs_on("sim:0")

    def again(op: str, module: str, name: str, size: int) -> str | None:
        return "prefer_recompute" if op == "aten::rand_like" else None

    plain, scripted = Noise(), torch.jit.script(Noise())
    scripted.load_state_dict(plain.state_dict())
    budgeted = recals.optimize(scripted, inputs, "1GiB", pins=again, **options)
    for module in (plain, budgeted):
        prepare_gradients(module)
    recals.reset_counters()
    assert_same(step(plain, inputs), step(budgeted, inputs))
    assert recals.counters()["rng_restores"] == restores
