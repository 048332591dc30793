"""The main promise: real models train within a budget, and every bit is that of the plain eager module.

Each model at 75, 50 and 33 % of its plain peak, or at the smallest feasible budget where that is larger (marked with a
star in the table after the tests).
"""

from collections.abc import Callable
from dataclasses import dataclass

import models
import pytest
import torch
import training
from conftest import threads_of
from torch import Tensor

STEPS = 20
FRACTIONS = (0.75, 0.50, 0.33)
PREDICTION_MARGIN = 1.10


@dataclass
class Reference:
    """What the plain eager module does, told once and compared with each budget."""

    peak: int
    gradients: dict[str, Tensor | None]
    losses: list[float]
    state: dict[str, Tensor]
    optimizer: list[Tensor]
    random: Tensor


def optimizer_state(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    state = optimizer.state_dict()["state"]
    return [value for number in sorted(state) for _, value in sorted(state[number].items())]


@pytest.fixture(scope="module")
def references() -> dict[str, Reference]:
    return {}


def reference_of(name: str, references: dict[str, Reference]) -> Reference:
    if name not in references:
        references.clear()
        trainee = training.plain(models.build(name, "small"))
        trainee.gradients(0)()
        peak = training.measured_peak(trainee.gradients(0))
        gradients = training.cloned(training.named_gradients(trainee.module))
        losses = [trainee.train(number) for number in range(1, STEPS + 1)]
        state = dict(training.named_state(trainee.module))
        moments = optimizer_state(trainee.optimizer)
        references[name] = Reference(peak, gradients, losses, state, moments, torch.get_rng_state())
    return references[name]


@dataclass
class Job:
    """A model at a budget, after the steps that `Reference` made too."""

    reference: Reference
    agreed: training.Budgeted
    memory: training.Memory
    first_memory: training.Memory
    gradients: dict[str, Tensor | None]
    losses: list[float]
    state: dict[str, Tensor]
    optimizer: list[Tensor]
    random: Tensor
    line: str


@pytest.fixture(
    scope="module",
    params=[
        pytest.param((name, fraction), id=f"{name}-{fraction:.0%}") for name in models.MAIN for fraction in FRACTIONS
    ],
)
def job(request: pytest.FixtureRequest, references: dict[str, Reference]) -> Job:
    name, fraction = request.param
    torch.set_num_threads(threads_of(request.node))
    reference = reference_of(name, references)
    agreed = training.budgeted(models.build(name, "small"), int(reference.peak * fraction))
    trainee = agreed.trainee
    first_memory = training.measure(trainee.gradients(0))
    memory = training.measure(trainee.gradients(0))
    gradients = training.cloned(training.named_gradients(trainee.module))
    losses = [trainee.train(number) for number in range(1, STEPS + 1)]
    star = " " if agreed.feasible else "*"
    numbers = (agreed.granted, agreed.predicted, memory.peak, reference.peak)
    budget, predicted, measured, plain = (f"{count / 2**20:7.2f}" for count in numbers)
    return Job(
        reference,
        agreed,
        memory,
        first_memory,
        gradients,
        losses,
        dict(training.named_state(trainee.module)),
        optimizer_state(trainee.optimizer),
        torch.get_rng_state(),
        f"{name:9} {fraction:.0%}: budget{star}{budget}  predicted {predicted}  measured {measured}  plain {plain}",
    )


def test_measured_peak_is_within_the_budget(job: Job, record_property: Callable[[str, object], None]) -> None:
    record_property("table", job.line)
    assert job.first_memory.peak <= job.agreed.granted
    assert job.memory.peak <= job.agreed.granted


def test_the_budget_is_below_the_plain_peak(job: Job) -> None:
    assert job.agreed.granted < job.reference.peak


def test_prediction_covers_the_measured_peak_closely(job: Job) -> None:
    assert job.memory.peak <= job.agreed.predicted <= job.agreed.granted
    assert job.agreed.predicted <= PREDICTION_MARGIN * job.memory.peak


def test_every_gradient_has_the_plain_bits(job: Job) -> None:
    assert len(job.gradients) > 0
    assert training.differing(job.reference.gradients, job.gradients) == []


def test_twenty_steps_leave_the_plain_bits(job: Job) -> None:
    assert job.losses == job.reference.losses
    assert training.differing(job.reference.state, job.state) == []
    assert len(job.optimizer) == len(job.reference.optimizer) > 0
    assert all(map(training.same_bits, job.reference.optimizer, job.optimizer))


def test_random_stream_afterwards_is_the_plain_one(job: Job) -> None:
    assert torch.equal(job.reference.random, job.random)


def test_memory_returns_to_the_baseline(job: Job) -> None:
    assert job.first_memory.left == 0
    assert job.memory.left == 0


@pytest.mark.smoke
@pytest.mark.parametrize("name", models.MAIN)
def test_one_step_at_half_the_peak(name: str) -> None:
    """The main job in short: one step of each model at 50 %."""
    workload = models.build(name, "small")
    plain = training.plain(workload)
    plain_loss = plain.gradients(0)()
    peak = training.measured_peak(plain.gradients(0))
    plain.gradients(1)()
    agreed = training.budgeted(workload, peak // 2)
    assert float(agreed.trainee.gradients(0)()) == float(plain_loss)
    assert training.measured_peak(agreed.trainee.gradients(0)) <= agreed.granted
    agreed.trainee.gradients(1)()
    assert training.differing_gradients(plain.module, agreed.trainee.module) == []
    assert training.differing_state(plain.module, agreed.trainee.module) == []
