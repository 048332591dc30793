"""Stacks of recurrent layers are made again layer by layer."""

from typing import Any

import pytest
import recals
import torch
import training
from support import assert_same, rewrite, step, twins
from torch import Tensor, nn

KINDS = {"lstm": nn.LSTM, "gru": nn.GRU, "rnn": nn.RNN}


class Recurrent(nn.Module):
    def __init__(self, kind: str, **options: Any) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            self.stack = KINDS[kind](24, 32, num_layers=3, **options)

    def forward(self, x: Tensor) -> Tensor:
        y, _ = self.stack(x)
        return y


class WithStates(nn.Module):
    """Returns the last states, too, and takes the first."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            self.stack = nn.LSTM(24, 32, num_layers=3, **options)

    def forward(self, x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        y, (h, c) = self.stack(x, (h, c))
        return y, h, c


def sequence(dtype: torch.dtype) -> Tensor:
    return torch.randn(6, 4, 24, generator=torch.Generator().manual_seed(1)).to(dtype).requires_grad_()


OPTIONS: list[dict[str, Any]] = [
    {},
    {"bidirectional": True},
    {"batch_first": True, "dropout": 0.3},
    {"bidirectional": True, "dropout": 0.2, "bias": False},
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("options", [*OPTIONS, {"proj_size": 16}], ids=str)
def test_lstm(options: dict[str, Any], dtype: torch.dtype) -> None:
    check("lstm", options, dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", ["gru", "rnn"])
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_gru_and_rnn(kind: str, options: dict[str, Any], dtype: torch.dtype) -> None:
    check(kind, options, dtype)


def check(kind: str, options: dict[str, Any], dtype: torch.dtype) -> None:
    inputs = (sequence(dtype),)
    module = Recurrent(kind, **options).to(dtype)
    for budget in ("min", "100%"):
        plain, budgeted = twins(module, inputs, budget)
        for seed in range(2):
            assert_same(step(plain, inputs, seed=seed), step(budgeted, inputs, seed=seed))
        plan = recals.plan_of(budgeted)["devices"][0]
        if budget == "min":
            assert plan["peak"] < 0.8 * plan["plain_peak"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("options", [{}, {"bidirectional": True, "batch_first": True}], ids=str)
def test_first_and_last_states(options: dict[str, Any], dtype: torch.dtype) -> None:
    module = WithStates(**options).to(dtype)
    x = sequence(dtype)
    directions = 2 if options else 1
    batch = 6 if options else 4
    h, c = (
        torch.randn(3 * directions, batch, 32, generator=torch.Generator().manual_seed(n)).to(dtype).requires_grad_()
        for n in (2, 3)
    )
    for budget in ("min", "100%"):
        plain, budgeted = twins(module, (x, h, c), budget)
        assert_same(step(plain, (x, h, c)), step(budgeted, (x, h, c)))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bidirectional", [False, True], ids=["one way", "both ways"])
def test_the_smallest_budget_holds(kind: str, bidirectional: bool) -> None:
    """oneDNN's layers keep a workspace only where gradients are on, which the kernel asks by itself."""

    class Classifier(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(100, 32)
            self.stack = KINDS[kind](32, 64, num_layers=2, batch_first=True, bidirectional=bidirectional)

        def forward(self, x: Tensor) -> Tensor:
            y, _ = self.stack(self.embedding(x))
            return y.mean(1)

    x = torch.randint(0, 100, (8, 48))
    module = rewrite(Classifier(), (x,), "min")
    training.prepare_gradients(module)

    def run() -> None:
        module(x).square().mean().backward()

    run()
    training.zero_gradients(module)
    (line,) = recals.plan_of(module)["devices"]
    assert training.measured_peak(run) <= line["peak"] <= line["budget"]
