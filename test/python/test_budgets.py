"""Budgets that are words: the smallest, and what the device has free."""

from pathlib import Path
from typing import Any

import pytest
import recals
import torch
from command import failure, recals_opt
from support import assert_same, features, net, smallest_budget, step

X = (features(),)


@pytest.fixture
def scripted() -> torch.jit.ScriptModule:
    return torch.jit.script(net())


@pytest.mark.smoke
@pytest.mark.parametrize("budget", ["min", {"cpu": "min"}], ids=str)
def test_min_is_the_smallest_that_the_error_names_and_gives_the_same_plan(
    scripted: torch.jit.ScriptModule, budget: Any
) -> None:
    smallest = smallest_budget(scripted, X)
    budgeted = recals.optimize(scripted, X, budget)
    assert recals.plan_of(budgeted) == recals.plan_of(recals.optimize(scripted, X, smallest))
    assert {device["name"]: device["budget"] for device in recals.plan_of(budgeted)["devices"]} == smallest
    with pytest.raises(recals.BudgetError):
        recals.optimize(scripted, X, smallest["cpu"] - 1)
    assert_same(step(net(), X), step(budgeted, X))


def test_min_with_pins_is_the_smallest_that_follows_them(scripted: torch.jit.ScriptModule) -> None:
    pins = {"first": "must_save", "dropout": "must_save"}
    with pytest.raises(recals.BudgetError) as caught:
        recals.optimize(scripted, X, 1, pins=pins)
    (device,) = recals.plan_of(recals.optimize(scripted, X, "min", pins=pins))["devices"]
    assert device["budget"] == caught.value.smallest["cpu"] > smallest_budget(scripted, X)["cpu"]


def test_auto_keeps_everything_where_the_plain_step_fits(scripted: torch.jit.ScriptModule) -> None:
    plan = recals.plan_of(recals.optimize(scripted, X, "auto"))
    available = int(Path("/proc/meminfo").read_text().split("MemAvailable:")[1].split()[0]) * 1024
    (device,) = plan["devices"]
    assert device["plain_peak"] < device["budget"] < 1.2 * available
    assert {storage["fate"] for storage in plan["storages"]} == {"keep"}


def test_auto_leaves_room_for_what_training_needs_besides() -> None:
    module = net()
    module.register_parameter("giant", torch.nn.Parameter(torch.empty(2**46, device="meta")))
    scripted = torch.jit.script(module)
    with pytest.raises(ValueError, match=r"'auto' leaves nothing for a step on cpu: .* are free") as caught:
        recals.optimize(scripted, X, "auto", target_device="cpu")
    assert not isinstance(caught.value, recals.BudgetError)


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_auto_of_a_device_that_is_not_there(scripted: torch.jit.ScriptModule) -> None:
    with pytest.raises(ValueError, match="there is no cuda:0 here"):
        recals.optimize(scripted, X, "auto", target_device="cuda")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_auto_is_what_cuda_has_free() -> None:
    module = torch.jit.script(net().cuda())
    (device,) = recals.plan_of(recals.optimize(module, (X[0].cuda(),), {"cuda:0": "auto"}))["devices"]
    statistics = torch.cuda.memory_stats()
    unused = statistics["reserved_bytes.all.current"] - statistics["active_bytes.all.current"]
    free = torch.cuda.mem_get_info()[0] + unused
    needed = 3 * sum(parameter.nbytes for parameter in module.parameters())
    assert device["budget"] == pytest.approx(free - free // 20 - needed, rel=0.02)


def test_words_of_the_command(scripted: torch.jit.ScriptModule, tmp_path: Path) -> None:
    plain, small = tmp_path / "net.pt", tmp_path / "small.pt"
    scripted.save(plain)
    recals_opt(plain, "--input=f32[128,24]", "--budget=min", "-o", small)
    expected = recals.optimize(torch.jit.load(plain), X, "min")
    assert recals.plan_of(torch.jit.load(small)) == recals.plan_of(expected)
    assert "within the budget" in recals_opt(small, "--check").stdout
    assert "within the budget" in recals_opt(small, "--check", "--budget=auto").stdout
    assert "not of 'min'" in failure(small, "--check", "--budget=min", expect=2)
    absent = failure(plain, "--input=f32[128,24]", "--budget=auto", "--target-device=cuda", "-o", small, expect=1)
    assert "there is no cuda:0 here" in absent
