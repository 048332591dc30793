"""scaled_dot_product_attention takes the same way in the dry run as on the device, whatever its arguments."""

import contextlib
import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import recals
import torch
import torch.nn.functional as F
import training
from support import TIGHTEST, assert_same, check_steps, step, twins
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

BATCH, HEADS, LENGTH, CHANNELS = 2, 8, 48, 16


class Attend(nn.Module):
    def __init__(self, causal: bool = False, dropout: float = 0.0, grouped: bool = False, masked: bool = False) -> None:
        super().__init__()
        self.causal = causal
        self.dropout = dropout
        self.grouped = grouped
        self.masked = masked

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
        attended = F.scaled_dot_product_attention(
            -query,
            -key,
            -value,
            attn_mask=mask if self.masked else None,
            dropout_p=self.dropout,
            is_causal=self.causal,
            enable_gqa=self.grouped,
        )
        return attended.float().square().mean()


@dataclass
class Case:
    """One call; sizes are those of the query's, keys may have fewer heads, values fewer channels."""

    dimensions: int = 4
    key_heads: int = HEADS
    key_length: int = LENGTH
    value_channels: int = CHANNELS
    mask: tuple[int, ...] | None = None
    mask_kind: str = "bool"
    causal: bool = False
    dropout: float = 0.0
    dtype: torch.dtype = torch.float32
    layout: str = "contiguous"
    needs_grad: str = "qkv"
    only_math: bool = False

    def tensor(self, name: str, heads: int, length: int, channels: int) -> Tensor:
        sizes = {4: (BATCH, heads, length, channels), 3: (heads, length, channels), 2: (length, channels)}
        made = torch.randn(sizes[self.dimensions])
        if self.layout == "transposed" and self.dimensions > 2:
            made = made.transpose(-2, -3).contiguous().transpose(-2, -3)
        elif self.layout == "strided":
            made = made.transpose(-1, -2).contiguous().transpose(-1, -2)
        return made.to(self.dtype).requires_grad_(name in self.needs_grad)

    def inputs(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        mask = torch.rand(self.mask or (1, 1)) > 0.2
        if self.mask_kind != "bool":
            mask = torch.zeros(mask.shape).masked_fill(~mask, -4.0).to(self.dtype)
            mask.requires_grad_(self.mask_kind == "trained")
        return (
            self.tensor("q", HEADS, LENGTH, CHANNELS),
            self.tensor("k", self.key_heads, self.key_length, CHANNELS),
            self.tensor("v", self.key_heads, self.key_length, self.value_channels),
            mask,
        )

    def module(self) -> Attend:
        grouped = self.key_heads != HEADS
        return Attend(self.causal, self.dropout, grouped, self.mask is not None).train()

    def kernels(self) -> contextlib.AbstractContextManager[None]:
        return sdpa_kernel(SDPBackend.MATH) if self.only_math else contextlib.nullcontext()


def valid(case: Case) -> bool:
    return not (
        (case.causal and case.mask is not None)
        or (case.key_heads != HEADS and case.dimensions < 3)
        or (case.mask is not None and len(case.mask) > max(case.dimensions, 2))
        or (case.mask is None and case.mask_kind != "bool")
        or (case.mask is not None and case.mask[-1] not in (1, case.key_length))
    )


MASKS: list[tuple[int, ...] | None] = [
    None,
    (LENGTH, LENGTH),
    (1, LENGTH),
    (HEADS, LENGTH, LENGTH),
    (1, LENGTH, LENGTH),
    (BATCH, 1, LENGTH, LENGTH),
    (BATCH, HEADS, 1, LENGTH),
    (1, HEADS, LENGTH, LENGTH),
    (LENGTH, 1),
]


def cases(count: int) -> Iterator[Case]:
    """The same ones each time, spread over all arguments."""
    axes: dict[str, list[Any]] = {
        "dimensions": [4, 4, 4, 3, 2],
        "key_heads": [HEADS, HEADS, 2, 1],
        "key_length": [LENGTH, LENGTH, LENGTH, 32],
        "value_channels": [CHANNELS, CHANNELS, CHANNELS, 8],
        "mask": MASKS,
        "mask_kind": ["bool", "bool", "float", "trained"],
        "causal": [False, True],
        "dropout": [0.0, 0.0, 0.2],
        "dtype": [torch.float32, torch.float32, torch.bfloat16, torch.float64],
        "layout": ["contiguous", "transposed", "strided"],
        "needs_grad": ["qkv", "qkv", "q", "kv", "v"],
        "only_math": [False, False, True],
    }
    draw = random.Random(0)
    made = (Case(**{name: draw.choice(values) for name, values in axes.items()}) for _ in itertools.count())
    return itertools.islice(filter(valid, made), count)


def outgrown(case: Case) -> str | None:
    """What is wrong with the prediction of a plain step."""
    module, inputs = case.module(), case.inputs()
    for leaf in inputs:
        if leaf.requires_grad:
            leaf.grad = torch.zeros_like(leaf)
    with case.kernels():
        report = recals.estimate(torch.jit.script(module), inputs)
        # Run op by op, with nothing recomputed.
        budgeted = recals.optimize(torch.jit.script(module), inputs, 2**60)

        def run() -> None:
            torch.manual_seed(0)
            budgeted(*inputs).backward()

        run()
        with recals.track_memory(budgeted) as memory:
            run()
    held = memory.held["cpu"] - report.held["cpu"]
    peak = report.peak["cpu"] - memory.peak["cpu"]
    if held != 0:
        return f"{case}: {memory.held['cpu']} held, {report.held['cpu']} predicted"
    if peak < 0 or peak > memory.peak["cpu"] // 5 + 64 * 1024:
        return f"{case}: peak {memory.peak['cpu']}, {report.peak['cpu']} predicted"
    return None


def test_bytes_of_attention() -> None:
    """Held at the end of the forward to the byte, peaks within the bounds of scratch memory."""
    wrong = [words for case in cases(160) if (words := outgrown(case)) is not None]
    assert wrong == []


class Expert(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.gate = nn.Linear(width, 2 * width, bias=False)
        self.up = nn.Linear(width, 2 * width, bias=False)
        self.down = nn.Linear(2 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Block(nn.Module):
    """Grouped queries, then four experts of which each position mixes two."""

    def __init__(self, width: int = 64, heads: int = 8, key_heads: int = 2) -> None:
        super().__init__()
        self.heads = heads
        self.key_heads = key_heads
        self.channels = width // heads
        self.first_norm = nn.LayerNorm(width)
        self.query = nn.Linear(width, width, bias=False)
        self.key = nn.Linear(width, key_heads * self.channels, bias=False)
        self.value = nn.Linear(width, key_heads * self.channels, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.second_norm = nn.LayerNorm(width)
        self.router = nn.Linear(width, 4, bias=False)
        self.experts = nn.ModuleList(Expert(width) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        y = self.first_norm(x)
        query = self.query(y).view(batch, length, self.heads, self.channels).transpose(1, 2)
        key = self.key(y).view(batch, length, self.key_heads, self.channels).transpose(1, 2)
        value = self.value(y).view(batch, length, self.key_heads, self.channels).transpose(1, 2)
        attended = F.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
        x = x + self.out(attended.transpose(1, 2).reshape(batch, length, width))
        y = self.second_norm(x)
        weights, chosen = torch.topk(torch.softmax(self.router(y), -1), 2, dim=-1)
        weights = weights / weights.sum(-1, keepdim=True)
        mixed = torch.zeros_like(y)
        for number, expert in enumerate(self.experts):
            share = (weights * (chosen == number)).sum(-1, keepdim=True)
            mixed = mixed + share * expert(y)
        return x + mixed


class Mixture(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(100, 64)
        self.blocks = nn.Sequential(Block(), Block())
        self.head = nn.Linear(64, 100, bias=False)

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        logits = self.head(self.blocks(self.table(tokens)))
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


@pytest.mark.parametrize("budget", ["80%", "60%", TIGHTEST])
def test_a_mixture_of_experts_keeps_its_budget(budget: str) -> None:
    tokens = torch.randint(100, (4, 64), generator=torch.Generator().manual_seed(0))
    plain, budgeted = twins(Mixture(), (tokens, tokens), budget)
    limit = training.cpu_plan(budgeted)["budget"]
    for _ in range(2):
        assert_same(step(plain, (tokens, tokens)), step(budgeted, (tokens, tokens)))
    assert training.measured_peak(lambda: budgeted(tokens, tokens).backward()) <= limit


class Trunk(nn.Module):
    """`view` takes the heads together, which only the fused kernel's layout allows."""

    def __init__(self) -> None:
        super().__init__()
        self.inside = nn.Linear(32, 96)
        self.outside = nn.Linear(32, 32)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        parts = self.inside(x).view(batch, length, 3, 4, width // 4).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(parts[0].contiguous(), parts[1], parts[2])
        heads_last = F.scaled_dot_product_attention(parts[0], parts[1], parts[2]).transpose(1, 2)
        return self.outside(heads_last.view(batch, length, width)) + attended.transpose(1, 2).reshape(x.shape)


def test_layouts_are_those_of_the_kernel() -> None:
    check_steps(Trunk(), (torch.randn(2, 24, 32),))


def test_no_kernel_is_said_before_the_step() -> None:
    module, inputs = Case(dropout=0.5).module(), Case(dropout=0.5).inputs()
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION), pytest.raises(recals.RecalsError, match="No available kernel"):
        recals.estimate(torch.jit.script(module), inputs)
