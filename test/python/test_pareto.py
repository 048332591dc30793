"""What less memory costs, over the whole range."""

import json
from pathlib import Path

import pytest
import recals
import torch
from command import failure, recals_opt
from support import features, net, smallest_budget

X = (features(),)


@pytest.fixture
def scripted() -> torch.jit.ScriptModule:
    return torch.jit.script(net())


@pytest.mark.smoke
def test_the_curve_goes_from_the_plain_step_to_the_smallest_budget(scripted: torch.jit.ScriptModule) -> None:
    curve = recals.pareto(scripted, X)
    plain = recals.plan_of(recals.optimize(scripted, X, "100%"))
    first, last = curve.points[0], curve.points[-1]
    assert (first.peak, first.held) == (plain["devices"][0]["plain_peak"], plain["devices"][0]["plain_held"])
    assert first.peak == curve.plain_peak
    assert first.extra_seconds == 0
    assert first.fraction == 1
    assert curve.plain_seconds == pytest.approx(plain["plain_forward_seconds"] + plain["plain_backward_seconds"])
    assert curve.cost_model == plain["cost_model"]
    smallest = smallest_budget(scripted, X)["cpu"]
    assert smallest <= last.peak <= 1.02 * smallest
    for above, below in zip(curve.points, curve.points[1:], strict=False):
        assert below.peak < above.peak
        assert below.extra_seconds > above.extra_seconds
        assert below.fraction == below.peak / first.peak


def test_a_point_is_a_budget_that_holds_and_costs_no_more(scripted: torch.jit.ScriptModule) -> None:
    curve = recals.pareto(scripted, X)
    assert len(curve.points) > 8
    analysis = recals.passes.analyse(scripted, X)
    for point in curve.points[:: len(curve.points) // 8]:
        plan = recals.passes.plan(analysis, point.peak).plan
        assert plan["devices"][0]["peak"] <= point.peak
        assert plan["recompute_seconds"] + plan["pack_seconds"] <= point.extra_seconds * (1 + 1e-9)


def test_pins_hold_over_the_whole_curve(scripted: torch.jit.ScriptModule) -> None:
    free = recals.pareto(scripted, X)
    saved = recals.pareto(scripted, X, pins={"dropout": "must_save"})
    assert saved.points[-1].peak > free.points[-1].peak
    again = recals.pareto(scripted, X, pins={"relu": "must_recompute"})
    assert again.points[0].extra_seconds > 0, "the plain step is not allowed"
    assert json.loads(again.to_json())["pins"] == {"relu": "must_recompute"}


@pytest.mark.all_threads  # as the command runs: kernels of one thread may take less
def test_as_text_and_json_and_from_the_command(scripted: torch.jit.ScriptModule, tmp_path: Path) -> None:
    scripted.save(tmp_path / "net.pt")
    curve = recals.pareto(torch.jit.load(tmp_path / "net.pt"), X)
    assert str(curve) == curve.table()
    lines = curve.table().splitlines()
    assert f"{len(curve.points)} plans" in lines[0]
    assert str(curve.points[-1].peak) in lines[0]
    assert len(lines) <= 24
    document = json.loads(curve.to_json())
    assert [point["peak"] for point in document["points"]] == [point.peak for point in curve.points]

    command = (tmp_path / "net.pt", "--input=f32[128,24]")
    assert recals_opt(*command, "--emit=pareto").stdout.rstrip("\n") == curve.table()
    assert json.loads(recals_opt(*command, "--emit=pareto-json").stdout) == [document]
    pins = tmp_path / "pins.json"
    pins.write_text('{"dropout": "must_save"}')
    (pinned,) = json.loads(recals_opt(*command, "--emit=pareto-json", f"--pins={pins}").stdout)
    assert pinned["points"][-1]["peak"] > curve.points[-1].peak
    assert "exclude" in failure(*command, "--emit=pareto", "--check", expect=2)


def test_picture(scripted: torch.jit.ScriptModule, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    curve = recals.pareto(scripted, X)
    curve.save(tmp_path / "curve.png")
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")
    curve.save(str(tmp_path / "curve.svg"))
    drawn = (tmp_path / "curve.svg").read_text()
    assert f"smallest: {curve.points[-1].peak / 2**20:.1f} MiB" in drawn  # matplotlib keeps texts in comments
    with pytest.raises(ValueError, match=r"a \.png or an \.svg file"):
        curve.save(tmp_path / "curve.gif")


def test_a_device_that_the_step_does_not_use(scripted: torch.jit.ScriptModule) -> None:
    with pytest.raises(ValueError, match="does not run on 'cuda:0', but on cpu"):
        recals.pareto(scripted, X, device="cuda")
    assert recals.pareto(scripted, X, target_device="cuda", device="cuda").device == "cuda:0"
