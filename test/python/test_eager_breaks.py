"""Models that torch captures as several graphs: they share one budget."""

import copy
from typing import Any

import pytest
import recals
import torch
import torch.nn.functional as F
import training
from eager import run, twins
from torch import Tensor, nn
from training import cpu_of

pytestmark = pytest.mark.usefixtures("forget_compiled")


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + F.dropout(self.narrow(F.gelu(self.wide(x))), 0.1)


class Broken(nn.Module):
    """Three breaks: four graphs."""

    def __init__(self, blocks: int = 3, width: int = 32) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([nn.Sequential(*(Block(width) for _ in range(blocks))) for _ in range(4)])

    def forward(self, x: Tensor) -> Tensor:
        x = self.blocks[0](x)
        torch._dynamo.graph_break()
        x = self.blocks[1](x)
        print(end="")
        x = self.blocks[2](x)
        torch._dynamo.graph_break()
        return self.blocks[3](x).square().mean()


def rows() -> Tensor:
    return torch.randn(512, 32, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("budget", ["75%", "50%", "min"])
def test_several_graphs_keep_one_budget(budget: str) -> None:
    pair = twins(Broken(), budget=budget)
    pair.steps(rows())
    plain, ours = pair.steps(rows())
    assert len(pair.plans) == 4
    most = plain.peak * (0.4 if budget == "min" else float(budget[:-1]) / 100)
    assert ours.peak <= most
    if budget != "min":
        assert ours.peak > 0.8 * most, "what the budget allows is used"


def test_a_number_of_bytes_is_the_steps_budget_too() -> None:
    plain, _ = twins(Broken()).steps(rows())
    pair = twins(Broken(), budget=plain.peak // 2)
    _, ours = pair.steps(rows(), count=3)
    assert ours.peak <= plain.peak // 2


def test_the_first_step_keeps_as_little_as_it_can() -> None:
    pair = twins(Broken(), budget="75%")
    plain, first = pair.step(rows())
    assert first.peak <= 0.75 * plain.peak


def test_breaks_are_said_once_with_reason_and_line() -> None:
    pair = twins(Broken())
    pair.steps(rows(), count=3)
    assert len(pair.warnings) == 3
    assert all(" at test_eager_breaks.py:" in text for text in pair.warnings)
    assert sum("graph_break" in text for text in pair.warnings) == 2


@pytest.mark.filterwarnings("ignore::recals.BudgetWarning")
def test_an_impossible_budget_of_several_graphs_is_an_error() -> None:
    ours = recals.optimize(Broken(), budget=20000)
    with pytest.raises(recals.BudgetError) as raised:
        ours(rows())
    assert raised.value.smallest["cpu"] > 20000


def test_more_than_a_step_in_one_graph_is_found_when_it_comes() -> None:
    """The loop cannot be captured, its bodies can: none of their graphs ends in a break."""

    class Loop(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.ModuleList([Block(32) for _ in range(5)])

        def forward(self, x: Tensor) -> Tensor:
            for block in self.blocks:
                if torch.rand([]) < 0.2:
                    continue
                x = block(x)
            return x.square().mean()

    budget = 5 * 512 * 32 * 9 * 4 * 6 // 10  # of all blocks: each saves nine times as much as it is given
    pair = twins(Loop(), budget=budget)
    peaks = [pair.step(rows(), seed=seed) for seed in [*range(6), *range(6)]][6:]
    assert any("does not become one graph" in text for text in pair.warnings)
    assert max(plain.peak for plain, _ in peaks) > 1.3 * budget
    # What runs outside of the graphs (the loss, here) is not counted.
    assert all(ours.peak <= budget + 2 * rows().nbytes for _, ours in peaks)


def test_a_break_before_anything_is_trained_is_said() -> None:
    class Late(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = Block(32)

        def forward(self, x: Tensor) -> Tensor:
            x = x * 2
            torch._dynamo.graph_break()
            return F.gelu(self.layer(x)).sum()

    pair = twins(Late(), budget="min")
    pair.steps(rows(), count=3)
    assert len(pair.warnings) == 1
    assert " at test_eager_breaks.py:" in pair.warnings[0]
    assert len(pair.plans) == 1


class Reading(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = Block(32)

    def forward(self, x: Tensor) -> Tensor:
        y = self.layer(x)
        return (F.gelu(y) * y.abs().max().item()).sum()


class Branching(Reading):
    def forward(self, x: Tensor) -> Tensor:
        y = self.layer(x)
        if y.sum() > 0:
            y = F.gelu(y)
        return F.gelu(y).sum()


class Choosing(Reading):
    def forward(self, x: Tensor) -> Tensor:
        return F.gelu(self.layer(x))[x[:, 0] > 0].sum()


class Averaging(Reading):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(32, momentum=None)

    def forward(self, x: Tensor) -> Tensor:
        return F.gelu(self.norm(self.layer(x))).sum()


class BackwardHook(Reading):
    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(32, 32)
        self.last.register_full_backward_hook(lambda module, gradients, _: (gradients[0] * 2,))

    def forward(self, x: Tensor) -> Tensor:
        return F.gelu(self.last(F.gelu(self.layer(x)))).sum()


@pytest.mark.parametrize("model", [Reading, Branching, Choosing, Averaging, BackwardHook], ids=lambda m: m.__name__)
def test_what_depends_on_data_has_the_plain_bits(model: Any) -> None:
    pair = twins(model(), budget="min")
    pair.steps(rows(), count=4)
    assert any("does not become one graph" in text for text in pair.warnings)
    assert all(cpu_of(plan)["peak"] <= cpu_of(plan)["budget"] for plan in pair.plans)


def test_reports_say_that_there_are_several_graphs() -> None:
    with pytest.raises(recals.RecalsError, match="does not become one graph"):
        recals.estimate(Broken(), rows())


def test_the_backend_of_torch_compile_does_not_promise_a_budget_of_several_graphs() -> None:
    from recals.eager.backend import backend

    plain = Broken()
    model = copy.deepcopy(plain)
    training.prepare_gradients(plain), training.prepare_gradients(model)
    compiled = torch.compile(model, backend=backend, options={"budget": "75%"})
    expected = run(plain, rows())
    torch.manual_seed(1)
    with pytest.warns(recals.BudgetWarning, match=r"breaks into several graphs at test_eager_breaks\.py:"):
        compiled(rows()).backward()
    assert training.differing(expected.gradients, dict(training.named_gradients(model))) == []
