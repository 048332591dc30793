"""The whole list of torch's random ops: each is drawn again to the same bits, or kept, or refused."""

import copy
from types import ModuleType

import pytest
import random_ops
import recals
import torch
from support import NEEDS_GPU, TIGHTEST, assert_same, rewrite, step
from torch import nn
from training import prepare_gradients

DEVICES = ["cpu", pytest.param("cuda:0", marks=[pytest.mark.gpu, NEEDS_GPU])]

RANDOM = {f"aten::{random_ops.name_of(op).partition('.')[0]}" for op in random_ops.tagged()}


@pytest.fixture(scope="module")
def modules(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    return random_ops.modules(tmp_path_factory.mktemp("random_ops"))


def module_of(modules: ModuleType, op: str, device: str) -> nn.Module:
    module = getattr(modules, random_ops.class_name(op))().to(device)
    module.generator = torch.Generator(device)
    return module


def inputs_on(device: str) -> tuple[torch.Tensor]:
    return (torch.randn(64, 32, generator=torch.Generator().manual_seed(0)).to(device),)


def drawn_again(op: str, module: str, name: str, size: int) -> str | None:
    """A pin on all that random ops make."""
    return "must_recompute" if op in RANDOM else None


def check(plain: nn.Module, budgeted: nn.Module, inputs: tuple[torch.Tensor]) -> None:
    """Two steps of both leave the same bits, and the generators where they were."""
    for one in (plain, budgeted):
        prepare_gradients(one)
    device = inputs[0].device
    for seed in range(2):
        outcomes, own, streams = [], [], []
        for one in (plain, budgeted):
            one.generator.manual_seed(seed + 7)
            outcomes.append(step(one, inputs, seed=seed, between=lambda: torch.rand(3, device=device)))
            own.append(one.generator.get_state())
            streams.append(torch.rand(3, device=device))
        assert_same(*outcomes)
        assert torch.equal(*own), "the module's generator is elsewhere"
        assert torch.equal(*streams), "the device's generator is elsewhere"


def twin(module: nn.Module) -> nn.Module:
    other = copy.deepcopy(module)
    other.generator = torch.Generator(module.generator.device)
    return other


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
