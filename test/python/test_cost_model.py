"""Where times come from: built-in constants, a calibrated file, the nodes themselves."""

import copy
import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import models
import pytest
import recals
import torch
import training
from support import check_steps, features, net, rewrite
from torch import Tensor, nn


@pytest.fixture(autouse=True)
def no_choice_from_outside(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("RECALS_COST_MODEL", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@dataclass
class Calibration:
    path: Path
    seconds: float
    """Of processor time."""
    drew: bool
    """Whether the random stream moved."""


@pytest.fixture(scope="module")
def calibration(tmp_path_factory: pytest.TempPathFactory) -> Calibration:
    asked = tmp_path_factory.mktemp("calibrated") / "deep" / "folder" / "cpu.json"
    state, start = torch.get_rng_state(), time.process_time()
    path = recals.calibrate(path=asked)
    seconds = time.process_time() - start
    assert path == asked
    return Calibration(path, seconds, not torch.equal(torch.get_rng_state(), state))


@pytest.fixture
def calibrated(calibration: Calibration) -> Path:
    return calibration.path


def changed(tmp_path: Path, **fields: Any) -> Path:
    """A file like the built-in model, with other fields."""
    path = tmp_path / "model.json"
    path.write_text(json.dumps({**recals.cost_model(), **fields}))
    return path


def model_of(module: nn.Module) -> dict[str, Any]:
    chosen: dict[str, Any] = recals.plan_of(module)["cost_model"]
    return chosen


# ----------------------------------------------------------------------------------------------------------------------
# Calibration


def test_calibration_is_sane(calibrated: Path) -> None:
    measured = recals.cost_model(cost_model=calibrated)
    assert measured["device"] == "cpu"
    assert measured["threads"] == torch.get_num_threads()
    copying = 2 * 4 / measured["bytes_per_second"]["copy"]
    elements = measured["seconds_per_element"]
    # Bytes, and a mersenne twister, for each element; against bytes alone.
    assert elements["random"] > copying
    assert elements["random"] > elements["transcendental"]
    assert 1e-7 < measured["seconds_per_call"] < 1e-3
    assert measured["matmul_flops_per_second"]["f32"] > measured["matmul_flops_per_second"]["f64"]
    # Products do far more work on a byte than anything else could.
    assert measured["matmul_flops_per_second"]["f32"] > measured["bytes_per_second"]["pointwise"] / 4
    assert measured["convolution_flops_per_second"]["f32"] > measured["bytes_per_second"]["pointwise"] / 4


def test_calibration_is_quick_and_leaves_nothing_but_the_file(calibration: Calibration) -> None:
    assert calibration.seconds < 45
    assert not calibration.drew
    assert [file.name for file in calibration.path.parent.iterdir()] == ["cpu.json"]


def test_the_default_place_is_the_users_cache(
    tmp_path: Path, calibrated: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, inputs = torch.jit.script(net()), (features(),)
    with pytest.raises(recals.RecalsError, match=r"cost-model-cpu\.json.*recals\.calibrate"):
        recals.optimize(module, inputs, "80%", cost_model="calibrated")
    constants = json.loads(calibrated.read_text())
    monkeypatch.setattr(recals.calibration._Machine, "measured", lambda self: constants)
    assert recals.calibrate() == tmp_path / "cache" / "recals" / "cost-model-cpu.json"
    assert model_of(recals.optimize(module, inputs, "80%", cost_model="calibrated"))["name"] == "calibrated cpu"


def test_a_bad_measurement_is_not_handed_out(tmp_path: Path, calibrated: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    constants = {**json.loads(calibrated.read_text()), "seconds_per_call": 0.0}
    monkeypatch.setattr(recals.calibration._Machine, "measured", lambda self: constants)
    with pytest.raises(recals.RecalsError, match="seconds_per_call"):
        recals.calibrate(path=tmp_path / "cpu.json")
    assert list(tmp_path.iterdir()) == []


# ----------------------------------------------------------------------------------------------------------------------
# Choosing


def test_plans_say_which_model_they_were_made_with(calibrated: Path, tmp_path: Path) -> None:
    module, inputs = torch.jit.script(net()), (features(),)
    built_in = model_of(recals.optimize(module, inputs, "80%"))
    assert built_in["name"] == "built-in cpu"
    assert len(built_in["hash"]) == 16
    other = model_of(recals.optimize(module, inputs, "80%", cost_model=calibrated))
    assert other["name"] == "calibrated cpu"
    assert other["hash"] != built_in["hash"]
    profiled = recals.optimize(module, inputs, "80%", cost_model="profile")
    assert model_of(profiled) == {"name": "profile", "hash": None}
    profiled.save(tmp_path / "net.pt")
    assert model_of(torch.jit.load(tmp_path / "net.pt"))["name"] == "profile"
    assert recals.estimate(module, inputs, cost_model=calibrated).cost_model == other


def test_the_environment_chooses_and_the_argument_overrules(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, calibrated: Path
) -> None:
    path = changed(tmp_path, name="from the environment")
    monkeypatch.setenv("RECALS_COST_MODEL", str(path))
    module, inputs = torch.jit.script(net()), (features(),)
    assert model_of(recals.optimize(module, inputs, "80%"))["name"] == "from the environment"
    assert recals.cost_model()["name"] == "from the environment"
    assert model_of(recals.optimize(module, inputs, "80%", cost_model="built-in"))["name"] == "built-in cpu"
    assert model_of(recals.optimize(module, inputs, "80%", cost_model=calibrated))["name"] == "calibrated cpu"
    monkeypatch.setenv("RECALS_COST_MODEL", "profile")
    assert model_of(recals.optimize(module, inputs, "80%"))["name"] == "profile"


class Choice(nn.Module):
    """Pointwise ops and products on storages of one size."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(16, 64)
        self.second = nn.Linear(64, 64)
        self.third = nn.Linear(64, 64)
        self.last = nn.Linear(64, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.exp(-torch.relu(self.first(x)))
        x = torch.relu(self.second(x))
        return self.last(torch.relu(self.third(x))).mean()


def test_the_model_decides_what_is_recomputed(tmp_path: Path) -> None:
    """Where matrix products are as good as free, they run again instead of pointwise ops."""
    module, inputs = torch.jit.script(Choice()), (torch.ones(512, 16),)
    pointwise = []
    for rate in (1e15, 1e6):
        path = changed(tmp_path, matmul_flops_per_second={"f32": rate})
        plan = recals.plan_of(recals.optimize(module, inputs, "75%", cost_model=path))
        pointwise.append(sum(node["op"] != "aten::linear" for node in plan["nodes_replayed"]))
    assert pointwise[0] < pointwise[1]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "is not JSON"),
        ("[]", "no JSON object"),
        ('{"format": 7}', "format 7"),
        ('{"format": 1}', '"name" is missing'),
    ],
)
def test_bad_files_are_refused(text: str, says: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.json"
    path.write_text(text)
    with pytest.raises(recals.RecalsError, match=says) as caught:
        recals.optimize(torch.jit.script(net()), (features(),), "80%", cost_model=path)
    assert "bad.json" in str(caught.value)


def test_other_bad_choices_are_refused(tmp_path: Path) -> None:
    module, inputs = torch.jit.script(net()), (features(),)
    with pytest.raises(recals.RecalsError, match=r"is for cuda, but the step runs on cpu"):
        recals.estimate(module, inputs, cost_model=changed(tmp_path, device="cuda"))
    with pytest.raises(recals.RecalsError, match=r"seconds_per_call.* above 0"):
        recals.estimate(module, inputs, cost_model=changed(tmp_path, seconds_per_call=0))
    with pytest.raises(recals.RecalsError, match=r"speed.* does not know"):
        recals.estimate(module, inputs, cost_model=changed(tmp_path, speed=3))
    with pytest.raises(recals.RecalsError, match=r"no_such_file.* cannot be read"):
        recals.estimate(module, inputs, cost_model=tmp_path / "no_such_file.json")
    with pytest.raises(recals.RecalsError, match="cannot be read"):
        recals.estimate(module, inputs, cost_model=tmp_path)
    with pytest.raises(TypeError, match="a cost model is"):
        recals.estimate(module, inputs, cost_model=3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="empty"):
        recals.estimate(module, inputs, cost_model="")


# ----------------------------------------------------------------------------------------------------------------------
# Profiles


@pytest.mark.parametrize("name", ["resnet18", "gpt", "unet"])
def test_profiling_leaves_no_trace(name: str) -> None:
    workload = models.build(name, "small")
    inputs, _ = workload.make_batch(0)
    module = copy.deepcopy(workload.module)
    state = training.cloned(training.named_state(module))
    saved = [tensor.clone() for tensor in inputs]
    torch.manual_seed(3)
    before = torch.get_rng_state()
    recals.reset_counters()
    budgeted, _ = training.optimize_or_smallest(torch.jit.script(module), inputs, "70%", "profile")
    assert torch.equal(torch.get_rng_state(), before)
    assert training.differing(state, training.cloned(training.named_state(module))) == []
    assert training.differing(state, training.cloned(training.named_state(budgeted))) == []
    assert all(parameter.grad is None for parameter in module.parameters())
    assert all(map(training.same_bits, saved, inputs))
    assert recals.counters()["calls"] == 0


def test_profiled_plans_keep_the_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RECALS_COST_MODEL", "profile")
    check_steps(net(), (features(),))
    check_steps(net(), (features(),), "75%")
    assert model_of(rewrite(net(), (features(),), "75%"))["name"] == "profile"


def test_profiles_see_what_ops_cost() -> None:
    """A product of a thousand times the work of another takes longer, whatever else the machine does."""

    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.dear = nn.Linear(512, 512)
            self.cheap = nn.Linear(512, 1)

        def forward(self, x: Tensor) -> Tensor:
            return self.cheap(torch.relu(self.dear(x)))

    report = recals.estimate(torch.jit.script(Two()), (torch.ones(2048, 512),), cost_model="profile")
    seconds = {}
    start = 0.0
    for point in report.device().curve:
        seconds[point.place.op, point.place.module] = point.seconds - start
        start = point.seconds
    assert seconds["aten::linear", "dear"] > 3 * seconds["aten::linear", "cheap"] > 0
    assert sum(report.seconds.values()) == pytest.approx(start)
