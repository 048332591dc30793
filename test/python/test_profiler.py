"""Torch's profiler beside what Recals measures with: any order, right numbers in each, and no crash."""

import subprocess
import sys
from pathlib import Path

import pytest
import recals
import torch
from support import features, net, rewrite

INPUTS = (features(),)


@pytest.mark.slow
def test_every_order_of_profilers_and_trackers() -> None:
    script = Path(__file__).with_name("profiler_orders.py")
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=900, check=False)
    lines = done.stdout.splitlines()
    assert done.returncode == 0, done.stderr
    assert len(lines) == 3 * 3 * 5 + 1
    assert [line for line in lines if not line.endswith(" ok")] == [], done.stderr


@pytest.mark.smoke
def test_a_tracker_inside_a_profiler_inside_a_tracker() -> None:
    module = rewrite(net(), INPUTS)
    module(*INPUTS).sum().backward()
    with recals.track_memory() as alone:
        module(*INPUTS).sum().backward()
    with (
        recals.track_memory() as outer,
        torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profiler,
        recals.track_memory() as inner,
    ):
        module(*INPUTS).sum().backward()
    assert outer.peak == inner.peak == alone.peak
    assert any(event.key == "aten::addmm" for event in profiler.key_averages())


def test_a_block_that_fails_leaves_no_hook() -> None:
    hooks = torch.nn.modules.module._global_forward_hooks
    before = len(hooks)
    profiler = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU])

    def fail() -> None:
        with recals.track_memory(net()):
            profiler.__enter__()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    profiler.__exit__(None, None, None)
    assert len(hooks) == before


def test_a_tracker_is_entered_once_at_a_time() -> None:
    memory = recals.track_memory()
    with memory:
        kept = torch.empty(1000)
        with pytest.raises(RuntimeError, match="is active already"), memory:
            pass
        assert memory.live == {"cpu": 4000}
    with memory:
        assert memory.live.get("cpu", 0) == 0, "the figures are the second block's"
    assert kept.numel() == 1000
