"""What the demo, the tests and the benchmarks share: training steps, measured peaks, comparisons bit by bit.

Two copies of one module stand side by side: the plain one is the eager module itself, the other was scripted and
rewritten by `recals.optimize`. Both get the same batches and the same seeds, so that every bit can be compared.

The baseline of every measurement is what a training loop owns anyway: parameters, their `.grad`s (made before the
first step and zeroed in place), optimizer state, and the batch. What a step holds above that is its activation memory.
"""

import copy
import gc
import hashlib
import math
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import recals
import torch
from models import Inputs, Workload
from torch import Tensor, nn

Budget = int | str | Mapping[Any, Any]


# ----------------------------------------------------------------------------------------------------------------------
# Steps


def prepare_gradients(module: nn.Module) -> None:
    """Gives every parameter that is trained a `.grad` of zeros, which the steps then add to in place."""
    for parameter in module.parameters():
        parameter.grad = torch.zeros_like(parameter) if parameter.requires_grad else None


def zero_gradients(module: nn.Module) -> None:
    for parameter in module.parameters():
        if parameter.grad is not None:
            parameter.grad.zero_()


def backward_step(module: nn.Module, workload: Workload, inputs: Inputs, targets: Tensor) -> Tensor:
    """Forward, loss, backward: the part of a step whose memory counts. Returns the loss."""
    output = module(*inputs)
    loss = workload.loss(output, targets)
    loss.backward()
    return loss.detach()


class Trainee:
    """A module in training: `module` is what the steps call; `update` changes its parameters."""

    def __init__(self, workload: Workload, module: nn.Module, optimizer: torch.optim.Optimizer | None = None) -> None:
        self.workload = workload
        self.module = module
        self.optimizer = optimizer or torch.optim.AdamW(module.parameters(), lr=1e-3)
        prepare_gradients(module)

    def gradients(self, number: int) -> Callable[[], Tensor]:
        """Step `number` without the update, ready to run: batch made, gradients zeroed, random stream seeded."""
        inputs, targets = self.workload.make_batch(number)
        zero_gradients(self.module)
        torch.manual_seed(number)
        return lambda: backward_step(self.module, self.workload, inputs, targets)

    def train(self, number: int) -> float:
        """Step `number` with the update; returns its loss."""
        loss = self.gradients(number)()
        self.optimizer.step()
        return float(loss)


def plain(workload: Workload) -> Trainee:
    """A copy of the workload's module, run by eager PyTorch."""
    return Trainee(workload, copy.deepcopy(workload.module))


@dataclass
class Budgeted:
    """A copy of the workload's module that trains within a budget, and what was agreed on."""

    trainee: Trainee
    asked: Budget
    granted: int
    """Bytes; the smallest feasible budget where `asked` could not be met."""
    feasible: bool
    """Whether `asked` could be met."""
    predicted: int


def budgeted(workload: Workload, budget: Budget, cost_model: str | None = None) -> Budgeted:
    """Scripts and rewrites a copy of the workload's module. The optimizer is made before, as in most scripts."""
    module = copy.deepcopy(workload.module)
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-3)
    inputs, targets = workload.make_batch(0)
    rewritten, feasible = optimize_or_smallest(
        torch.jit.script(module), inputs, budget, cost_model, lambda output: workload.loss(output, targets)
    )
    device = cpu_plan(rewritten)
    return Budgeted(Trainee(workload, rewritten, optimizer), budget, device["budget"], feasible, device["peak"])


def optimize_or_smallest(
    module: nn.Module,
    inputs: Inputs,
    budget: Budget,
    cost_model: str | None = None,
    loss: Callable[[Any], Tensor] | None = None,
) -> tuple[nn.Module, bool]:
    """`recals.optimize`, at the smallest feasible budget if `budget` cannot be met; whether it could."""
    try:
        return recals.optimize(module, inputs, budget, cost_model=cost_model, loss=loss), True
    except recals.BudgetError as error:
        return recals.optimize(module, inputs, error.smallest, cost_model=cost_model, loss=loss), False


def cpu_of(plan: dict[str, Any]) -> dict[str, Any]:
    """A plan's line about the CPU: budget, peak, held, plain_peak, plain_held."""
    (line,) = [device for device in plan["devices"] if device["name"] == "cpu"]
    return line


def cpu_plan(module: nn.Module) -> dict[str, Any]:
    """The same of the plan that a scripted module has."""
    return cpu_of(recals.plan_of(module))


# ----------------------------------------------------------------------------------------------------------------------
# Measuring


@dataclass
class Memory:
    """Bytes on the CPU above the start: the most at any moment, and what was left at the end."""

    peak: int
    left: int
    curve: list[tuple[float, int]]
    """(seconds, bytes) after each allocation and release; empty unless asked for."""


def measure(step: Callable[[], Any], curve: bool = False) -> Memory:
    """Runs `step` and watches the allocator. What `step` returns is released before the bytes left are read."""
    gc.collect()
    with recals.track_memory(curve=curve) as memory:
        result = step()
        del result
        left = memory.live.get("cpu", 0)
    return Memory(memory.peak.get("cpu", 0), left, list(memory.curve()) if curve else [])


def measured_peak(step: Callable[[], Any]) -> int:
    return measure(step).peak


def seconds(step: Callable[[], Any]) -> float:
    start = time.perf_counter()
    step()
    return time.perf_counter() - start


def paired_ratio(
    first: Callable[[int], Callable[[], Any]], second: Callable[[int], Callable[[], Any]], pairs: int
) -> float:
    """Median of time(second) / time(first) over pairs of neighbouring steps, of which each goes first equally often.

    `first(number)` and `second(number)` prepare a step and return it; only the returned step is timed.
    """
    ratios = []
    for number in range(pairs):
        if number % 2:
            later = seconds(second(number))
            ratios.append(later / seconds(first(number)))
        else:
            earlier = seconds(first(number))
            ratios.append(seconds(second(number)) / earlier)
    return statistics.median(ratios)


# ----------------------------------------------------------------------------------------------------------------------
# Comparing


def same_bits(a: Tensor | None, b: Tensor | None) -> bool:
    """Whether two tensors agree in shape, dtype and every bit: +0.0 and -0.0 differ, a NaN equals the same NaN."""
    if a is None or b is None:
        return a is b
    if a.shape != b.shape or a.dtype != b.dtype or a.device != b.device:
        return False
    return torch.equal(_bytes(a), _bytes(b))


def _bytes(tensor: Tensor) -> Tensor:
    return tensor.detach().contiguous().flatten().view(torch.uint8)


def named_state(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    yield from module.named_parameters()
    yield from module.named_buffers()


def named_gradients(module: nn.Module) -> Iterator[tuple[str, Tensor | None]]:
    for name, parameter in module.named_parameters():
        yield name, parameter.grad


def cloned(named: Iterable[tuple[str, Tensor | None]]) -> dict[str, Tensor | None]:
    """A snapshot that later steps do not change."""
    return {name: None if tensor is None else tensor.detach().clone() for name, tensor in named}


def digests(named: Iterable[tuple[str, Tensor | None]]) -> dict[str, str]:
    """What tells bits apart and is small: names with SHA-256 sums."""
    return {name: "" if t is None else hashlib.sha256(_bytes(t).numpy().tobytes()).hexdigest() for name, t in named}


def differing(a: Mapping[str, Tensor | None], b: Mapping[str, Tensor | None]) -> list[str]:
    """The names whose tensors differ in a bit, or that only one side has."""
    return [name for name in {**a, **b} if name not in a or name not in b or not same_bits(a[name], b[name])]


def differing_gradients(a: nn.Module, b: nn.Module) -> list[str]:
    return differing(dict(named_gradients(a)), dict(named_gradients(b)))


def differing_state(a: nn.Module, b: nn.Module) -> list[str]:
    return differing(dict(named_state(a)), dict(named_state(b)))


def largest_gradient_difference(a: nn.Module, b: nn.Module) -> float:
    """0.0 only if every gradient agrees bit for bit; infinite if one side lacks a gradient or has NaNs."""
    largest = 0.0
    theirs = dict(named_gradients(b))
    for name, mine in named_gradients(a):
        other = theirs[name]
        if same_bits(mine, other):
            continue
        if mine is None or other is None:
            return float("inf")
        difference = float((mine - other).abs().max())
        if math.isnan(difference):
            return float("inf")
        # Bits can differ where values do not (the sign of a zero): show that as the smallest number there is.
        largest = max(largest, difference, 5e-324)
    return largest
