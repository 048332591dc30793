"""The whole list of torch's random ops: each is drawn again to the same bits, or kept, or refused."""

from types import ModuleType

import pytest
import random_ops
import recals
import torch
from random_ops import check, drawn_again, inputs_on, module_of, twin
from support import NEEDS_GPU, TIGHTEST, rewrite

DEVICES = ["cpu", pytest.param("cuda:0", marks=[pytest.mark.gpu, NEEDS_GPU])]


@pytest.fixture(scope="module")
def modules(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    return random_ops.modules(tmp_path_factory.mktemp("random_ops"))


def test_every_op_is_listed() -> None:
    assert random_ops.unlisted() == [], "say in random_ops.py how a step calls them, or why none does"


def test_nothing_is_listed_in_vain() -> None:
    known = {random_ops.name_of(op) for op in random_ops.tagged()}
    named = {name for name in random_ops.NOT_CALLED if "names" in name}  # torch 2.15 has them no more
    listed = (
        random_ops.CALLS.keys() | random_ops.WRITES.keys() | random_ops.REFUSED.keys() | random_ops.NOT_CALLED.keys()
    )
    assert listed - known <= named


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("op", random_ops.CALLS)
def test_drawn_again(modules: ModuleType, op: str, device: str) -> None:
    """Whether the plan would or not: all that the op makes must be made again."""
    module, inputs = module_of(modules, op, device), inputs_on(device)
    budgeted = recals.optimize(torch.jit.script(twin(module)), inputs, "1GiB", pins=drawn_again)
    recals.reset_counters()
    check(module, budgeted, inputs)
    steps, calls = 2, random_ops.draws_of(random_ops.CALLS[op]).count("x = ")
    assert recals.counters()["rng_restores"] >= steps * calls


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("op", [*random_ops.CALLS, *random_ops.WRITES])
def test_at_the_smallest_budget(modules: ModuleType, op: str, device: str) -> None:
    module, inputs = module_of(modules, op, device), inputs_on(device)
    recals.reset_counters()
    check(module, rewrite(twin(module), inputs, TIGHTEST), inputs)
    assert recals.counters()["recomputed_nodes"] > 0
    if op in random_ops.WRITES:
        assert recals.counters()["rng_saves"] == 0, "it must not be drawn again"


@pytest.mark.parametrize("op", random_ops.REFUSED)
def test_what_is_refused(modules: ModuleType, op: str) -> None:
    scripted = torch.jit.script(module_of(modules, op, "cpu"))
    with pytest.raises(recals.RecalsError, match=random_ops.REFUSED[op][1]):
        recals.optimize(scripted, inputs_on("cpu"), "100%")
