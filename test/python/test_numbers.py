"""Python's numbers, and tensors that the forward makes of them: dtypes and bytes are those of the eager module."""

import io
import linecache
import warnings
from typing import Any

import pytest
import recals
import torch
import training
from support import smallest_budget
from torch import Tensor, nn

ROWS, WIDTH = 32, 96

PROMOTIONS = [
    "torch.arange(96) * -0.37",
    "torch.arange(96) / 7",
    "index * 0.5",
    "index + 1.5",
    "0.5 - index",
    "index ** 0.5",
    "1.0 / (index + 1)",
    "(index > 2.5).float()",
    "(index * 0.37 > 1.11).to(x.dtype)",
    "torch.where(index > 3, index * 0.1, index * 2.5)",
    "(x.to(torch.bfloat16) * 0.3).float()",
    "(x.to(torch.bfloat16) + 1000.1).float()",
    "x.double() * 0.1",
    "torch.exp(torch.arange(0, 96) * -0.1) + 3 * torch.ones(96)",
    "torch.full((96,), 2) * 0.1",
    "(index % 2.5) * 2",
    "torch.clamp(index * 0.3, 0.5, 2)",
    "torch.cat([torch.sin(torch.arange(48) * 0.7), torch.cos(torch.arange(48) * 0.7)])",
]

SOURCE = """
import torch
from torch import Tensor, nn

class Module(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(24, 96)
        self.last = nn.Linear(96, 8)

    def forward(self, features: Tensor, index: Tensor):
        x = torch.tanh(self.first(features))
        y = CASE
        return self.last(torch.tanh(x * y.to(x.dtype))), x * y
"""


def module_of(case: str, number: int) -> nn.Module:
    """A module made from source, which TorchScript reads through linecache."""
    source = SOURCE.replace("CASE", case)
    name = f"numbers{number}.py"
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    namespace: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(source, name, "exec"), namespace)
    torch.manual_seed(0)
    return namespace["Module"]()


def inputs() -> tuple[Tensor, Tensor]:
    return torch.randn(ROWS, 24, generator=torch.Generator().manual_seed(0)), torch.arange(96)


def outcome(module: nn.Module) -> list[Tensor]:
    training.prepare_gradients(module)
    first, second = module(*inputs())
    (first.square().mean() + second.double().square().mean()).backward()
    return [first.detach(), second.detach(), *(parameter.grad for parameter in module.parameters())]


def saved_and_loaded(module: torch.jit.ScriptModule) -> torch.jit.ScriptModule:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        buffer = io.BytesIO()
        torch.jit.save(module, buffer)
        buffer.seek(0)
        return torch.jit.load(buffer)


def assert_same_bits(one: list[Tensor], other: list[Tensor]) -> None:
    assert [tensor.dtype for tensor in one] == [tensor.dtype for tensor in other]
    assert all(map(training.same_bits, one, other))


@pytest.mark.parametrize("way", ["trace", "script"])
@pytest.mark.parametrize("case", PROMOTIONS)
def test_numbers_stay_numbers(case: str, way: str) -> None:
    module = module_of(case, PROMOTIONS.index(case))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        compiled = torch.jit.trace(module, inputs()) if way == "trace" else torch.jit.script(module)
    expected = outcome(module)
    rewritten = recals.optimize(compiled, inputs(), smallest_budget(compiled, inputs()))
    assert_same_bits(outcome(rewritten), expected)
    assert_same_bits(outcome(saved_and_loaded(rewritten)), expected)


# ----------------------------------------------------------------------------------------------------------------------
# Tensors of constants alone

SIZE = 256


class Made(nn.Module):
    """Makes a table of 256 KiB in every step."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.way = way
        self.scale = nn.Parameter(torch.ones(SIZE, SIZE))

    def forward(self, x: Tensor) -> Tensor:
        if self.way == "tril":
            made = torch.ones(256, 256).tril()
        elif self.way == "eye":
            made = torch.eye(256)
        elif self.way == "arange":
            made = torch.arange(256 * 256).view(256, 256).float()
        elif self.way == "zeros":
            made = torch.zeros(256, 256) + 1
        else:
            made = torch.full([256, 256], 0.5)
        return (x * made * self.scale).sum()


@pytest.mark.parametrize("way", ["tril", "eye", "arange", "zeros", "full"])
def test_tensors_of_constants_live_as_in_eager(way: str) -> None:
    x = torch.randn(SIZE, SIZE)
    rewritten = recals.optimize(torch.jit.script(Made(way)), (x,), 2**60)
    predicted = training.cpu_plan(rewritten)["peak"]
    training.prepare_gradients(rewritten)
    for number in range(4):
        memory = training.measure(lambda: rewritten(x).backward())
        assert memory.left == 0, f"step {number} leaves something behind"
        assert 0 <= predicted - memory.peak <= 256, f"step {number}: {memory.peak} for {predicted}"


def test_a_plain_call_computes_what_the_module_says() -> None:
    module = Made("tril")
    x = torch.randn(SIZE, SIZE)
    rewritten = recals.optimize(torch.jit.script(module), (x,), 2**60)
    with torch.no_grad():
        for _ in range(3):
            assert training.same_bits(rewritten(x), module(x))
