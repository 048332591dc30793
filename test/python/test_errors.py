"""What cannot be done is said clearly, and leaves everything as it was."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import recals
import torch
import torch.nn.functional as F
from command import failure, inputs_of, recals_opt
from support import Net, assert_same, features, net, rewrite, smallest_budget, step, twins
from torch import Tensor, nn


@pytest.fixture
def scripted() -> torch.jit.ScriptModule:
    return torch.jit.script(net())


@pytest.mark.parametrize(
    "budget",
    [
        pytest.param(0, id="zero"),
        pytest.param(-1, id="negative"),
        pytest.param(float("nan"), id="nan"),
        pytest.param(float("inf"), id="infinite"),
        pytest.param(None, id="none"),
        pytest.param([], id="list"),
        pytest.param({}, id="no-device"),
        pytest.param({"cpu": 0}, id="zero-on-cpu"),
        pytest.param({"cpu": "lots"}, id="word-on-cpu"),
        pytest.param({"no such device": 2**30}, id="unknown-device"),
        *("", "0", "0%", "-5%", "nan%", "101%", "8 GBs", "-8GiB", "fifty", "MiB", "1e400", "5 5MiB", "99999999999TiB"),
    ],
)
def test_nonsense_budget_is_refused(scripted: torch.jit.ScriptModule, budget: Any) -> None:
    before = scripted.code
    with pytest.raises((ValueError, TypeError), match=r"budget|no such device") as caught:
        recals.optimize(scripted, (features(),), budget)
    assert not isinstance(caught.value, recals.BudgetError), "nonsense is not the same as infeasible"
    if isinstance(budget, str) and budget:
        assert budget in str(caught.value), "the message quotes what was given"
    assert scripted.code == before


@pytest.mark.parametrize(
    ("budget", "expected"),
    [
        (2**29, 2**29),
        ("536870912", 2**29),
        ("512MiB", 2**29),
        ("512 MiB", 2**29),
        ("0.5GiB", 2**29),
        ("1.5 GB", 1_500_000_000),
        ("2TiB", 2**41),
        ({"cpu": 2**29}, 2**29),
        ({"cpu": "512MiB"}, 2**29),
    ],
)
def test_budget_as_people_write_it(scripted: torch.jit.ScriptModule, budget: Any, expected: int) -> None:
    (device,) = recals.plan_of(recals.optimize(scripted, (features(),), budget))["devices"]
    assert device["name"] == "cpu"
    assert device["budget"] == expected


@pytest.mark.parametrize("budget", ["80%", {"cpu": "80%"}], ids=["text", "dict"])
def test_percentage_is_of_the_plain_peak(scripted: torch.jit.ScriptModule, budget: Any) -> None:
    (device,) = recals.plan_of(recals.optimize(scripted, (features(),), budget))["devices"]
    assert device["budget"] == device["plain_peak"] * 80 // 100
    assert device["peak"] <= device["budget"]


@pytest.mark.smoke
def test_infeasible_budget_names_the_smallest_feasible(scripted: torch.jit.ScriptModule) -> None:
    before = scripted.code
    with pytest.raises(recals.BudgetError) as caught:
        recals.optimize(scripted, (features(),), 1000)
    assert isinstance(caught.value, ValueError)
    smallest = caught.value.smallest
    assert set(smallest) == {"cpu"}
    assert smallest["cpu"] > 1000
    assert "smallest" in str(caught.value)
    assert scripted.code == before

    (device,) = recals.plan_of(recals.optimize(scripted, (features(),), smallest))["devices"]
    assert device["peak"] <= device["budget"] == smallest["cpu"]
    with pytest.raises(recals.BudgetError):
        recals.optimize(scripted, (features(),), smallest["cpu"] - 1)


@pytest.mark.parametrize(
    ("inputs", "kind", "says"),
    [
        pytest.param((), TypeError, "do not fit 'forward': .*missing value for argument 'features'", id="none"),
        pytest.param((features(), features()), TypeError, "do not fit 'forward': .*at most 2", id="too-many"),
        pytest.param(
            (features(width=25),), recals.RecalsError, r"aten::linear at \S+:\d+ failed: .*shapes", id="shape"
        ),
        pytest.param((features().long(),), recals.RecalsError, r"aten::linear at \S+:\d+ .*dtype", id="integers"),
        pytest.param((features().double(),), recals.RecalsError, r"aten::linear at \S+:\d+ .*dtype", id="doubles"),
        pytest.param(("text",), TypeError, "do not fit 'forward': .*found type 'str'", id="text"),
        pytest.param((None,), TypeError, "'features' is None, not a tensor", id="nothing"),
        pytest.param(None, TypeError, "must be a tuple", id="no-tuple"),
    ],
)
def test_wrong_example_inputs_are_refused(
    scripted: torch.jit.ScriptModule, inputs: Any, kind: type[Exception], says: str
) -> None:
    before = scripted.code
    with pytest.raises(kind, match=says) as caught:
        recals.optimize(scripted, inputs, "80%")
    assert not isinstance(caught.value, recals.BudgetError)
    assert str(caught.value).startswith("recals: ")
    assert scripted.code == before


def test_none_for_a_tensor_is_named(scripted: torch.jit.ScriptModule) -> None:
    with pytest.raises(TypeError, match="'features' is None"):
        recals.estimate(scripted, (None,))


@pytest.mark.parametrize(
    ("function", "op"),
    [
        (lambda x: x[torch.nonzero(x[:, 0] > 0)[:, 0]], "aten::nonzero"),
        (lambda x: F.embedding(x.argmax(1), x, sparse=True), "aten::embedding"),
    ],
    ids=["nonzero", "sparse"],
)
def test_what_depends_on_numbers_says_so(function: Callable[[Tensor], Tensor], op: str) -> None:
    class Chosen(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(24, 8)

        def forward(self, x: Tensor) -> Tensor:
            return function(self.layer(x))

    traced = torch.jit.trace(Chosen(), (features(),), check_trace=False)
    with pytest.raises(recals.RecalsError, match=f"{op} at .* depends? on the values in a tensor"):
        recals.estimate(traced, (features(),))


@pytest.mark.smoke
def test_passes_take_scripted_modules_only() -> None:
    with pytest.raises(TypeError, match=r"torch\.jit\.script"):
        recals.passes.analyse(net(), (features(),))


@pytest.mark.parametrize("thing", [None, 3, "model.pt", torch.relu], ids=["none", "number", "path", "function"])
def test_what_is_no_module_is_refused(thing: Any) -> None:
    for function in (recals.optimize, recals.restore, recals.plan_of):
        with pytest.raises(TypeError, match=r"takes a torch\.nn\.Module, not"):
            function(*((thing, (features(),), "80%") if function is recals.optimize else (thing,)))
    with pytest.raises(TypeError, match=r"takes a torch\.nn\.Module, not"):
        recals.estimate(thing, (features(),))


def test_missing_method_is_named(scripted: torch.jit.ScriptModule) -> None:
    with pytest.raises(ValueError, match="recals: the module has no method 'no_such_method'"):
        recals.optimize(scripted, (features(),), "80%", method="no_such_method")
    with pytest.raises(ValueError, match="recals: the module has no method 'no_such_method'"):
        recals.estimate(scripted, (features(),), method="no_such_method")


def test_plain_module_has_no_plan(scripted: torch.jit.ScriptModule) -> None:
    with pytest.raises(recals.RecalsError, match="has no plan"):
        recals.plan_of(scripted)
    with pytest.raises(recals.RecalsError, match=r"was not made by recals\.optimize"):
        recals.plan_of(net())


class Wide(nn.Module):
    """Accepts any number of rows and any width, so only Recals can object."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(1.5))

    def forward(self, features: Tensor) -> Tensor:
        return torch.tanh(torch.sigmoid(torch.tanh(features * self.scale) * self.scale) * self.scale)


@pytest.mark.smoke
@pytest.mark.parametrize(
    "wrong",
    [
        pytest.param(features(rows=64), id="fewer-rows"),
        pytest.param(features(rows=256), id="more-rows"),
        pytest.param(features(width=12), id="width"),
        pytest.param(features()[:, None], id="rank"),
        pytest.param(features().double(), id="dtype"),
    ],
)
def test_training_with_other_shapes_is_an_error_that_shows_both(wrong: Tensor) -> None:
    plain, budgeted = twins(Wide(), (features(),))
    with pytest.raises(
        RuntimeError, match=r"recals: the plan was made for inputs .*, but this training step got "
    ) as caught:
        budgeted(wrong)
    message = str(caught.value)
    if wrong.dtype == torch.float32:
        assert re.search(r"128\D+24", message), "the example's shape is shown"
        assert re.search(r"\D+".join(map(str, wrong.shape)), message), "the shape that was given is shown"
    # Nothing is left broken.
    assert_same(step(plain, (features(),)), step(budgeted, (features(),)))


@pytest.mark.all_threads  # as recals-opt runs
def test_training_under_another_autocast_than_planned_is_an_error_that_says_so(tmp_path: Path) -> None:
    def lower() -> torch.autocast:
        return torch.autocast("cpu", dtype=torch.bfloat16)

    outside = rewrite(net(), (features(),))
    with lower():
        inside = rewrite(net(), (features(),))
        with torch.no_grad():
            outside(features())
        with pytest.raises(
            RuntimeError, match=r"got .* under autocast\(cpu: bf16\)\. .* inside the torch.autocast block"
        ):
            outside(features())
        with (
            torch.autocast("cpu", dtype=torch.bfloat16, cache_enabled=False),
            pytest.raises(RuntimeError, match="uncac"),
        ):
            inside(features())
        with torch.autocast("cpu", enabled=False):
            outside(features()).sum().backward()
    with pytest.raises(RuntimeError, match=r"made for inputs .* under autocast\(cpu: bf16\), but"):
        inside(features())
    with pytest.raises(RuntimeError, match=r"under autocast\(cpu: bf16\), not for"):
        recals.estimate(inside, (features(),))
    # A file knows what it was planned for.
    inside.save(tmp_path / "inside.pt")
    assert "within the budget" in recals_opt(tmp_path / "inside.pt", "--check").stdout
    assert "not for" in failure(tmp_path / "inside.pt", "--check", *inputs_of((features(),)), expect=1)
    with lower():
        torch.jit.load(tmp_path / "inside.pt")(features()).sum().backward()


@pytest.mark.parametrize("rows", [1, 64, 128, 300])
def test_without_gradients_any_shape_is_a_plain_call(rows: int) -> None:
    plain, budgeted = twins(net(), (features(),))
    with torch.no_grad():
        plain.eval()
        budgeted.eval()
        assert torch.equal(plain(features(rows)), budgeted(features(rows)))
        plain.train()
        budgeted.train()
        if rows > 1:
            torch.manual_seed(0)
            expected = plain(features(rows))
            torch.manual_seed(0)
            assert torch.equal(expected, budgeted(features(rows)))
    plain.eval()
    budgeted.eval()
    assert torch.equal(plain(features(rows)), budgeted(features(rows)))


def test_eval_mode_has_right_gradients_for_any_shape() -> None:
    """In eval mode nothing is promised about memory, and gradients are still those of the plain module."""
    plain, budgeted = twins(net(), (features(),))
    plain.eval()
    budgeted.eval()
    with torch.jit.optimized_execution(False):  # TorchScript's own optimiser can move a bit.
        for rows in (5, 128):
            assert_same(step(plain, (features(rows),)), step(budgeted, (features(rows),)))


@pytest.mark.parametrize("inputs", [features(), [features()]], ids=["tensor", "list"])
def test_example_inputs_may_be_a_tensor_or_a_list(scripted: torch.jit.ScriptModule, inputs: Any) -> None:
    assert recals.plan_of(recals.optimize(scripted, inputs, "100%"))["devices"]
    assert recals.estimate(scripted, inputs).peak["cpu"] > 0


def test_rewriting_again_plans_anew_from_the_plain_module() -> None:
    plain, tight = twins(net(), (features(),))
    loose = recals.optimize(tight, (features(),), "100%")
    shorter = recals.optimize(tight, (features(rows=64),), "100%")
    assert recals.plan_of(loose)["devices"][0]["budget"] > recals.plan_of(tight)["devices"][0]["budget"]
    for seed, (module, rows) in enumerate([(loose, 128), (shorter, 64), (tight, 128)]):
        expected = step(plain, (features(rows),), seed=seed)
        assert_same(expected, step(module, (features(rows),), seed=seed))


class Refusing(nn.Module):
    """Fails on the example itself."""

    def forward(self, features: Tensor) -> Tensor:
        if features.shape[0] > 2:
            raise ValueError("more than two rows")
        return features * 2


def test_module_that_fails_on_the_example_says_why() -> None:
    with pytest.raises(recals.RecalsError, match=r"prim::RaiseException at test_errors\.py:\d+ .*more than two rows"):
        recals.optimize(torch.jit.script(Refusing()), (features(),), "80%")


def test_errors_form_one_family() -> None:
    assert issubclass(recals.BudgetError, ValueError)
    assert issubclass(recals.RecalsError, Exception)


def test_smallest_budget_is_below_the_plain_peak() -> None:
    scripted = torch.jit.script(Net())
    smallest = smallest_budget(scripted, (features(),))
    (device,) = recals.plan_of(rewrite(scripted, (features(),)))["devices"]
    assert smallest["cpu"] < device["plain_peak"]
