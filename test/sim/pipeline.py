"""A model over several devices, and what a step of it leaves behind on each."""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import recals
import sim
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from training import cloned, differing, named_gradients, named_state, prepare_gradients

TOKENS, WIDTH, LENGTH, BATCH = 50, 48, 16, 8


class Block(nn.Module):
    """Pre-norm attention and a small network, on one device, with dropouts."""

    def __init__(self, width: int = WIDTH, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
        scores = torch.softmax(q @ k.transpose(-2, -1) * 0.3, -1)
        mixed = (self.dropout(scores) @ v).transpose(1, 2).reshape(batch, length, width)
        x = x + self.dropout(self.proj(mixed))
        return x + self.dropout(self.down(F.gelu(self.up(self.norm2(x)))))


class Pipeline(nn.Module):
    """Embedding and head on the host, blocks on three devices. Returns its loss."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(TOKENS, WIDTH)
        self.dropout = nn.Dropout(0.1)
        self.first = nn.Sequential(Block()).to("sim:0")
        self.second = nn.Sequential(Block(), Block()).to("sim:1")
        self.third = nn.Sequential(Block()).to("sim:2")
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, TOKENS)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.dropout(self.embed(tokens[:, :-1]))
        x = self.first(x.to("sim:0"))
        x = self.second(x.to("sim:1"))
        x = self.third(x.to("sim:2"))
        x = self.dropout(torch.tanh(self.norm(x.to("cpu"))))
        return F.cross_entropy(self.head(x).flatten(0, 1), tokens[:, 1:].flatten())


DEVICES = ["cpu", "sim:0", "sim:1", "sim:2"]
"""Of the pipeline."""


def pipeline() -> Pipeline:
    torch.manual_seed(7)
    return Pipeline()


def tokens(number: int = 0) -> Tensor:
    return torch.randint(TOKENS, (BATCH, LENGTH + 1), generator=torch.Generator().manual_seed(number))


def random_states() -> dict[str, Tensor]:
    states = {"cpu": torch.get_rng_state()}
    return states | {device: torch.sim.get_rng_state(device) for device in sim.DEVICES}


@dataclass
class Step:
    """What a training step leaves behind, and the most bytes that it held beyond what was there before it."""

    loss: Tensor
    gradients: dict[str, Tensor | None]
    state: dict[str, Tensor | None]
    random: dict[str, Tensor]
    peak: dict[str, int]


def step(module: nn.Module, *inputs: Any, seed: int, between: Callable[[], Any] = lambda: None) -> Step:
    torch.manual_seed(seed)
    with recals.track_memory() as memory:
        loss = module(*inputs)
        between()
        loss.backward()
    return Step(
        loss.detach().cpu(),
        cloned((name, None if value is None else value.cpu()) for name, value in named_gradients(module)),
        cloned((name, None if value is None else value.cpu()) for name, value in named_state(module)),
        random_states(),
        memory.peak,
    )


def assert_same(plain: Step, budgeted: Step) -> None:
    assert torch.equal(plain.loss, budgeted.loss)
    assert differing(plain.gradients, budgeted.gradients) == []
    assert differing(plain.state, budgeted.state) == []
    assert differing(plain.random, budgeted.random) == []


def smallest_budgets(module: torch.jit.ScriptModule, inputs: tuple[Any, ...], devices: list[str]) -> dict[str, int]:
    """Budgets that work together, each about as small as can be."""
    try:
        recals.optimize(module, inputs, dict.fromkeys(devices, 1))
    except recals.BudgetError as error:
        return error.smallest
    raise AssertionError("budgets of one byte were accepted")


def rewritten(module: nn.Module, inputs: tuple[Any, ...], budgets: dict[str, Any]) -> nn.Module:
    """A copy of `module` that trains within the budgets, with gradients of zeros."""
    result = recals.optimize(torch.jit.script(copy.deepcopy(module)), inputs, budgets)
    prepare_gradients(result)
    return result


def planned(module: nn.Module) -> dict[str, dict[str, Any]]:
    """Device -> the plan's line about it."""
    return {line["name"]: line for line in recals.plan_of(module)["devices"]}
