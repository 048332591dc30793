"""Reports: every byte is in them once, and they say where it comes from."""

import copy
import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import models
import pytest
import recals
import torch
import training
from support import features, net, rewrite
from torch import Tensor, nn

GROUPS = ("by_use", "by_module", "by_op", "by_dtype")
OUTSIDE = "(outside the module)"
VIEWS = {"aten::permute", "aten::unbind", "aten::view", "aten::transpose", "aten::reshape", "aten::slice"}


def scripted(workload: models.Workload) -> torch.jit.ScriptModule:
    return torch.jit.script(copy.deepcopy(workload.module))


def assert_adds_up(report: recals.Report) -> None:
    for device in report.devices.values():
        for group in GROUPS:
            shares = getattr(device, group).values()
            assert sum(share.held for share in shares) == device.held, group
            assert sum(share.peak for share in shares) == device.peak, group
        assert max(point.most for point in device.curve) == device.peak
        highest = device.curve[device.peak_point]
        assert highest.most == device.peak
        assert highest.place == device.peak_at
        assert all(point.live <= point.most for point in device.curve)
        times = [point.seconds for point in device.curve]
        assert times == sorted(times)
        assert times[-1] == pytest.approx(sum(report.seconds.values()))


@pytest.mark.parametrize("name", [*models.MAIN, "uneven"])
def test_every_view_adds_up(name: str) -> None:
    workload = models.build(name, "small")
    inputs, _ = workload.make_batch(0)
    report = recals.estimate(scripted(workload), inputs)
    assert_adds_up(report)
    device = report.device()
    assert device.budget is None
    assert device.plain_peak is None
    assert {point.place.phase for point in device.curve} == {"forward", "loss", "backward"}
    assert device.by_use["recomputed"] == recals.report.Share(0, 0)


@pytest.mark.smoke
@pytest.mark.parametrize("name", ["gpt", "unet"])
def test_report_of_a_budgeted_module_is_that_of_its_plan(name: str) -> None:
    workload = models.build(name, "small")
    inputs, targets = workload.make_batch(0)
    agreed = training.budgeted(workload, "60%")
    module = agreed.trainee.module
    report = recals.estimate(module, inputs, loss=lambda output: workload.loss(output, targets))
    assert_adds_up(report)
    plan = recals.plan_of(module)
    (line,) = plan["devices"]
    device = report.device()
    assert (device.peak, device.held, device.budget) == (line["peak"], line["held"], line["budget"])
    assert device.plain_peak == line["plain_peak"]
    # What the report says will run again is what the plan says, and what the step then does.
    replayed = [point.place for point in device.curve if point.place.phase == "replay"]
    planned = Counter((node["op"], node["module"], node["where"]) for node in plan["nodes_replayed"])
    reported = Counter((place.op, place.module, place.where) for place in replayed)
    assert planned <= reported
    # Views run again, too, but cost nothing; unpacking is told as the op whose storage it makes.
    packed = {storage["op"] for storage in plan["storages"] if storage["fate"] == "pack"}
    assert {op for op, _, _ in reported - planned} <= VIEWS | packed
    recals.reset_counters()
    agreed.trainee.gradients(0)()
    counters = recals.counters()
    assert counters["recomputed_nodes"] + counters["unpacks"] == len(replayed) > 0
    assert report.seconds["recompute"] == pytest.approx(plan["recompute_seconds"], rel=0.01)


class Mixed(nn.Module):
    """Saves a float, a boolean and an integer tensor, each of a size of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.wide = nn.Linear(16, 64)
        self.narrow = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        wide = self.wide(x)
        masked = torch.where(wide > 0, wide, wide * 0.5)
        best = masked.topk(8, 1)[0]
        return self.narrow(best.double().float())


def test_dtypes_by_hand() -> None:
    rows = 256
    report = recals.estimate(torch.jit.script(Mixed()), (torch.ones(rows, 16),))
    kept = {name: share.held for name, share in report.device().by_dtype.items()}
    # The condition; topk's indices and the values that double() reads are not kept, its result is for the last linear.
    assert kept["b8"] == rows * 64
    assert kept["i64"] == rows * 8 * 8
    # best as floats again (input of narrow), and the output; where keeps only its condition.
    assert kept["f32"] == rows * 8 * 4 + rows * 4 * 4
    assert kept["other"] == 8  # the 0.5 of the product, which eager Python wraps


def test_modules_and_backward_are_attributed() -> None:
    module = torch.jit.script(nn.Sequential(nn.Linear(8, 256), nn.GELU(), nn.Linear(256, 8)))
    device = recals.estimate(module, (torch.ones(64, 8),)).device()
    assert device.by_module["0"].held == 64 * 256 * 4  # its result is gelu's input
    assert device.by_module["1"].held == 64 * 256 * 4
    backward = {point.place.op: point.place for point in device.curve if point.place.phase == "backward"}
    assert backward["GeluBackward0"].module == "1"
    assert backward["GeluBackward0"].forward_op == "aten::gelu"
    assert backward["MseLossBackward0"].module == OUTSIDE
    assert backward["MseLossBackward0"].forward_op == ""
    assert {point.place.module for point in device.curve if point.place.op == "aten::linear"} == {"0", "2"}


def test_text_names_the_peak_and_the_largest() -> None:
    report = recals.estimate(torch.jit.script(net()), (features(),))
    text = str(report)
    assert f"({report.peak['cpu']} bytes)" in text
    assert f"({report.held['cpu']} bytes)" in text
    for storage in report.storages[:10]:
        assert storage.name in text
        assert storage.where in text
    for share in report.device().by_dtype:
        assert share in text
    budgeted = str(recals.estimate(rewrite(net(), (features(),), "80%"), (features(),)))
    assert "budget " in budgeted
    assert "recomputing " in budgeted
    assert "without a plan the peak is " in budgeted


def test_deep_modules_are_summed_up_in_the_text() -> None:
    workload = models.build("gpt", "small")
    report = recals.estimate(scripted(workload), workload.make_batch(0)[0])
    by_module = report.device().by_module
    lines = str(report).split("by module\n")[1].split("\n\n")[0].splitlines()
    assert len(lines) <= 11
    first = next(line for line in lines if line.endswith("blocks.3"))
    whole = sum(share.peak for path, share in by_module.items() if f"{path}.".startswith("blocks.3."))
    assert f"{whole / 2**20:.1f} MiB" in first


def test_json_is_all_of_it() -> None:
    report = recals.estimate(torch.jit.script(net()), (features(),))
    document = json.loads(report.to_json())
    assert document["format"] == 1
    (device,) = document["devices"]
    assert device["peak"] == report.peak["cpu"]
    assert {share["name"]: share["peak"] for share in device["by_module"]} == {
        path: share.peak for path, share in report.device().by_module.items()
    }
    assert len(device["curve"]) == len(report.device().curve)
    assert [storage["bytes"] for storage in document["storages"]] == [storage.bytes for storage in report.storages]
    assert sorted((s.bytes for s in report.storages), reverse=True) == [s.bytes for s in report.storages]


def test_report_of_a_loaded_file_is_the_same(tmp_path: Path) -> None:
    workload = models.build("encoder", "small")
    inputs, _ = workload.make_batch(0)
    budgeted = training.budgeted(workload, "60%").trainee.module
    before = recals.estimate(budgeted, inputs)
    budgeted.save(tmp_path / "net.pt")
    after = recals.estimate(torch.jit.load(tmp_path / "net.pt"), inputs)
    assert after.peak == before.peak
    assert after.held == before.held
    assert after.device().by_module == before.device().by_module
    assert any("encoder.layers.3" in path for path in after.device().by_module)
    assert_adds_up(after)


def test_inputs_of_other_shapes_than_planned_are_refused() -> None:
    budgeted = rewrite(net(), (features(),))
    with pytest.raises(recals.RecalsError, match=r"128, 24.*64, 24"):
        recals.estimate(budgeted, (features(64),))


def test_a_mode_that_was_not_planned_runs_the_plain_step() -> None:
    budgeted = rewrite(net(), (features(),))
    assert recals.estimate(budgeted, (features(),)).device().budget is not None
    budgeted.eval()
    report = recals.estimate(budgeted, (features(),))
    assert report.device().budget is None
    assert report.peak == recals.estimate(recals.restore(budgeted), (features(),)).peak


def test_reports_of_the_passes_are_those_of_the_modules() -> None:
    module = torch.jit.script(net())
    analysis = recals.passes.analyse(module, (features(),))
    assert analysis.report.to_json() == recals.estimate(module, (features(),)).to_json()
    planned = recals.passes.plan(analysis, "70%")
    report = recals.estimate(recals.passes.lower(module, planned), (features(),))
    assert planned.report.to_json() == report.to_json()


# ----------------------------------------------------------------------------------------------------------------------
# Pictures


def test_plots(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    report = recals.estimate(torch.jit.script(net()), (features(),))
    report.plot(tmp_path / "memory.png")
    assert (tmp_path / "memory.png").read_bytes().startswith(b"\x89PNG")
    report.plot(str(tmp_path / "memory.svg"), budget=report.peak["cpu"] // 2)
    drawn = (tmp_path / "memory.svg").read_text()
    assert "<svg" in drawn
    assert "budget" in drawn  # matplotlib keeps texts in comments
    assert f"peak {report.peak['cpu'] / 2**20:.1f} MiB" in drawn
    with pytest.raises(ValueError, match=r"\.png or an \.svg"):
        report.plot(tmp_path / "memory.gif")
    with pytest.raises(ValueError, match="cuda:7"):
        report.plot(tmp_path / "memory.png", device="cuda:7")


def test_without_matplotlib_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    report = recals.estimate(torch.jit.script(net()), (features(),))
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match="pip install matplotlib"):
        report.plot(tmp_path / "memory.png")
    assert list(tmp_path.iterdir()) == []


# ----------------------------------------------------------------------------------------------------------------------
# Next to a measurement


def tracked_step(trainee: training.Trainee, *, curve: bool = True) -> recals.MemoryUse:
    trainee.gradients(0)()
    step = trainee.gradients(1)
    with recals.track_memory(trainee.module, curve=curve) as memory:
        step()
    return memory


@pytest.mark.parametrize("budget", [None, "60%"])
def test_comparison_with_a_measured_step(budget: Any, tmp_path: Path) -> None:
    """The GPT returns its loss, so nothing about the step is unknown, on a plan to the byte."""
    pytest.importorskip("matplotlib")
    workload = models.build("gpt", "small")
    inputs, _ = workload.make_batch(0)
    trainee = training.plain(workload) if budget is None else training.budgeted(workload, budget).trainee
    report = recals.estimate(scripted(workload) if budget is None else trainee.module, inputs)
    memory = tracked_step(trainee)
    comparison = report.compare(memory)
    device = comparison.devices["cpu"]
    assert device.measured_peak == memory.peak["cpu"]
    assert device.measured_held == memory.held["cpu"] == report.held["cpu"]
    assert device.difference == report.peak["cpu"] - memory.peak["cpu"]
    assert 0 <= device.difference < 1024
    assert f"{memory.peak['cpu']:,} B" in str(comparison)
    assert sum(device.predicted_uses.values()) == report.peak["cpu"]
    assert f"{device.predicted_uses['saved']:,} B saved" in str(comparison)
    comparison.plot(tmp_path / "both.svg")
    drawn = (tmp_path / "both.svg").read_text()
    assert "measured" in drawn
    assert "predicted" in drawn
    # The measured curve itself has the peak, and the forward ends inside it.
    points = memory.curve()
    assert max(size for _, size in points) == memory.peak["cpu"]
    assert memory.forward_seconds is not None
    assert points[0][0] < memory.forward_seconds < points[-1][0]


def test_comparison_without_a_curve_or_a_model(tmp_path: Path) -> None:
    workload = models.build("mlp", "small")
    inputs, _ = workload.make_batch(0)
    trainee = training.plain(workload)
    report = recals.estimate(scripted(workload), inputs)
    with recals.track_memory() as memory:
        trainee.gradients(0)()
    comparison = report.compare(memory)
    assert comparison.devices["cpu"].measured_held is None
    assert "forward's end" not in str(comparison)
    with pytest.raises(ValueError, match="curve=True"):
        comparison.plot(tmp_path / "both.png")
    with pytest.raises(ValueError, match=r"track_memory\(model\)"):
        _ = memory.held
    assert "forward's end" in str(report.compare(tracked_step(trainee, curve=False)))


def test_only_the_models_own_forward_is_noted() -> None:
    model, other = nn.Linear(4, 1000), nn.Linear(4, 8)
    with recals.track_memory(model) as memory:
        first = other(torch.ones(2, 4))
        assert memory.held == {}
        second = model(torch.ones(2, 4))
        third = other(torch.ones(2, 4))
    assert memory.held["cpu"] >= second.nbytes + first.nbytes
    assert memory.live["cpu"] >= memory.held["cpu"] + third.nbytes - 2 * 4 * 4
    held = memory.held
    model(torch.ones(2, 4))
    assert memory.held == held
