"""The smallest budget of a large step is one number for `pareto`, "min", the error and `optimize`."""

import re
import time

import pytest
import recals
import torch
import zoo
from support import features, net
from torch import Tensor, nn


class Block(nn.Module):
    """Of a decoder: attention, and an MLP with a gate."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.first = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.second = nn.LayerNorm(width)
        self.gate = nn.Linear(width, 4 * width, bias=False)
        self.up = nn.Linear(width, 4 * width, bias=False)
        self.down = nn.Linear(4 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = (
            part.view(batch, length, self.heads, width // self.heads).transpose(1, 2)
            for part in self.qkv(self.first(x)).chunk(3, dim=-1)
        )
        scores = torch.softmax(q @ k.transpose(-2, -1) * (width // self.heads) ** -0.5, dim=-1)
        x = x + self.out((scores @ v).transpose(1, 2).reshape(batch, length, width))
        h = self.second(x)
        return x + self.down(nn.functional.silu(self.gate(h)) * self.up(h))


class Decoder(nn.Module):
    def __init__(self, layers: int, width: int, heads: int, words: int) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, words, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        logits = self.head(self.norm(self.blocks(self.words(tokens))))
        return nn.functional.cross_entropy(logits.flatten(0, 1), tokens.flatten())


def expect_one_truth(traced: torch.jit.ScriptModule, tokens: Tensor) -> None:
    smallest = recals.pareto(traced, (tokens,)).points[-1].peak
    start = time.perf_counter()
    with pytest.raises(recals.BudgetError) as too_little:
        recals.optimize(traced, (tokens,), 1000)
    print(f"smallest {smallest}, {time.perf_counter() - start:.1f} s to fail")
    assert too_little.value.smallest == {"cpu": smallest}
    percent = re.search(r'"([\d.]+%)" works', str(too_little.value))
    assert percent, str(too_little.value)
    analysis = recals.passes.analyse(traced, (tokens,))
    for budget in ("min", smallest, percent.group(1)):
        start = time.perf_counter()
        plan = recals.passes.plan(analysis, budget).plan["devices"][0]
        print(f"{budget}: {plan['peak']}, {time.perf_counter() - start:.1f} s")
        assert smallest <= plan["peak"] <= plan["budget"]
    with pytest.raises(recals.BudgetError):
        recals.passes.plan(analysis, smallest - 1)


def test_a_large_gpt2() -> None:
    pytest.importorskip("transformers")
    specimen = zoo.gpt2(layers=24, width=32, batch=1, length=32)
    expect_one_truth(specimen.captured(), specimen.inputs[0])


def test_a_large_decoder_on_meta() -> None:
    with torch.device("meta"):
        module = Decoder(22, 512, 8, 4000)
    tokens = torch.zeros(2, 256, dtype=torch.long, device="meta")
    expect_one_truth(torch.jit.trace(module, (tokens,), check_trace=False), tokens)


def test_a_budget_that_is_too_small_says_what_works() -> None:
    scripted = torch.jit.script(net())
    x = (features(),)
    with pytest.raises(recals.BudgetError) as error:
        recals.optimize(scripted, x, "10%")
    text = str(error.value)
    percent = re.search(r'"([\d.]+%)" works', text)
    assert percent, text
    assert '"min"' in text
    recals.optimize(scripted, x, percent.group(1))
    with pytest.raises(recals.BudgetError):
        recals.optimize(scripted, x, f"{float(percent.group(1)[:-1]) - 0.2:.1f}%")
