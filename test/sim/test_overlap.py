"""The backward on several devices at once: whether what a device holds depends on which thread is faster."""

import time
import warnings
from collections.abc import Callable

import pytest
import recals
import sim
import torch
from pipeline import pipeline, tokens
from torch import Tensor, nn
from training import prepare_gradients

WIDTH, ROWS = 32, 64
DEVICES = ("sim:0", "sim:1")


class Branches(nn.Module):
    """Two ways from one activation, on two devices, which meet again: in the backward, both gradients go back to it."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(WIDTH, WIDTH).to("sim:0")
        self.widen = nn.Linear(WIDTH, 4 * WIDTH).to("sim:0")
        self.narrow = nn.Linear(4 * WIDTH, WIDTH).to("sim:0")
        self.far = nn.Linear(WIDTH, WIDTH).to("sim:1")

    def near(self, x: Tensor) -> Tensor:
        return self.narrow(torch.sigmoid(torch.tanh(self.widen(x))))

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.stem(x))
        far = torch.sigmoid(self.far(x.to("sim:1")))
        return (self.near(x) + far.to("sim:0")).to("cpu").sum()


class Towers(nn.Module):
    """Two inputs on two devices, which meet in the loss only."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH)).to("sim:0")
        self.other = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH)).to("sim:1")

    def forward(self, x: Tensor) -> Tensor:
        return (self.one(x) * torch.tanh(self.other(x.to("sim:1"))).to("sim:0")).to("cpu").sum()


class ThereAndBack(nn.Module):
    """A pipeline that comes back to the device that it began on."""

    def __init__(self) -> None:
        super().__init__()
        self.begin = nn.Linear(WIDTH, WIDTH).to("sim:0")
        self.middle = nn.Linear(WIDTH, WIDTH).to("sim:1")
        self.end = nn.Linear(WIDTH, WIDTH).to("sim:0")

    def forward(self, x: Tensor) -> Tensor:
        x = torch.sigmoid(torch.tanh(self.begin(x))).to("sim:1")
        x = torch.sigmoid(torch.tanh(self.middle(x))).to("sim:0")
        return torch.sigmoid(torch.tanh(self.end(x))).to("cpu").sum()


def batch() -> tuple[Tensor]:
    return (torch.randn(ROWS, WIDTH, device="sim:0"),)


def peaks(module: nn.Module, step: Callable[..., Tensor], *inputs: Tensor) -> dict[str, int]:
    """Bytes per device, as the devices count them."""
    prepare_gradients(module)
    before = []
    for index in range(len(DEVICES)):
        sim.reset_peak(index)
        before.append(sim.memory_allocated(index))
    step(*inputs).backward()
    return {device: sim.max_memory_allocated(i) - before[i] for i, device in enumerate(DEVICES)}


def test_a_plan_that_depends_on_which_thread_is_faster_comes_with_a_warning() -> None:
    module = torch.jit.script(Branches())
    with pytest.warns(UserWarning, match=r"sim:0 may hold more than was planned: .*Backward0 \(test_overlap.py:"):
        planned = recals.optimize(module, batch(), {"sim:0": "90%"})
    assert "may run at the same time" in str(recals.estimate(planned, batch()).device("sim:0").overlap)
    with warnings.catch_warnings():  # a device without a budget cannot go over it
        warnings.simplefilter("error")
        recals.optimize(module, batch(), {"sim:1": "100%"})


def test_it_does_depend_on_it() -> None:
    """While this device is slow, the other one's gradient is there already and waits."""
    module = Branches()
    waiting = ROWS * WIDTH * 4  # bytes
    predicted = recals.estimate(torch.jit.script(module), batch()).peak

    (inputs,) = batch()

    def slow() -> Tensor:
        x = torch.tanh(module.stem(inputs))
        far = torch.sigmoid(module.far(x.to("sim:1")))
        near = module.near(x)
        near.register_hook(lambda _: time.sleep(0.1))
        return (near + far.to("sim:0")).to("cpu").sum()

    with torch.autograd.set_multithreading_enabled(False):
        in_order = peaks(module, slow)
    assert in_order == {device: predicted[device] for device in DEVICES}
    assert peaks(module, slow) == {"sim:0": in_order["sim:0"] + waiting, "sim:1": in_order["sim:1"]}


@pytest.mark.parametrize("budget", ["90%", "80%"])
def test_in_one_thread_the_plan_holds(budget: str) -> None:
    x = batch()
    with pytest.warns(UserWarning, match="sim:0 may hold more"):
        module = recals.optimize(torch.jit.script(Branches()), x, {"sim:0": budget})
    planned = recals.estimate(module, x).peak
    with torch.autograd.set_multithreading_enabled(False):
        for _ in range(3):
            assert peaks(module, module, *x) == {device: planned[device] for device in DEVICES}


@pytest.mark.parametrize("model", [Towers, ThereAndBack])
def test_where_threads_wait_for_each_other_predictions_are_exact(model: type[nn.Module]) -> None:
    x = batch()
    scripted = torch.jit.script(model())
    for budget in ("100%", "min"):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            module = recals.optimize(scripted, x, dict.fromkeys(DEVICES, budget))
        report = recals.estimate(module, x)
        assert [report.device(device).overlap for device in DEVICES] == [None, None]
        for _ in range(20):
            assert peaks(module, module, *x) == {device: report.peak[device] for device in DEVICES}


def test_nor_along_a_pipeline() -> None:
    report = recals.estimate(torch.jit.script(pipeline()), (tokens(),))
    assert {device.name: device.overlap for device in report.devices.values()} == dict.fromkeys(report.peak)
