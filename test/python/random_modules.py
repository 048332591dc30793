"""Modules that nobody thought of: lines of TorchScript put together at random, with the inputs that they take.

A module has values of two kinds, matrices [rows, width] and images [batch, channels, side, side]. Each line makes one
more of values that are there, and may write to one. `modules` is a strategy of Hypothesis, which makes failing ones
smaller.
"""

from __future__ import annotations

import linecache
from dataclasses import dataclass
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor, nn

CHANNELS = 4

MATRIX = [
    "torch.tanh({a})",
    "torch.sigmoid({a})",
    "torch.relu({a})",
    "F.gelu({a})",
    "F.leaky_relu({a}, 0.1)",
    "F.silu({a})",
    "torch.exp(-{a}.abs())",
    "torch.softmax({a}, 1)",
    "{a} + {b}",
    "{a} * {b}",
    "{a} - {b} * 0.5",
    "{a} * 1.5 + 0.25",
    "torch.where({a} > 0, {a}, {b})",
    "torch.maximum({a}, {b})",
    "torch.clamp({a}, -1.0, 1.0)",
    "self.linear({a})",
    "self.linear({a}.t().contiguous().t())",
    "F.layer_norm({a}, [{width}])",
    "self.norm({a})",
    "self.scale * {a}",
    "F.dropout({a}, 0.3, self.training)",
    "F.dropout({a}, 0.0, self.training)",
    "{a} + torch.rand_like({a})",
    "{a}[self.order]",
    "torch.cat([{a}[:, 3:], {b}[:, :3]], 1)",
    "{a}.flip([0])",
    "{a}.cumsum(0) * 0.1",
    "{a} - {a}.mean(0, keepdim=True)",
    "{a} * {a}.amax(1, keepdim=True)",
    "{a} + {a}.sum()",
    "{a}.t().contiguous().t()",
    "{a}.reshape(-1).view({rows}, {width})",
    "{a}.detach() * {b}",
    "{a}.double().tanh().float()",
    "torch.tanh({a}.to(torch.bfloat16)).float()",
    "{a}.masked_fill({b} > 0.5, 0.0)",
    "torch.chunk({a}, 2, 1)[0].repeat(1, 2)",
]
"""`{a}` and `{b}` are matrices, and so is what it makes."""

WRITES = [
    "({a} + 0).relu_()",
    "{a}.clone().mul_({b})",
    "({a} * 2.0).add_({b}).sigmoid_()",
    "F.relu({a} * 2.0, inplace=True)",
    "({a} * 1.0).masked_fill_({b} > 0.5, 0.0)",
    "torch.zeros_like({a}).add_({a}).tanh_()",
]
"""The same, in place on the way."""

STATEMENTS = [
    "self.steps += 1",
    "self.average = self.average * 0.9 + {a}.detach().mean(0) * 0.1",
    "self.average.mul_(0.9).add_({a}.detach().mean(0), alpha=0.1)",
]
"""State."""

TO_IMAGE = "{a}.reshape({batch}, {channels}, {side}, {side})"
TO_MATRIX = "{i}.reshape({rows}, {width})"

IMAGE = [
    "torch.relu({i})",
    "{i} * torch.sigmoid({i})",
    "{i}.contiguous(memory_format=torch.channels_last)",
    "{i}.contiguous()",
    "F.max_pool2d({i}, 3, 1, 1)",
    "F.avg_pool2d({i}, 3, 1, 1)",
    "self.batch_norm({i})",
    "F.pad({i}, [1, 1, 1, 1])[:, :, 1:-1, 1:-1]",
    "F.dropout2d({i}, 0.3, self.training)",
    "{i}.transpose(2, 3)",
    "{i} + {i}.mean([2, 3], keepdim=True)",
    "F.relu(self.batch_norm({i}), inplace=True)",
]

SOURCE = """
import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Module(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear({width}, {width})
        self.norm = nn.BatchNorm1d({width})
        self.batch_norm = nn.BatchNorm2d({channels})
        self.scale = nn.Parameter(torch.linspace(0.5, 1.5, {width}))
        self.register_buffer("order", torch.arange({rows} - 1, -1, -1))
        self.register_buffer("average", torch.zeros({width}))
        self.register_buffer("steps", torch.zeros((), dtype=torch.long))

    def forward(self, m0: Tensor) -> Tensor:
{lines}
        return {result}
"""


@dataclass
class RandomModule:
    """A module by its source, and the sizes and the layout of its input."""

    source: str
    rows: int
    width: int
    transposed: bool
    requires_grad: bool
    budget: int
    """In percent of the way from the smallest budget to the plain peak."""

    def build(self) -> nn.Module:
        name = f"random_module_{abs(hash(self.source))}.py"
        linecache.cache[name] = (len(self.source), None, self.source.splitlines(keepends=True), name)
        namespace: dict[str, Any] = {"__name__": "__main__"}
        exec(compile(self.source, name, "exec"), namespace)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return namespace["Module"]().train()

    def inputs(self) -> tuple[Tensor]:
        generator = torch.Generator().manual_seed(0)
        if self.transposed:
            x = torch.randn(self.width, self.rows, generator=generator).t()
        else:
            x = torch.randn(self.rows, self.width, generator=generator)
        return (x.requires_grad_(self.requires_grad),)


@st.composite
def modules(draw: st.DrawFn) -> RandomModule:
    """Any module of 1 to 14 lines."""
    side = draw(st.sampled_from([4, 8]))
    batch = draw(st.sampled_from([2, 3]))
    width = side * side
    sizes = {
        "rows": batch * CHANNELS,
        "width": width,
        "batch": batch,
        "channels": CHANNELS,
        "side": side,
    }
    matrices, images, lines = ["m0"], [], []

    def pick(names: list[str]) -> str:
        # The newest ones more often, so that chains become long.
        return names[-1 - draw(st.integers(0, min(3, len(names) - 1)))]

    def add(names: list[str], prefix: str, text: str) -> None:
        name = f"{prefix}{len(lines) + 1}"
        lines.append(f"        {name} = {text}")
        names.append(name)

    for _ in range(draw(st.integers(1, 14))):
        kind = draw(st.sampled_from(["matrix"] * 5 + ["write", "statement", "image", "image", "image"]))
        words = {"a": pick(matrices), "b": pick(matrices), **sizes}
        if kind == "matrix":
            add(matrices, "m", draw(st.sampled_from(MATRIX)).format(**words))
        elif kind == "write":
            add(matrices, "m", draw(st.sampled_from(WRITES)).format(**words))
        elif kind == "statement":
            lines.append("        " + draw(st.sampled_from(STATEMENTS)).format(**words))
        elif not images:
            add(images, "i", TO_IMAGE.format(**words))
        else:
            back = draw(st.booleans())
            text = TO_MATRIX if back else draw(st.sampled_from(IMAGE))
            names, prefix = (matrices, "m") if back else (images, "i")
            add(names, prefix, text.format(i=pick(images), **words))
    last = pick(matrices)
    image = f" + {images[-1]}.square().mean()" if images else ""
    result = f"self.linear({last}).square().mean(){image}"
    source = SOURCE.format(lines="\n".join(lines), result=result, **sizes)
    return RandomModule(
        source,
        sizes["rows"],
        width,
        transposed=draw(st.booleans()),
        requires_grad=draw(st.booleans()),
        budget=draw(st.sampled_from([0, 0, 10, 30, 60, 90, 100])),
    )
