"""Op by op on a device without rules of its own: what the step is predicted to take, and what the device counts.

There is no scratch memory and no rounding, so what is left are bounds: of composites that run otherwise on the device,
and where the engine happens to add two gradients in place.
"""

import copy
from collections.abc import Callable

import pytest
import recals
import sim
import torch
from op_cases import CASES, EXPECTED_REFUSALS, MADE_ON_THE_HOST, inputs, module_of
from torch import nn
from training import prepare_gradients

NUMBERS = 256
"""Bytes of single numbers, which a prediction may count and a step not have."""


def measured(module: nn.Module, batch: tuple[torch.Tensor, ...]) -> int:
    prepare_gradients(module)
    for _ in range(2):  # the first makes what stays
        sim.reset_peak(0)
        before = sim.memory_allocated(0)
        module(*batch).backward()
    return sim.max_memory_allocated(0) - before


@pytest.mark.parametrize("family", CASES)
def test_no_prediction_is_below_what_the_device_counts(
    family: str, record_property: Callable[[str, object], None]
) -> None:
    exact, above, below = [], [], []
    batch = tuple(value.to("sim:0") for value in inputs())
    for number, case in enumerate(CASES[family]):
        if case in EXPECTED_REFUSALS or any(name in case for name in MADE_ON_THE_HOST):
            continue
        module = torch.jit.script(module_of(case, number).to("sim:0"))
        predicted = recals.estimate(copy.deepcopy(module), batch).peak["sim:0"]
        peak = measured(recals.optimize(module, batch, 2**60), batch)
        kind = below if predicted < peak else exact if predicted <= peak + NUMBERS else above
        kind.append(f"{case}: {predicted} for {peak}")
    assert below == []
    record_property("table", f"{family:28} {len(exact):3} exact {len(above):3} bounded")
