"""What the user says must or should be kept or recomputed."""

import json
from pathlib import Path
from typing import Any

import pytest
import recals
import torch
from command import recals_opt
from support import assert_same, features, net, smallest_budget, step
from torch import nn
from torch.utils.checkpoint import CheckpointPolicy

X = (features(),)


@pytest.fixture
def scripted() -> torch.jit.ScriptModule:
    return torch.jit.script(net())


def storages(rewritten: nn.Module, **wanted: str) -> list[dict[str, Any]]:
    """Those of its plan that have these values."""
    plan = recals.plan_of(rewritten)
    return [entry for entry in plan["storages"] if all(entry[key] == value for key, value in wanted.items())]


def fates(rewritten: nn.Module, **wanted: str) -> set[str]:
    return {entry["fate"] for entry in storages(rewritten, **wanted) if entry["slots"]}


@pytest.mark.smoke
@pytest.mark.parametrize("budget", ["100%", "70%"])
def test_pins_are_followed_and_the_gradients_keep_their_bits(budget: str) -> None:
    plain, scripted = net(), torch.jit.script(net())
    pins = {"dropout": CheckpointPolicy.MUST_SAVE, "aten::relu": "must_recompute", "tanh": "must_recompute"}
    budgeted = recals.optimize(scripted, X, budget, pins=pins)
    assert fates(budgeted, module="dropout") == {"keep"}
    assert fates(budgeted, op="aten::relu") == fates(budgeted, op="aten::tanh") == {"recompute"}
    assert_same(step(plain, X), step(budgeted, X))
    plan = recals.plan_of(budgeted)
    assert plan["devices"][0]["peak"] <= plan["devices"][0]["budget"]
    assert list(plan["pins"].items()) == [
        ("dropout", "must_save"),
        ("aten::relu", "must_recompute"),
        ("tanh", "must_recompute"),
    ]
    (relu,) = storages(budgeted, op="aten::relu")
    assert (relu["policy"], relu["pin"]) == ("must_recompute", "aten::relu")
    assert "as the pin 'aten::relu' (must_recompute) asks" in relu["reason"]


def test_preferences_decide_what_goes_first(scripted: torch.jit.ScriptModule) -> None:
    """Either of the two could go; without a preference it would be the same one both times."""
    for preferred, other in (("%tanh", "%linear.3"), ("%linear.3", "%tanh")):
        pins = {other: "prefer_save", preferred: "prefer_recompute"}
        budgeted = recals.optimize(scripted, X, "90%", pins=pins)
        assert fates(budgeted, name=preferred) == {"recompute"}
        assert fates(budgeted, name=other) == {"keep"}


def test_the_last_pin_that_names_a_storage_counts(scripted: torch.jit.ScriptModule) -> None:
    first = recals.optimize(scripted, X, "100%", pins={"*": "must_save", "relu": "must_recompute"})
    assert fates(first, op="aten::relu") == {"recompute"}
    turned = recals.optimize(scripted, X, "100%", pins={"relu": "must_recompute", "*": "must_save"})
    assert fates(turned) == {"keep"}


def test_a_function_is_asked_for_every_storage(scripted: torch.jit.ScriptModule) -> None:
    asked = []

    def policy(op: str, module: str, name: str, size: int) -> CheckpointPolicy | str | None:
        asked.append((op, module, name, size))
        if op == "aten::relu":
            return CheckpointPolicy.MUST_RECOMPUTE
        return "must_save" if module == "second" else None

    budgeted = recals.optimize(scripted, X, "100%", pins=policy)
    plan = recals.plan_of(budgeted)
    assert asked == [(s["op"], s["module"], s["name"], s["bytes"]) for s in plan["storages"]]
    assert {s["name"]: s["policy"] for s in plan["storages"] if s["policy"]} == {
        "%relu": "must_recompute",
        "%linear.3": "must_save",
    }
    # What it said is in the plan, and makes the same plan again.
    again = recals.plan_of(recals.optimize(scripted, X, "100%", pins=plan["pins"]))
    assert again == plan


def test_an_exception_of_the_function_is_the_users(scripted: torch.jit.ScriptModule) -> None:
    def policy(*_: object) -> None:
        raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine"):
        recals.optimize(scripted, X, "100%", pins=policy)


def test_must_is_never_overridden(scripted: torch.jit.ScriptModule) -> None:
    smallest = smallest_budget(scripted, X)["cpu"]
    pins = {"first": "must_save", "dropout": "must_save"}
    with pytest.raises(recals.BudgetError, match="Without the pins it would be") as caught:
        recals.optimize(scripted, X, smallest, pins=pins)
    assert caught.value.smallest["cpu"] > smallest
    assert caught.value.smallest_without_pins == {"cpu": smallest}
    budgeted = recals.optimize(scripted, X, caught.value.smallest, pins=pins)
    assert fates(budgeted, module="first") | fates(budgeted, module="dropout") == {"keep"}
    with pytest.raises(recals.BudgetError):
        recals.optimize(scripted, X, caught.value.smallest["cpu"] - 1, pins=pins)
    # Preferences make nothing infeasible.
    preferring = recals.optimize(scripted, X, smallest, pins=dict.fromkeys(pins, "prefer_save"))
    assert recals.plan_of(preferring)["devices"][0]["peak"] <= smallest


def test_without_must_the_error_says_nothing_of_pins(scripted: torch.jit.ScriptModule) -> None:
    with pytest.raises(recals.BudgetError) as caught:
        recals.optimize(scripted, X, 1000, pins={"first": "prefer_save"})
    assert "pins" not in str(caught.value)
    assert caught.value.smallest_without_pins == caught.value.smallest


class Written(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.sin(x)
        z = y.view(-1)
        z.mul_(2)
        return torch.exp(torch.cos(y))


@pytest.mark.parametrize(
    ("pins", "error", "text"),
    [
        ({"dropuot": "must_save"}, ValueError, "'dropuot' names nothing in this step; near names are 'dropout'"),
        ({"%rleu": "must_save"}, ValueError, "near names are '%relu'"),
        ({"relu": "save"}, ValueError, "the pin 'relu': 'save' is no policy; there are must_save"),
        ({"relu": None}, TypeError, "policy of 'relu' is a CheckpointPolicy"),
        (["relu"], TypeError, "pins are a dict"),
        ({"last": "must_recompute"}, ValueError, "'%linear'.*cannot be recomputed: the caller holds it"),
    ],
    ids=str,
)
def test_pins_that_are_wrong(scripted: torch.jit.ScriptModule, pins: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        recals.optimize(scripted, X, "80%", pins=pins)


def test_what_is_written_to_cannot_be_pinned_to_be_recomputed() -> None:
    module = torch.jit.script(nn.Sequential(nn.Linear(24, 24), Written()))
    with pytest.raises(
        ValueError, match=r"must_recompute of '%.*' \(aten::sin of 1 at .*\), which cannot be recomputed"
    ):
        recals.optimize(module, X, "80%", pins={"aten::sin": "must_recompute"})


def test_pins_of_the_passes_one_by_one() -> None:
    module = torch.jit.script(net())
    analysis = recals.passes.analyse(module, X)
    pinned = recals.passes.plan(analysis, "100%", pins={"relu": "must_recompute"})
    assert pinned.plan["pins"] == {"relu": "must_recompute"}
    assert recals.passes.plan(analysis, "100%").plan["pins"] == {}, "pins are of one plan, not of the analysis"
    budgeted = recals.passes.lower(module, pinned)
    assert (
        recals.plan_of(budgeted)
        == pinned.plan
        == recals.plan_of(recals.optimize(module, X, "100%", pins={"relu": "must_recompute"}))
    )


def test_pins_of_the_command_are_those_of_python_and_stay_in_the_file(tmp_path: Path) -> None:
    pins = {"dropout": "must_save", "aten::relu": "must_recompute"}
    (tmp_path / "pins.json").write_text(json.dumps(pins))
    torch.jit.script(net()).save(tmp_path / "net.pt")
    small = tmp_path / "small.pt"
    pinned = f"--pins={tmp_path / 'pins.json'}"
    recals_opt(tmp_path / "net.pt", "--input=f32[128,24]", "--budget=70%", pinned, "-o", small)
    loaded = torch.jit.load(small)
    expected = recals.optimize(torch.jit.load(tmp_path / "net.pt"), X, "70%", pins=pins)
    assert recals.plan_of(loaded) == recals.plan_of(expected)
    assert recals.plan_of(loaded)["pins"] == pins
    explained = recals_opt(small, "--explain=relu").stdout
    assert "as the pin 'aten::relu' (must_recompute) asks" in explained
