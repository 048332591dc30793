"""Small steps for the tests that need no big model: run one plain and one budgeted, compare every bit."""

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import recals
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from training import cloned, differing, named_gradients, named_state, prepare_gradients, same_bits

TIGHTEST = "tightest"
"""A budget for `rewrite`: the smallest feasible one."""

BUDGETS = (TIGHTEST, "50%", "75%", "100%")


NEEDS_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


class Net(nn.Module):
    """A bit of everything that is saved for the backward: inputs, results, masks, statistics."""

    def __init__(self, inside: int = 24, width: int = 96, outside: int = 8) -> None:
        super().__init__()
        self.first = nn.Linear(inside, width)
        self.norm = nn.BatchNorm1d(width)
        self.second = nn.Linear(width, width)
        self.dropout = nn.Dropout(0.2)
        self.third = nn.Linear(width, width)
        self.layer_norm = nn.LayerNorm(width)
        self.last = nn.Linear(width, outside)

    def forward(self, features: Tensor) -> Tensor:
        x = self.dropout(torch.relu(self.norm(self.first(features))))
        x = self.dropout(F.gelu(self.second(x)))
        x = self.dropout(torch.tanh(self.third(x)))
        return self.last(self.layer_norm(x))


def net(seed: int = 0) -> Net:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Net()


def features(rows: int = 128, width: int = 24, seed: int = 0) -> Tensor:
    return torch.randn(rows, width, generator=torch.Generator().manual_seed(seed))


def smallest_budget(scripted: torch.jit.ScriptModule, inputs: tuple[Any, ...], **how: Any) -> dict[str, int]:
    """The smallest feasible budget, as the error of an impossible one tells it."""
    try:
        recals.optimize(scripted, inputs, 1, **how)
    except recals.BudgetError as error:
        return error.smallest
    raise AssertionError("a budget of one byte was accepted")


def rewrite(module: nn.Module, inputs: tuple[Any, ...], budget: Any = TIGHTEST) -> nn.Module:
    """Scripts `module` (if it is not yet) and rewrites it; where the budget is infeasible, at the smallest feasible."""
    scripted = module if isinstance(module, torch.jit.ScriptModule) else torch.jit.script(module)
    if budget == TIGHTEST:
        budget = smallest_budget(scripted, inputs)
    try:
        return recals.optimize(scripted, inputs, budget)
    except recals.BudgetError as error:
        return recals.optimize(scripted, inputs, error.smallest)


def twins(module: nn.Module, inputs: tuple[Any, ...], budget: Any = TIGHTEST) -> tuple[nn.Module, nn.Module]:
    """A plain eager copy of `module`, and a budgeted one, both with gradients of zeros."""
    plain, other = copy.deepcopy(module), copy.deepcopy(module)
    budgeted = rewrite(other, inputs, budget)
    prepare_gradients(plain)
    prepare_gradients(budgeted)
    return plain, budgeted


def leaves(value: Any) -> list[Tensor]:
    """The tensors inside nested tuples, lists, dicts and NamedTuples."""
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, Mapping):
        return [leaf for key in value for leaf in leaves(value[key])]
    if isinstance(value, (tuple, list)):
        return [leaf for item in value for leaf in leaves(item)]
    return []


def scalar(output: Any) -> Tensor:
    """A loss of any output: each differentiable tensor in it counts, and no two elements alike."""
    total = torch.zeros(())
    for leaf in leaves(output):
        if leaf.requires_grad:
            weights = torch.linspace(0.5, 1.5, leaf.numel(), dtype=leaf.dtype, device=leaf.device)
            total = total + (leaf * weights.reshape(leaf.shape)).sum().float()
    return total


@dataclass
class Outcome:
    """All that a step leaves behind."""

    output: Any
    state: dict[str, Tensor | None]
    gradients: dict[str, Tensor | None]
    input_gradients: list[Tensor | None]
    random: Tensor


def run(
    module: nn.Module,
    inputs: tuple[Any, ...],
    *,
    seed: int = 1,
    between: Callable[[], Any] = lambda: None,
    loss: Callable[[Any], Tensor] = scalar,
    kwargs: Mapping[str, Any] | None = None,
) -> Any:
    """Seeds, runs forward and backward; `between` is called between them. Returns the output."""
    torch.manual_seed(seed)
    output = module(*inputs, **(kwargs or {}))
    between()
    loss(output).backward()
    return output


def step(module: nn.Module, inputs: tuple[Any, ...], **how: Any) -> Outcome:
    """`run`, and a snapshot of all that it leaves behind."""
    leaf_inputs = [leaf for leaf in leaves(inputs) if leaf.requires_grad]
    for leaf in leaf_inputs:
        leaf.grad = None
    output = run(module, inputs, **how)
    return Outcome(
        output,
        cloned(named_state(module)),
        cloned(named_gradients(module)),
        [None if leaf.grad is None else leaf.grad.clone() for leaf in leaf_inputs],
        torch.get_rng_state(),
    )


def assert_same(plain: Outcome, budgeted: Outcome) -> None:
    """Outputs, state, gradients and the random stream agree in every bit."""
    assert type_tree(budgeted.output) == type_tree(plain.output)
    for number, (a, b) in enumerate(zip(leaves(plain.output), leaves(budgeted.output), strict=True)):
        assert same_bits(a, b), f"output {number} differs"
        assert a.requires_grad == b.requires_grad, f"output {number} needs a gradient on one side only"
        assert a.stride() == b.stride(), f"output {number} has strides {b.stride()}, plain {a.stride()}"
    assert differing(plain.gradients, budgeted.gradients) == []
    assert differing(plain.state, budgeted.state) == []
    assert all(map(same_bits, plain.input_gradients, budgeted.input_gradients)), "gradients of the inputs differ"
    assert torch.equal(plain.random, budgeted.random), "the random stream is elsewhere"


def type_tree(value: Any) -> Any:
    """The shape of a nested output: container kinds, keys and field names."""
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return ("namedtuple", value._fields, [type_tree(item) for item in value])
    if isinstance(value, Mapping):
        return ("dict", {key: type_tree(item) for key, item in value.items()})
    if isinstance(value, (tuple, list)):
        return (type(value).__name__, [type_tree(item) for item in value])
    return type(value).__name__


def check_steps(module: nn.Module, inputs: tuple[Any, ...], budget: Any = TIGHTEST, steps: int = 3, **how: Any) -> None:
    """`steps` steps of both twins leave the same bits, gradients accumulating."""
    plain, budgeted = twins(module, inputs, budget)
    for seed in range(steps):
        assert_same(step(plain, inputs, seed=seed, **how), step(budgeted, inputs, seed=seed, **how))


def recomputed_nodes(action: Callable[[], Any]) -> int:
    """How many nodes were recomputed while `action` ran."""
    recals.reset_counters()
    action()
    return recals.counters()["recomputed_nodes"]


def resident() -> int:
    """Bytes of memory that this process occupies."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096
