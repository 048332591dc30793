"""Traps that a rewrite of graphs falls into: aliases, hidden writes, constants, state that changes later."""

import pytest
import recals
import torch
import torch.nn.functional as F
from support import BUDGETS, assert_same, features, rewrite, step, twins
from torch import Tensor, nn


class Pair(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.left = nn.Linear(24, 64)
        self.right = nn.Linear(24, 64)

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return torch.tanh(self.left(a)) * torch.sigmoid(self.right(b))


@pytest.mark.parametrize("budget", BUDGETS)
def test_one_tensor_as_two_example_inputs(budget: str) -> None:
    same = features()
    plain, budgeted = twins(Pair(), (same, same), budget)
    other = (features(seed=1), features(seed=2))
    assert_same(step(plain, other), step(budgeted, other))


class Total(nn.Module):
    """A loss that is summed up in a tensor made from a number."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(24, 24) for _ in range(3)])

    def forward(self, x: Tensor) -> Tensor:
        total = torch.tensor(0.0)
        for layer in self.layers:
            x = torch.tanh(layer(x))
            total += x.square().mean()
        return total


class Counted(nn.Module):
    """A factor that no gradient flows through, and that grows if it is shared by calls."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(24, 24)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.layer(x))
        factor = torch.tensor(1.0)
        factor.add_(h.detach().mean())
        return h * factor


class StatisticsBefore(nn.Module):
    """Reads running statistics that BatchNorm writes afterwards, without a trace in their version."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(24, 48)
        self.norm = nn.BatchNorm1d(48)

    def forward(self, x: Tensor) -> Tensor:
        h = self.layer(x)
        running = self.norm.running_mean
        assert running is not None
        z = torch.sigmoid((torch.exp((h - running) * 0.1) * 2).exp())
        return self.norm(h) + z


class StatisticsBetween(nn.Module):
    """The same BatchNorm twice, its statistics read in between."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(24, 48)
        self.norm = nn.BatchNorm1d(48)

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(torch.tanh(self.layer(x)))
        variance = self.norm.running_var
        assert variance is not None
        h = torch.sigmoid(torch.exp(h * variance * 0.1))
        return self.norm(h)


class Elu(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(24, 24) for _ in range(3)])

    def forward(self, x: Tensor) -> Tensor:
        x = F.elu(self.layers[0](x), inplace=True)
        x = F.celu(self.layers[1](x), inplace=True)
        return F.selu(self.layers[2](x), inplace=True)


class Copied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(24, 24)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.layer(x))
        y = torch.empty_like(h)
        y.copy_(h)
        return torch.exp(y)


class BufferThroughAView(nn.Module):
    """A buffer is read, then written through a view of it."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(24, 24)
        self.register_buffer("scale", torch.ones(2, 24))

    def forward(self, x: Tensor) -> Tensor:
        h = torch.exp(torch.tanh(self.layer(x) + self.scale[0]))
        self.scale[0].add_(0.5)
        return torch.sigmoid(h) * self.scale[1]


@pytest.mark.parametrize("budget", BUDGETS)
@pytest.mark.parametrize("kind", [Total, Counted, StatisticsBefore, StatisticsBetween, Elu, Copied, BufferThroughAView])
def test_same_bits_over_three_steps(kind: type[nn.Module], budget: str) -> None:
    inputs = (features(),)
    plain, budgeted = twins(kind(), inputs, budget)
    for seed in range(3):
        assert_same(step(plain, inputs, seed=seed), step(budgeted, inputs, seed=seed))


class PartOfAConstant(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(24, 24)

    def forward(self, x: Tensor) -> Tensor:
        weights = torch.tensor([1.0, 2.0])
        weights[0] = self.layer(x).mean().detach()
        return self.layer(x) * weights[0]


def test_a_write_into_a_part_of_a_constant_is_refused() -> None:
    with pytest.raises(recals.RecalsError, match="writes into a part of a constant tensor"):
        rewrite(PartOfAConstant(), (features(),))


def test_hooks_of_the_module_itself_are_refused() -> None:
    module = Pair()

    def double(self, inputs: tuple[Tensor, Tensor], output: Tensor) -> Tensor:
        return output * 2

    module.register_forward_hook(double)
    with pytest.raises(recals.RecalsError, match="hooks"):
        rewrite(module, (features(), features()))


def test_parameters_unfrozen_after_the_plan_are_an_error_and_frozen_ones_are_fine() -> None:
    module = Pair()
    module.left.weight.requires_grad_(False)
    inputs = (features(), features(seed=1))
    plain, budgeted = twins(module, inputs)
    assert_same(step(plain, inputs), step(budgeted, inputs))
    budgeted.left.weight.requires_grad_(True)
    with pytest.raises(RuntimeError, match="recals: the plan was made for a module with tensors=4"):
        step(budgeted, inputs)
    for one in (plain, budgeted):
        one.left.weight.requires_grad_(False)
        one.right.bias.requires_grad_(False)
    assert_same(step(plain, inputs), step(budgeted, inputs))


def test_a_parameter_of_another_dtype_is_an_error() -> None:
    inputs = (features(), features(seed=1))
    _, budgeted = twins(Pair(), inputs)
    budgeted.double()
    with pytest.raises(RuntimeError, match="recals: the plan was made for"):
        budgeted(*inputs)
    with torch.no_grad():
        assert budgeted(*(tensor.double() for tensor in inputs)).dtype == torch.float64


class Choice(nn.Module):
    sizes: list[int]

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(24, 24)
        self.sizes = [1, 2]

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.layer(x))
        for size in self.sizes:
            x = x * size
        return x


def test_a_list_attribute_that_changes_goes_to_the_plain_method() -> None:
    inputs = (features(),)
    budgeted = rewrite(Choice(), inputs)
    before = budgeted(*inputs)
    budgeted.sizes = [3, 4]
    assert torch.equal(budgeted(*inputs), before * 6)
