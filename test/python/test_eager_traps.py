"""What a trace of a model drops in silence, one model each.

Its bits are the plain model's, planned or not, and where it is not planned that is said with the op and its line.
"""

import random
import re
from collections.abc import Callable
from typing import Any

import pytest
import recals
import torch
import torch.nn.functional as F
from eager import twins
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

pytestmark = pytest.mark.usefixtures("forget_compiled")


class Base(nn.Module):
    """Three layers; what is done with them differs."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(64, 64), nn.Linear(64, 64), nn.Linear(64, 64)


def rows() -> Tensor:
    return torch.randn(256, 64, generator=torch.Generator().manual_seed(0))


# ----------------------------------------------------------------------------------------------------------------------
# Planned


class NoGrad(Base):
    def forward(self, x: Tensor) -> Tensor:
        y = self.a(x)
        with torch.no_grad():
            z = self.b(y).cos()
        return F.gelu(self.c(y * z)).sum()


class EnabledInside(Base):
    def forward(self, x: Tensor) -> Tensor:
        with torch.set_grad_enabled(False):
            z = self.b(x)
        with torch.no_grad():
            z = z.tanh()
            with torch.enable_grad():
                z = z + F.gelu(self.a(x))
        return F.gelu(self.c(z)).sum()


class InPlaceWithoutGrad(Base):
    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            weight = self.b.weight.mul_(0.9)
        return F.gelu(F.linear(F.gelu(self.a(x)), weight)).sum()


class IdleAutocast(Base):
    def forward(self, x: Tensor) -> Tensor:
        y = self.a(x)
        with torch.autocast("cpu", enabled=False):
            y = self.b(F.gelu(y).float())
        return F.gelu(y).sum()


class Checkpointed(Base):
    def forward(self, x: Tensor) -> Tensor:
        def inner(t: Tensor) -> Tensor:
            return F.dropout(F.gelu(self.a(t)), 0.5)

        def outer(t: Tensor) -> Tensor:
            return checkpoint(inner, t, use_reentrant=False).sin()

        y = checkpoint(inner, x, use_reentrant=False)
        return F.gelu(self.b(checkpoint(outer, y, use_reentrant=False))).sum()


class Draws(Base):
    def forward(self, x: Tensor) -> Tensor:
        y = self.a(x) * torch.rand_like(x) + torch.randn(64) + torch.randint(0, 3, (64,))
        return F.gelu(F.dropout(y, 0.3)).sum()


class UnusedDraws(Base):
    def forward(self, x: Tensor) -> Tensor:
        torch.rand(3)
        unused = torch.randn(4)  # noqa: F841
        return F.gelu(F.gelu(self.a(x))).sum()


class ForwardHook(Base):
    def __init__(self) -> None:
        super().__init__()
        self.a.register_forward_hook(lambda module, inputs, output: output * 2)

    def forward(self, x: Tensor) -> Tensor:
        return F.gelu(F.gelu(self.a(x))).sum()


class NumberDivisor(Base):
    def forward(self, x: Tensor) -> Tensor:
        y = self.a(x)
        return (F.gelu(y) + torch.div(y.detach(), 2, rounding_mode="floor") + 1 / (2 + y.sigmoid())).sum()


class InPlace(Base):
    def forward(self, x: Tensor) -> Tensor:
        y = self.a(x)
        y *= torch.empty_like(y).uniform_(0.9, 1.1)
        y.relu_()
        return F.gelu(self.b(y)).sum()


class Counter(Base):
    def __init__(self) -> None:
        super().__init__()
        self.steps = 0
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.steps += 1
        self.seen = self.seen + 1
        return F.gelu(F.gelu(self.a(x))).sum()


class Norms(Base):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(64)

    def forward(self, x: Tensor) -> Tensor:
        return F.gelu(self.norm(F.gelu(self.a(x)))).sum()


class Recurrent(Base):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(64, 64, num_layers=2, dropout=0.2)

    def forward(self, x: Tensor) -> Tensor:
        y, _ = self.lstm(F.gelu(self.a(x)).view(16, 16, 64))
        return F.gelu(y).sum()


class LiftedConstants(Base):
    def forward(self, x: Tensor) -> Tensor:
        scale = torch.tensor([0.5, 2.0]).repeat(32)
        index = torch.tensor([3, 1, 2])
        return F.gelu(F.gelu(self.a(x)) * scale)[:, index].sum()


PLANNED = [
    NoGrad, EnabledInside, InPlaceWithoutGrad, IdleAutocast, Checkpointed, Draws, UnusedDraws, ForwardHook,
    NumberDivisor, InPlace, Counter, Norms, Recurrent, LiftedConstants,
]  # fmt: skip


@pytest.mark.parametrize("model", PLANNED, ids=lambda model: model.__name__)
def test_what_is_planned_has_the_plain_bits(model: Callable[[], nn.Module]) -> None:
    pair = twins(model(), budget="min")
    _, ours = pair.steps(rows(), count=4)
    assert pair.warnings == []
    assert pair.plans, "it has a plan"
    assert ours.peak <= max(plan["devices"][0]["budget"] for plan in pair.plans)


def test_a_counter_of_steps_is_not_compiled_anew_in_each_of_them() -> None:
    pair = twins(Counter(), budget="min")
    pair.steps(rows(), count=8)
    assert pair.ours.steps == 8
    assert len(pair.plans) <= 2


def test_a_checkpointed_model_is_planned_over() -> None:
    """What the user's checkpoints would drop is the plan's choice now."""
    pair = twins(Checkpointed(), budget="min")
    plain, ours = pair.steps(rows())
    assert ours.peak < plain.peak


# ----------------------------------------------------------------------------------------------------------------------
# Not planned: said, and plain


class Doubled(torch.autograd.Function):
    """Its backward is not the derivative of its forward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.exp()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return gradient * 2 * x


class OwnFunction(Base):
    def forward(self, x: Tensor) -> Tensor:
        return Doubled.apply(self.a(x).tanh()).sum()


class TensorHook(Base):
    def forward(self, x: Tensor) -> Tensor:
        y = self.a(x)
        y.register_hook(lambda gradient: gradient * 2)
        return F.gelu(y).sum()


class InnerAutocast(Base):
    def forward(self, x: Tensor) -> Tensor:
        y = F.gelu(self.a(x))
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = self.b(y)
        return y.float().sum()


class ChosenKernel(Base):
    def forward(self, x: Tensor) -> Tensor:
        q = self.a(x).view(1, 2, 128, 64)
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
            return F.scaled_dot_product_attention(q, q, q).sum()


class Data(Base):
    def forward(self, x: Tensor) -> Tensor:
        y = F.gelu(self.a(x))
        return (y * y.data).sum()


class InferenceMode(Base):
    def forward(self, x: Tensor) -> Tensor:
        with torch.inference_mode():
            x * 2
        return F.gelu(F.gelu(self.a(x))).sum()


class PackHooks(Base):
    def forward(self, x: Tensor) -> Tensor:
        with torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor * 2, lambda tensor: tensor):
            y = F.gelu(self.a(x))
        return F.gelu(self.b(y)).sum()


class GradientInside(Base):
    def forward(self, x: Tensor) -> Tensor:
        y = F.gelu(self.a(x))
        (gradient,) = torch.autograd.grad(y.sum(), self.a.weight, create_graph=True)
        return gradient.square().sum() + y.sum()


class Mapped(Base):
    def forward(self, x: Tensor) -> Tensor:
        return torch.vmap(lambda row: F.gelu(self.a(row)))(x).sum()


class DropsLayers(Base):
    def forward(self, x: Tensor) -> Tensor:
        for layer in (self.a, self.b, self.c):
            if torch.rand([]) < 0.5:
                continue
            x = F.gelu(layer(x))
        return (x * self.a.bias).sum()


class DropsLayersByPython(Base):
    def forward(self, x: Tensor) -> Tensor:
        for layer in (self.a, self.b, self.c):
            if random.random() < 0.5:
                continue
            x = F.gelu(layer(x))
        return (x * self.a.bias).sum()


REFUSED = [
    (OwnFunction, r"autograd\.Function"),
    (TensorHook, r"register_hook|autograd\.Function"),
    (InnerAutocast, "torch.autocast inside the model"),
    (ChosenKernel, "sdpa_kernel"),
    (Data, "tensor.data"),
    (InferenceMode, "inference mode"),
    (PackHooks, "cannot be captured by torch"),
    (Mapped, "not known to be only ATen ops"),
    (DropsLayers, "Data-dependent branching"),
    (DropsLayersByPython, "Data-dependent branching|marked as skipped"),
]
LINE_IS_KNOWN = (OwnFunction, TensorHook, InnerAutocast, ChosenKernel, Data, InferenceMode, Mapped, DropsLayers)


@pytest.mark.parametrize(("model", "words"), REFUSED, ids=[model.__name__ for model, _ in REFUSED])
def test_what_is_not_planned_is_said_once_and_has_the_plain_bits(model: Callable[[], nn.Module], words: str) -> None:
    pair = twins(model(), budget="50%")
    for seed in range(4):
        pair.step(rows(), seed=seed)
    said = [text for text in pair.warnings if re.search(words, text)]
    assert len(said) == 1
    assert "outside of the budget" in said[0]
    if model in LINE_IS_KNOWN:
        assert " at test_eager_traps.py:" in said[0]


@pytest.mark.parametrize(("model", "words"), REFUSED, ids=[model.__name__ for model, _ in REFUSED])
def test_or_it_is_an_error(model: Callable[[], nn.Module], words: str) -> None:
    ours = recals.optimize(model(), budget="50%", on_mismatch="error")
    with pytest.raises(recals.RecalsError, match=words):
        ours(rows())


def test_a_gradient_inside_has_the_plain_bits() -> None:
    """Newer versions of torch do not capture such a model at all, older ones break it into graphs."""
    pair = twins(GradientInside(), budget="min")
    pair.steps(rows(), count=3)
    assert "torch.autograd.grad" in pair.warnings[0]


def test_or_nothing_is_said() -> None:
    pair = twins(OwnFunction(), on_mismatch="plain")
    pair.steps(rows())
    assert pair.warnings == []


def test_reports_refuse_what_is_not_planned() -> None:
    with pytest.raises(recals.RecalsError, match=r"autograd\.Function.* at test_eager_traps\.py:"):
        recals.estimate(OwnFunction(), rows())
