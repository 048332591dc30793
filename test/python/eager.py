"""Steps of eager modules, plain and within a budget, side by side, for the tests of the eager front end."""

import copy
import random
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import recals
import torch
from torch import Tensor, nn
from training import (
    cloned,
    cpu_of,
    differing,
    named_gradients,
    named_state,
    prepare_gradients,
    same_bits,
    zero_gradients,
)


@dataclass
class Outcome:
    """What a step leaves behind, and the most that it held."""

    loss: Tensor
    gradients: dict[str, Tensor | None]
    state: dict[str, Tensor | None]
    random: Tensor
    peak: int


def identity(output: Any) -> Any:
    return output


def run(
    module: nn.Module,
    *inputs: Any,
    seed: int = 1,
    loss: Callable[[Any], Tensor] = identity,
    autocast: torch.dtype | None = None,
    zero: bool = True,
    **kwargs: Any,
) -> Outcome:
    """One training step without the update."""
    if zero:
        zero_gradients(module)
    torch.manual_seed(seed)
    random.seed(seed)
    with recals.track_memory() as memory:
        with torch.autocast("cpu", autocast or torch.bfloat16, enabled=autocast is not None):
            output = module(*inputs, **kwargs)
            value = loss(output)
        value.backward()
        del output
    return Outcome(
        value.detach().clone(),
        cloned(named_gradients(module)),
        cloned(named_state(module)),
        torch.get_rng_state(),
        memory.peak["cpu"],
    )


def assert_same(plain: Outcome, ours: Outcome) -> None:
    """Every bit agrees."""
    assert same_bits(plain.loss, ours.loss)
    assert differing(plain.gradients, ours.gradients) == []
    assert differing(plain.state, ours.state) == []
    assert torch.equal(plain.random, ours.random)


@dataclass
class Twins:
    """A plain model, and its copy within a budget."""

    plain: nn.Module
    ours: nn.Module
    warnings: list[str] = field(default_factory=list)
    """The `recals.BudgetWarning`s of the steps so far."""

    def step(self, *inputs: Any, **how: Any) -> tuple[Outcome, Outcome]:
        """One step of each, compared. The peak of the first one of a shape counts what planning takes."""
        plain = run(self.plain, *inputs, **how)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            ours = run(self.ours, *inputs, **how)
        self.warnings += [str(w.message) for w in caught if issubclass(w.category, recals.BudgetWarning)]
        assert_same(plain, ours)
        return plain, ours

    def steps(self, *inputs: Any, count: int = 2, **how: Any) -> tuple[Outcome, Outcome]:
        """Several, with seeds of their own; the last outcomes."""
        outcomes = [self.step(*inputs, seed=seed, **how) for seed in range(count)]
        return outcomes[-1]

    @property
    def plans(self) -> list[dict[str, Any]]:
        return recals.plan_of(self.ours)

    @property
    def budget(self) -> int:
        """Of the one plan."""
        (plan,) = self.plans
        return cpu_of(plan)["budget"]


def twins(module: nn.Module, *example: Any, budget: Any = "50%", **options: Any) -> Twins:
    """`module` and a copy of it, both with gradients of zeros. `example` inputs plan at once."""
    plain, ours = module, copy.deepcopy(module)
    prepare_gradients(plain)
    prepare_gradients(ours)
    assert recals.optimize(ours, example or None, budget=budget, **options) is ours
    return Twins(plain, ours)
