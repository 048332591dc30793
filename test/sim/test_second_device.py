"""Steps over two devices: what ops do on one that is not the step's first.

In the dry run the first stands on torch's meta device, the others on numbered ones (Note [Devices on meta] in
passes/meta/meta_kernels.h), of which not all of torch's code knows.
"""

import op_cases
import pytest
import recals
import sim
import torch
from op_cases import CASES, EXPECTED_REFUSALS, MADE_ON_THE_HOST, inputs, module_of
from torch import Tensor, nn
from training import differing_gradients, prepare_gradients

MORE = [
    "torch.segment_reduce(x, 'sum', lengths=offsets, unsafe=True, initial=1.0).sum() + x",
    "torch.segment_reduce(x, 'max', offsets=offsets, unsafe=True).sum() + x",
]
"""Beside the cases of the coverage."""

MADE_ELSEWHERE = (*MADE_ON_THE_HOST, "torch.ones(64)")


def measured(module: nn.Module, batch: tuple[Tensor, ...]) -> dict[str, int]:
    prepare_gradients(module)
    for _ in range(2):  # the first makes what stays
        before = [sim.memory_allocated(device) for device in (0, 1)]
        for device in (0, 1):
            sim.reset_peak(device)
        module(*batch).backward()
    return {f"sim:{device}": sim.max_memory_allocated(device) - before[device] for device in (0, 1)}


@pytest.mark.parametrize("family", [*CASES, "more"])
def test_ops_are_predicted_on_the_second_device(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    there = op_cases.SOURCE.replace("x = self.first(features)", "x = self.first(features).to('sim:1')")
    monkeypatch.setattr(op_cases, "SOURCE", there)
    features, index, labels = inputs()
    batch = (features.to("sim:0"), index.to("sim:1"), labels.to("sim:1"))
    below = []
    for number, case in enumerate(CASES.get(family, MORE)):
        if case in EXPECTED_REFUSALS or any(name in case for name in MADE_ELSEWHERE):
            continue
        module = module_of(case, number).to("sim:1")
        module.first.to("sim:0")
        scripted = torch.jit.script(module)
        predicted = recals.estimate(scripted, batch).peak
        peak = measured(recals.optimize(scripted, batch, 2**60), batch)
        if any(predicted[device] < peak[device] for device in peak):
            below.append(f"{case}: {predicted} for {peak}")
    assert below == []


class Outputs(nn.Module):
    """One on each of three devices."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(32, 32).to("sim:0")
        self.second = nn.Linear(32, 32).to("sim:1")
        self.last = nn.Linear(32, 32)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        first = torch.tanh(torch.tanh(torch.tanh(self.first(x))))
        second = torch.tanh(torch.tanh(torch.tanh(self.second(first.to("sim:1")))))
        last = torch.tanh(torch.tanh(torch.tanh(self.last(second.to("cpu")))))
        return torch.exp(first), second.sum(), last


def test_outputs_may_be_on_several_devices() -> None:
    x = torch.randn(64, 32, device="sim:0")
    plain = Outputs()
    scripted = torch.jit.script(plain)
    budgets = dict.fromkeys(["sim:0", "sim:1", "cpu"], "80%")
    budgeted = recals.optimize(scripted, (x,), budgets)
    limits = {line["name"]: line["budget"] for line in recals.plan_of(budgeted)["devices"]}
    fits = []
    for module in (plain, budgeted):
        prepare_gradients(module)
        # Where devices work at the same time, one may hold a gradient longer than predicted.
        with torch.autograd.set_multithreading_enabled(False), recals.track_memory() as memory:
            first, second, last = module(x)
            (first.square().mean().to("cpu") + second.to("cpu") + last.square().mean()).backward()
        fits.append([memory.peak[device] <= limit for device, limit in limits.items()])
    assert fits == [[False] * 3, [True] * 3]
    assert differing_gradients(plain, budgeted) == []
