"""Scratch memory of kernels: measured once for each distinct call, known afterwards, the same in every process."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import recals
import torch
import torch.nn.functional as F
import training
from torch import Tensor, nn


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file of its own for what is measured in this test."""
    file = tmp_path / "scratch.txt"
    monkeypatch.setenv("RECALS_SCRATCH_CACHE", str(file))
    recals._load._C.forget_measured()
    return file


class DoubleConvolution(nn.Module):
    """A weight in channels-last order, an input that is not."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(16, 16, 3, padding=1).double().to(memory_format=torch.channels_last)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x).square().mean()


class PermutedGelu(nn.Module):
    """The input of gelu is laid out in another order than its gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(32, 40, 64))

    def forward(self, x: Tensor) -> Tensor:
        y = F.gelu((x * self.scale).permute(2, 0, 1))
        return (y.contiguous() * y.shape[0]).square().mean()


class Depthwise(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(24, 24, 5, padding=2, groups=24)
        self.to(torch.bfloat16, memory_format=torch.channels_last)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x).float().square().mean()


class SmallImages(nn.Module):
    """The backward of a wide convolution over very few pixels takes several copies of its weight."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(256, 256, 3, padding=1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x).square().mean()


class StridedMedian(nn.Module):
    """Written into outputs that the op has made: a form that autograd refuses. It works on a contiguous copy."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(64, 96, 2))

    def forward(self, x: Tensor) -> Tensor:
        large = torch.exp(x)
        return torch.median(self.table.select(-1, 0), 1, keepdim=True)[0].mean() + large.sum()


CASES = {
    "strided median": (StridedMedian, lambda: torch.randn(64, 400)),
    "double convolution": (DoubleConvolution, lambda: torch.randn(4, 16, 24, 24, dtype=torch.double)),
    "permuted gelu": (PermutedGelu, lambda: torch.randn(32, 40, 64)),
    "depthwise in bf16": (
        Depthwise,
        lambda: torch.randn(4, 24, 32, 32, dtype=torch.bfloat16).contiguous(memory_format=torch.channels_last),
    ),
    "small images": (SmallImages, lambda: torch.randn(4, 256, 2, 2)),
}


def peak_of(module: nn.Module, x: Tensor) -> int:
    training.prepare_gradients(module)

    def step() -> None:
        module(x).backward()

    step()
    return training.measured_peak(step)


@pytest.mark.parametrize("name", CASES)
def test_what_rules_do_not_know_is_predicted(name: str, cache: Path) -> None:
    make, batch = CASES[name]
    module, x = torch.jit.script(make()), batch()
    predicted = recals.estimate(module, (x,)).peak["cpu"]
    peak = peak_of(recals.optimize(module, (x,), 2**60), x)
    assert 0 <= predicted - peak <= 128


def deformable() -> nn.Module:
    from torchvision.ops import deform_conv2d

    class Deformable(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.offset = nn.Conv2d(8, 18, 3, padding=1)
            self.weight = nn.Parameter(torch.randn(8, 8, 3, 3))

        def forward(self, x: Tensor) -> Tensor:
            return deform_conv2d(x, self.offset(x), self.weight, padding=1).square().mean()

    return Deformable()


def test_an_op_of_another_library(cache: Path) -> None:
    x = torch.randn(2, 8, 24, 24)
    with torch.no_grad():
        module = torch.jit.trace(deformable(), (x,))
    predicted = recals.estimate(module, (x,)).peak["cpu"]
    peak = peak_of(recals.optimize(module, (x,), 2**60), x)
    assert 0 <= predicted - peak <= 1024


def test_a_users_op_with_scratch_memory(cache: Path) -> None:
    @torch.library.custom_op("recals_tests::through_a_buffer", mutates_args=())
    def through_a_buffer(x: Tensor) -> Tensor:
        buffer = x.repeat(8)
        return buffer[: x.numel()] * 2

    @through_a_buffer.register_fake
    def _(x: Tensor) -> Tensor:
        return torch.empty_like(x)

    through_a_buffer.register_autograd(lambda context, gradient: gradient * 2)

    class Module(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(100_000))

        def forward(self, x: Tensor) -> Tensor:
            return torch.ops.recals_tests.through_a_buffer(x * self.scale).sum()

    x = torch.randn(100_000)
    module = torch.jit.trace(Module(), (x,), check_trace=False)
    predicted = recals.estimate(module, (x,)).peak["cpu"]
    peak = peak_of(recals.optimize(module, (x,), 2**60), x)
    assert peak > 9 * 400_000
    assert peak <= predicted <= peak + 1024


def test_a_known_call_is_not_made_again(cache: Path) -> None:
    module, x = torch.jit.script(SmallImages()), torch.randn(4, 256, 2, 2)
    first = recals.estimate(module, (x,))
    lines = cache.read_text()
    assert lines.count("\n") > 3
    recals._load._C.forget_measured()  # as in a process that begins
    again = recals.estimate(module, (x,))
    assert again.peak == first.peak
    assert cache.read_text() == lines
    recals.estimate(module, (torch.randn(8, 256, 2, 2),))
    assert len(cache.read_text()) > len(lines)


def test_a_damaged_file_is_measured_again(cache: Path, capfd: pytest.CaptureFixture[str]) -> None:
    module, x = torch.jit.script(SmallImages()), torch.randn(4, 256, 2, 2)
    first = recals.estimate(module, (x,))
    lines = cache.read_text().splitlines(keepends=True)
    longest = max(range(len(lines)), key=lambda i: int(lines[i].split()[2]))  # the one with most scratch memory
    lines[longest] = lines[longest].replace(" ", " 1", 1)
    cache.write_text("".join(lines) + "\0\xff no line\n" + lines[0][:20])
    recals._load._C.forget_measured()
    again = recals.estimate(module, (x,))
    assert again.peak == first.peak
    assert re.search(r"3 damaged lines of .*scratch\.txt are left out", capfd.readouterr().err)


PROCESS = """
import sys
import recals, torch
from torch import nn
width = int(sys.argv[1])
module = torch.jit.script(nn.Sequential(nn.Linear(width, 64), nn.GELU(), nn.Linear(64, 64)))
print(recals.estimate(module, (torch.randn(32, width),)).peak["cpu"])
"""


def test_several_processes_write_one_file(cache: Path) -> None:
    processes = [
        subprocess.Popen([sys.executable, "-c", PROCESS, str(width)], stdout=subprocess.PIPE, text=True)
        for width in (64, 64, 96)
    ]
    peaks = [process.communicate()[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0, 0]
    assert peaks[0] == peaks[1]
    written = cache.read_text()
    recals._load._C.forget_measured()
    module = torch.jit.script(nn.Sequential(nn.Linear(96, 64), nn.GELU(), nn.Linear(64, 64)))
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", torch.get_num_threads())))
    recals.estimate(module, (torch.randn(32, 96),))
    assert written.endswith("\n")
    assert all(len(line.split()) >= 6 for line in written.splitlines())


def test_measuring_takes_no_more_memory_than_the_step(cache: Path) -> None:
    module, x = torch.jit.script(SmallImages()), torch.randn(4, 256, 2, 2)
    with recals.track_memory() as memory:
        report = recals.estimate(module, (x,))
    assert memory.peak["cpu"] <= report.peak["cpu"]


def test_measuring_leaves_random_streams_alone(cache: Path) -> None:
    module, x = torch.jit.script(nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5))), torch.randn(4, 8)
    before = torch.get_rng_state()
    recals.estimate(module, (x,))
    assert cache.exists()
    assert torch.equal(torch.get_rng_state(), before)


def test_rules_in_place_of_measuring(cache: Path) -> None:
    module, x = torch.jit.script(nn.Linear(8, 8)), torch.randn(4, 8)
    report = json.loads(recals.estimate(module, (x,), scratch="rules").to_json())
    assert report["scratch"]["measured"] == 0
    assert not cache.exists()
    with pytest.raises(ValueError, match="'measured' on the kernels that are here or comes from 'rules', not from 'x'"):
        recals.estimate(module, (x,), scratch="x")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="scratch is 'measured' or 'rules', not 3"):
        recals.estimate(module, (x,), scratch=3)  # type: ignore[arg-type]


def test_what_is_on_meta_goes_by_rules(cache: Path) -> None:
    module = torch.jit.script(nn.Linear(8, 8).to("meta"))
    report = recals.estimate(module, (torch.randn(4, 8, device="meta"),))
    assert json.loads(report.to_json())["scratch"]["measured"] == 0
    assert not cache.exists()
    asked = recals.estimate(module, (torch.randn(4, 8, device="meta"),), scratch="measured")
    assert json.loads(asked.to_json())["scratch"]["bounded"] == 0
    assert cache.exists()
