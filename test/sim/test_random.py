"""Random numbers of a device: its own generator is found, stored and set."""

from types import ModuleType

import pytest
import random_ops
import recals
import torch
from test_random_ops import check, drawn_again, inputs_on, module_of, twin

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
