"""The models of the zoo as they are, one line each: bits, bytes and the random stream.

pytest test/python/test_eager_zoo.py                      each model at one budget, half of them under autocast
RECALS_EAGER_ZOO=all pytest test/python/test_eager_zoo.py     each at every budget, with and without
"""

import copy
import itertools
import os
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import recals
import torch
import training
from training import cpu_of
from zoo import ZOO, Specimen

SEVERAL_GRAPHS = {"gpt2"}
"""Those that torch breaks: transformers' GPT-2 logs inside its loss."""

NOT_PLANNED = {("graph", torch.bfloat16)}
"""The analysis does not know what autocast does inside of a GRU cell, and says so."""


pytestmark = pytest.mark.usefixtures("forget_compiled")


def planned(specimen: Specimen, budget: Any) -> torch.nn.Module:
    """A copy within `budget`, or the smallest one where that is larger, after its first step."""
    model = copy.deepcopy(specimen.module)
    training.prepare_gradients(model)
    recals.optimize(model, budget=budget, loss=specimen.loss)
    try:
        specimen.step(model)()
    except recals.BudgetError as error:
        return planned(specimen, error.smallest)
    return model


BUDGETS = ("75%", "50%", "min")
DTYPES = (None, torch.bfloat16)


def cases() -> Iterator[Any]:
    for number, name in enumerate(ZOO):
        for budget, autocast in itertools.product(BUDGETS, DTYPES):
            in_turn = budget == BUDGETS[number % 3] and autocast is DTYPES[number % 2]
            if in_turn or os.environ.get("RECALS_EAGER_ZOO") == "all":
                yield pytest.param(name, budget, autocast, id=f"{name}-{budget}-{'bf16' if autocast else 'f32'}")


@pytest.mark.slow
@pytest.mark.parametrize(("name", "budget", "autocast"), cases())
def test_a_model_of_the_zoo(name: str, budget: str, autocast: torch.dtype | None) -> None:
    specimen = ZOO[name]()
    if autocast is not None:
        specimen = specimen._replace(autocast=autocast)
    plain = copy.deepcopy(specimen.module)
    training.prepare_gradients(plain)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        ours = planned(specimen, budget)
        peaks = []
        for model in (plain, ours):
            training.prepare_gradients(model)
            if model is plain:
                specimen.step(model)()
            peaks.append((training.measured_peak(specimen.step(model)), torch.get_rng_state()))
    said = [str(warning.message) for warning in caught if issubclass(warning.category, recals.BudgetWarning)]
    assert training.differing_gradients(plain, ours) == []
    assert training.differing_state(plain, ours) == []
    assert torch.equal(peaks[0][1], peaks[1][1])
    if (name, autocast) in NOT_PLANNED:
        assert len(said) == 1
        assert "aten::gru_cell" in said[0]
        return
    assert all(name in SEVERAL_GRAPHS and "does not become one graph" in text for text in said), said
    if name not in SEVERAL_GRAPHS:
        assert peaks[1][0] <= max(cpu_of(plan)["budget"] for plan in recals.plan_of(ours))
    assert peaks[1][0] < peaks[0][0]
