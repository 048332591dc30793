"""The models that Recals is shown and tested on: real structures, real data, nothing downloaded.

Every builder returns a `Workload`: the module, a function that makes the batch of a step from a number, and the loss.
The defaults are the sizes that the benchmarks use; `build(name, "small")` keeps the structure and shrinks the rest, so
that a step takes some tens of milliseconds. All modules can be scripted with `torch.jit.script`.

    resnet18     torchvision's ResNet-18 on scikit-learn's digits                 loss outside the module
    gpt          a character GPT with dropout everywhere, on Python's own manual  loss inside the module
    unet         a U-Net with BatchNorm and Dropout2d that denoises digits        loss outside
    mlp          Linear, ReLU, Dropout, twelve times                              loss outside
    encoder      torch's own TransformerEncoder, denoising embedded text          loss outside
    uneven       a chain of 19 very unequal layers                                loss outside
    resnet50     torchvision's ResNet-50 on digits                                loss outside
"""

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Inputs = tuple[Tensor, ...]


class Workload(NamedTuple):
    """A module and what one training step of it needs."""

    module: nn.Module
    make_batch: Callable[[int], tuple[Inputs, Tensor]]
    """The inputs and the targets of step `number`; does not touch the global random stream."""
    loss: Callable[[Any, Tensor], Tensor]
    """From the module's output and the targets to a scalar."""


# ----------------------------------------------------------------------------------------------------------------------
# Data


@cache
def digits() -> tuple[Tensor, Tensor]:
    """scikit-learn's 1797 handwritten digits: images [n, 1, 8, 8] between 0 and 1, and labels."""
    from sklearn.datasets import load_digits

    data = load_digits()
    images = torch.tensor(data.images, dtype=torch.float32).unsqueeze(1) / 16
    return images, torch.tensor(data.target, dtype=torch.long)


@cache
def text() -> Tensor:
    """The language reference that ships with Python (what `help("if")` prints), as ASCII codes below 128."""
    from pydoc_data.topics import topics

    joined = "\n\n".join(topics[name] for name in sorted(topics))
    return torch.tensor(list(joined.encode("ascii", errors="replace")), dtype=torch.long)


def _generator(number: int) -> torch.Generator:
    return torch.Generator().manual_seed(number)


def _pick_digits(number: int, batch: int, side: int) -> tuple[Tensor, Tensor]:
    images, labels = digits()
    chosen = torch.randint(len(labels), (batch,), generator=_generator(number))
    enlarged = F.interpolate(images[chosen], size=(side, side), mode="bilinear", align_corners=False)
    return enlarged, labels[chosen]


def _pick_text(number: int, batch: int, length: int) -> Tensor:
    """`batch` excerpts of `length + 1` characters."""
    source = text()
    starts = torch.randint(len(source) - length - 1, (batch, 1), generator=_generator(number))
    return source[starts + torch.arange(length + 1)]


def _seeded(make: Callable[[], nn.Module], seed: int) -> nn.Module:
    """The module that `make` builds from `seed`; the global random stream stays where it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return make().train()


# ----------------------------------------------------------------------------------------------------------------------
# torchvision's residual networks


def _torchvision(make: Callable[[], nn.Module], batch: int, side: int, seed: int) -> Workload:
    def make_batch(number: int) -> tuple[Inputs, Tensor]:
        images, labels = _pick_digits(number, batch, side)
        return (images.repeat(1, 3, 1, 1),), labels

    return Workload(_seeded(make, seed), make_batch, F.cross_entropy)


def resnet18(*, batch: int = 16, side: int = 112, seed: int = 0) -> Workload:
    import torchvision

    return _torchvision(lambda: torchvision.models.resnet18(num_classes=10), batch, side, seed)


def resnet50(*, batch: int = 8, side: int = 112, seed: int = 0) -> Workload:
    import torchvision

    return _torchvision(lambda: torchvision.models.resnet50(num_classes=10), batch, side, seed)


# ----------------------------------------------------------------------------------------------------------------------
# A character GPT


class Attention(nn.Module):
    """Causal self-attention written out: scores, mask, softmax, dropout, each a tensor of its own."""

    future: Tensor

    def __init__(self, width: int, heads: int, length: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.scale = (width // heads) ** -0.5
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.attention_dropout = nn.Dropout(dropout)
        self.out_dropout = nn.Dropout(dropout)
        self.register_buffer("future", torch.ones(length, length, dtype=torch.bool).triu(1))

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4).unbind(0)
        scores = (q @ k.transpose(-2, -1)) * self.scale
        scores = scores.masked_fill(self.future[:length, :length], float("-inf"))
        weights = self.attention_dropout(F.softmax(scores, dim=-1))
        mixed = (weights @ v).transpose(1, 2).reshape(batch, length, width)
        return self.out_dropout(self.out(mixed))


class Block(nn.Module):
    """A pre-norm transformer block."""

    def __init__(self, width: int, heads: int, length: int, dropout: float) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(width)
        self.attention = Attention(width, heads, length, dropout)
        self.mlp_norm = nn.LayerNorm(width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width), nn.Dropout(dropout)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x))
        return x + self.mlp(self.mlp_norm(x))


class Gpt(nn.Module):
    """A decoder over characters; the forward returns the loss."""

    def __init__(self, vocabulary: int, blocks: int, width: int, heads: int, length: int, dropout: float) -> None:
        super().__init__()
        self.token = nn.Embedding(vocabulary, width)
        self.position = nn.Embedding(length, width)
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.ModuleList([Block(width, heads, length, dropout) for _ in range(blocks)])
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, idx: Tensor, targets: Tensor) -> Tensor:
        positions = torch.arange(idx.shape[1], device=idx.device)
        x = self.dropout(self.token(idx) + self.position(positions))
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def gpt(
    *,
    blocks: int = 6,
    width: int = 256,
    heads: int = 8,
    length: int = 256,
    batch: int = 4,
    dropout: float = 0.1,
    vocabulary: int = 128,
    seed: int = 0,
) -> Workload:
    def make_batch(number: int) -> tuple[Inputs, Tensor]:
        excerpt = _pick_text(number, batch, length)
        targets = excerpt[:, 1:].contiguous()
        return (excerpt[:, :-1].contiguous(), targets), targets

    module = _seeded(lambda: Gpt(vocabulary, blocks, width, heads, length, dropout), seed)
    return Workload(module, make_batch, lambda output, targets: output)


# ----------------------------------------------------------------------------------------------------------------------
# A U-Net


class DoubleConv(nn.Module):
    """Twice convolution, BatchNorm, ReLU; then whole channels are dropped."""

    def __init__(self, inside: int, outside: int, dropout: float) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(inside, outside, 3, padding=1, bias=False),
            nn.BatchNorm2d(outside),
            nn.ReLU(inplace=True),
            nn.Conv2d(outside, outside, 3, padding=1, bias=False),
            nn.BatchNorm2d(outside),
            nn.ReLU(inplace=True),
            nn.Dropout2d(dropout),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


class UNet(nn.Module):
    """Contracting and expanding levels, joined by long skip connections; gives the noise-free image."""

    def __init__(self, levels: int, channels: int, dropout: float) -> None:
        super().__init__()
        widths = [channels << level for level in range(levels)]
        self.down = nn.ModuleList(
            [DoubleConv(inside, width, dropout) for inside, width in zip([1, *widths], widths, strict=False)]
        )
        self.pool = nn.MaxPool2d(2)
        self.bottom = DoubleConv(widths[-1], 2 * widths[-1], dropout)
        self.grow = nn.ModuleList([nn.ConvTranspose2d(2 * width, width, 2, stride=2) for width in reversed(widths)])
        self.up = nn.ModuleList([DoubleConv(2 * width, width, dropout) for width in reversed(widths)])
        self.head = nn.Conv2d(channels, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        skips: list[Tensor] = []
        for down in self.down:
            x = down(x)
            skips.append(x)
            x = self.pool(x)
        x = self.bottom(x)
        for grow, up in zip(self.grow, self.up):  # noqa: B905 -- TorchScript knows no `strict`
            x = up(torch.cat([skips.pop(), grow(x)], dim=1))
        return self.head(x)


def unet(
    *, levels: int = 4, channels: int = 12, side: int = 128, batch: int = 4, dropout: float = 0.1, seed: int = 0
) -> Workload:
    def make_batch(number: int) -> tuple[Inputs, Tensor]:
        clean, _ = _pick_digits(number, batch, side)
        noise = torch.randn(clean.shape, generator=_generator(number))
        return (clean + 0.5 * noise,), clean

    return Workload(_seeded(lambda: UNet(levels, channels, dropout), seed), make_batch, F.mse_loss)


# ----------------------------------------------------------------------------------------------------------------------
# Plain stacks


class Mlp(nn.Module):
    """Linear, ReLU, Dropout, again and again."""

    def __init__(self, layers: int, width: int, dropout: float) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            [nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Dropout(dropout)) for _ in range(layers)]
        )

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


def mlp(*, layers: int = 12, width: int = 512, batch: int = 2048, dropout: float = 0.1, seed: int = 0) -> Workload:
    """The first ten of `width` outputs are the logits of the digits."""

    def make_batch(number: int) -> tuple[Inputs, Tensor]:
        images, labels = _pick_digits(number, batch, 8)
        return (images.flatten(1).repeat(1, width // 64),), labels

    return Workload(_seeded(lambda: Mlp(layers, width, dropout), seed), make_batch, F.cross_entropy)


class Uneven(nn.Module):
    """19 layers whose sizes and costs differ by an order of magnitude.

    Three times a stack that is cheap and very wide (expand, then three pointwise layers over the wide tensor) and one
    that is dear and narrow (contract, then a square matmul), the wide one half as wide each time; then the logits.
    """

    def __init__(self, narrow: int, wide: int, outputs: int) -> None:
        super().__init__()
        stacks: list[list[nn.Module]] = [
            [nn.GELU(), nn.Tanh(), nn.Sigmoid()],
            [nn.SiLU(), nn.Softplus(), nn.Tanh()],
            [nn.GELU(), nn.Dropout(0.1), nn.ELU()],
        ]
        layers: list[nn.Module] = []
        for pointwise in stacks:
            layers += [nn.Linear(narrow, wide), *pointwise, nn.Linear(wide, narrow), nn.Linear(narrow, narrow)]
            wide //= 2
        layers.append(nn.Linear(narrow, outputs))
        self.layers = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


def uneven(*, rows: int = 1536, narrow: int = 256, wide: int = 6144, seed: int = 0) -> Workload:
    def make_batch(number: int) -> tuple[Inputs, Tensor]:
        images, labels = _pick_digits(number, rows, 8)
        return (images.flatten(1).repeat(1, narrow // 64),), labels

    return Workload(_seeded(lambda: Uneven(narrow, wide, 10), seed), make_batch, F.cross_entropy)


# ----------------------------------------------------------------------------------------------------------------------
# torch's own encoder


class Encoder(nn.Module):
    """nn.TransformerEncoder as it comes."""

    def __init__(self, layers: int, width: int, heads: int, hidden: int, dropout: float) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(width, heads, hidden, dropout, "gelu", batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.encoder(x)


def encoder(
    *,
    layers: int = 6,
    width: int = 256,
    heads: int = 8,
    hidden: int = 1024,
    length: int = 128,
    batch: int = 8,
    dropout: float = 0.1,
    seed: int = 0,
) -> Workload:
    """Text, embedded by a fixed random table, has a part of its characters blanked; the encoder restores them."""
    table = torch.randn(128, width, generator=_generator(0))

    def make_batch(number: int) -> tuple[Inputs, Tensor]:
        embedded = table[_pick_text(number, batch, length)[:, :-1]]
        shown = torch.rand(batch, length, 1, generator=_generator(number)) > 0.15
        return (embedded * shown,), embedded

    return Workload(_seeded(lambda: Encoder(layers, width, heads, hidden, dropout), seed), make_batch, F.mse_loss)


# ----------------------------------------------------------------------------------------------------------------------

Builder = Callable[..., Workload]

BUILDERS: dict[str, Builder] = {
    "resnet18": resnet18,
    "gpt": gpt,
    "unet": unet,
    "mlp": mlp,
    "encoder": encoder,
    "uneven": uneven,
    "resnet50": resnet50,
}

SMALL: dict[str, dict[str, int]] = {
    "resnet18": {"side": 96},
    "gpt": {"width": 64, "heads": 4, "length": 128},
    "unet": {"channels": 8, "side": 64},
    "mlp": {"width": 128, "batch": 1024},
    "encoder": {"width": 64, "heads": 4, "hidden": 256, "length": 96, "batch": 6},
    "uneven": {"rows": 384, "narrow": 64, "wide": 1024},
    "resnet50": {"batch": 8, "side": 48},
}

MAIN = ("resnet18", "gpt", "unet", "mlp", "encoder")
"""The models for which every promise is tested."""


def build(name: str, size: str = "full", **overrides: float) -> Workload:
    """The workload `name` at its "full" or "small" size."""
    if size not in ("full", "small"):
        raise ValueError(f"size must be 'full' or 'small', not {size!r}")
    return BUILDERS[name](**{**(SMALL[name] if size == "small" else {}), **overrides})
