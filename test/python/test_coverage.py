"""Op by op: the estimate of a step through it against the allocator.

Each case is a line of TorchScript between two products, so that what the op saves and what its kernels allocate shows.
An estimate is *exact*, or *bounded*: above what is measured, where kernels take scratch memory that is known only as a
bound, or where the engine happens to add two gradients in place. The storages are a few kilobytes, so that bounds show.
"""

from collections.abc import Callable

import pytest
import recals
import torch
import training
from op_cases import CASES, EXPECTED_REFUSALS, inputs, module_of
from torch import Tensor, nn


def measured(module: nn.Module, batch: tuple[Tensor, ...]) -> int:
    training.prepare_gradients(module)

    def step() -> None:
        torch.manual_seed(0)
        module(*batch).backward()

    step()
    return training.measured_peak(step)


@pytest.mark.all_threads
@pytest.mark.parametrize("family", CASES)
def test_zoo_of_ops(family: str, record_property: Callable[[str, object], None]) -> None:
    exact, bounded, refused, wrong = [], [], [], []
    for number, case in enumerate(CASES[family]):
        module = module_of(case, number)
        try:
            report = recals.estimate(torch.jit.script(module), inputs())
        except recals.RecalsError as error:
            names_op_and_line = "aten::" in str(error) and f"case{number}.py" in str(error)
            (refused if names_op_and_line else wrong).append(case)
            continue
        # Run op by op, with nothing recomputed: Python's local variables would keep what the script does not.
        peak = measured(recals.optimize(torch.jit.script(module), inputs(), 2**60), inputs())
        predicted = report.peak["cpu"]
        if 0 <= predicted - peak <= 256:
            exact.append(case)
        elif peak < predicted <= 2 * peak:
            bounded.append(f"{case} +{predicted / peak - 1:.1%}")
        else:
            wrong.append(f"{case}: {predicted} for {peak}")
    record_property("table", f"{family:28} {len(exact):3} exact {len(bounded):3} bounded {len(refused):3} refused")
    for line in bounded:
        record_property("table", f"{'':28} bounded: {line}")
    assert wrong == []
    assert set(refused) == EXPECTED_REFUSALS.intersection(CASES[family])
