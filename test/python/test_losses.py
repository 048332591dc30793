"""Losses outside of the module: the stand-in covers the usual ones in the usual precisions, and `loss=` is exact."""

import contextlib
import copy
from collections.abc import Callable
from typing import Any

import pytest
import recals
import torch
import torch.nn.functional as F
import training
from torch import Tensor, nn

ROWS, CLASSES = 512, 192
TARGETS = torch.randint(CLASSES, (ROWS,), generator=torch.Generator().manual_seed(0))
VALUES = torch.randn(ROWS, CLASSES, generator=torch.Generator().manual_seed(1))
BFLOAT16 = torch.autocast("cpu", torch.bfloat16)


class Head(nn.Module):
    """Little before the outputs, so that what the loss holds is most of the step."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(16, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(x)


Loss = Callable[[Tensor, Tensor], Tensor]
"""Of the outputs, and of values of their shape in the dtype that the caller has them in."""


def z_loss(y: Tensor, values: Tensor) -> Tensor:
    return F.cross_entropy(y, TARGETS) + 1e-4 * torch.logsumexp(y, -1).square().mean()


def shifted(y: Tensor, values: Tensor) -> Tensor:
    """As language models do it: each position predicts the next one."""
    steps = y.view(8, ROWS // 8, CLASSES)[:, :-1].contiguous()
    return F.cross_entropy(steps.view(-1, CLASSES), TARGETS.view(8, -1)[:, 1:].reshape(-1))


USUAL: dict[str, Loss] = {
    "cross_entropy": lambda y, values: F.cross_entropy(y, TARGETS),
    "label_smoothing": lambda y, values: F.cross_entropy(y, TARGETS, label_smoothing=0.1),
    "soft_targets": lambda y, values: F.cross_entropy(y, values),
    "z_loss": z_loss,
    "shifted": shifted,
    "mse": lambda y, values: F.mse_loss(y, values),
    "squares": lambda y, values: (y - values).square().mean(),
    "l1": lambda y, values: F.l1_loss(y, values),
    "smooth_l1": lambda y, values: F.smooth_l1_loss(y, values),
    "huber": lambda y, values: F.huber_loss(y, values),
    "bits": lambda y, values: F.binary_cross_entropy_with_logits(y, values),
    "nll": lambda y, values: F.nll_loss(F.log_softmax(y, -1), TARGETS),
    "mean": lambda y, values: y.mean(),
}

PRECISIONS: dict[str, tuple[torch.dtype, Callable[[], Any], bool]] = {
    "float": (torch.float32, contextlib.nullcontext, False),
    "bfloat16": (torch.bfloat16, contextlib.nullcontext, False),
    "bfloat16, loss in float": (torch.bfloat16, contextlib.nullcontext, True),
    "half, loss in float": (torch.float16, contextlib.nullcontext, True),
    "autocast": (torch.float32, lambda: BFLOAT16, False),
    "autocast, loss in float": (torch.float32, lambda: BFLOAT16, True),
}
"""Of the module, the block around the step, and whether the caller converts."""


def loss_of(name: str, precision: str) -> Callable[[Tensor], Tensor]:
    dtype, _, converts = PRECISIONS[precision]
    values = VALUES if converts else VALUES.to(dtype)
    return lambda y: USUAL[name](y.float() if converts else y, values)


def measured(module: nn.Module, x: Tensor, loss: Callable[[Tensor], Tensor], block: Callable[[], Any]) -> int:
    training.prepare_gradients(module)

    def step() -> None:
        with block():
            y = module(x)
            value = loss(y)
        value.backward()

    step()
    return training.measured_peak(step)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("name", USUAL)
def test_usual_losses(name: str, precision: str) -> None:
    dtype, block, _ = PRECISIONS[precision]
    loss = loss_of(name, precision)
    module = Head().to(dtype)
    x = torch.randn(ROWS, 16, dtype=dtype)
    with block():
        covered = recals.estimate(torch.jit.script(module), (x,)).peak["cpu"]
        exact = recals.estimate(torch.jit.script(module), (x,), loss=loss).peak["cpu"]
    peak = measured(copy.deepcopy(module), x, loss, block)
    assert covered >= peak, "the stand-in takes less than the loss"
    # The module's own backward, of 16-bit products, is known as a bound.
    slack = 1024 if precision == "float" else 3 * ROWS * CLASSES * torch.bfloat16.itemsize
    assert peak <= exact <= peak + slack


# ----------------------------------------------------------------------------------------------------------------------
# loss=


class Several(nn.Module):
    """Returns more than one tensor, in a dict."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(16, 64)
        self.heads = nn.Linear(64, CLASSES)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        inside = torch.tanh(self.body(x))
        return {"logits": self.heads(inside), "inside": inside}


class Pair(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(16, CLASSES)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = self.body(x)
        return torch.tanh(y), torch.relu(y)


def test_a_loss_of_several_outputs() -> None:
    x = torch.randn(ROWS, 16)

    def of_dict(out: dict[str, Tensor]) -> Tensor:
        return F.cross_entropy(out["logits"], TARGETS) + 0.1 * out["inside"].square().mean()

    def of_pair(out: tuple[Tensor, Tensor]) -> Tensor:
        return F.mse_loss(out[0], VALUES) - out[1].mean()

    for module, loss in ((Several(), of_dict), (Pair(), of_pair)):
        scripted = torch.jit.script(module)
        exact = recals.estimate(scripted, (x,), loss=loss).peak["cpu"]
        peak = measured(recals.optimize(scripted, (x,), 2**60, loss=loss), x, loss, contextlib.nullcontext)
        assert peak <= exact <= peak + 1024
        assert exact < recals.estimate(scripted, (x,)).peak["cpu"], "the stand-in takes more"


def test_a_plan_for_a_loss_keeps_its_budget() -> None:
    """A budget that the stand-in does not fit."""
    x = torch.randn(ROWS, 16)
    scripted = torch.jit.script(
        nn.Sequential(nn.Linear(16, CLASSES), nn.Tanh(), nn.Linear(CLASSES, CLASSES), nn.GELU())
    )

    def loss(y: Tensor) -> Tensor:
        return F.cross_entropy(y, TARGETS)

    def smallest(**how: Any) -> int:
        with pytest.raises(recals.BudgetError) as caught:
            recals.optimize(scripted, (x,), 1, **how)
        return caught.value.smallest["cpu"]

    budget = smallest(loss=loss)
    assert budget < smallest()
    rewritten = recals.optimize(scripted, (x,), budget, loss=loss)
    assert measured(rewritten, x, loss, contextlib.nullcontext) <= budget
    assert recals.pareto(scripted, (x,), loss=loss).plain_peak == recals.estimate(scripted, (x,), loss=loss).peak["cpu"]
    analysed = recals.passes.analyse(scripted, (x,), loss=loss)
    assert recals.passes.plan(analysed, budget).peak["cpu"] <= budget


def test_what_a_loss_knows_from_elsewhere() -> None:
    """Tensors of the caller are not counted, not changed, and their numbers may be read."""
    x = torch.randn(ROWS, 16)
    criterion = nn.CrossEntropyLoss(weight=torch.ones(CLASSES), label_smoothing=0.1)
    temperature = torch.ones((), requires_grad=True)
    seen = torch.zeros(())
    smoothing = torch.tensor(0.5)

    def loss(y: Tensor) -> Tensor:
        seen.add_(y.detach().mean())
        share = float(smoothing)
        mask = torch.ones(ROWS, device=y.device)
        return criterion(y / temperature, TARGETS) * share + (y.mean(-1) * mask).mean() * 0.01

    scripted = torch.jit.script(Head())
    exact = recals.estimate(scripted, (x,), loss=loss).peak["cpu"]
    assert float(seen) == 0
    assert temperature.grad is None
    temperature.grad = torch.zeros(())
    peak = measured(recals.optimize(scripted, (x,), 2**60, loss=loss), x, loss, contextlib.nullcontext)
    assert peak <= exact <= peak * 1.01


def fails_at_a_number(y: Tensor) -> Tensor:
    return F.cross_entropy(y, TARGETS) if y.mean().item() > 0 else y.mean()


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (fails_at_a_number, r"failed at test_losses\.py:\d+: RuntimeError: .*must not read numbers"),
        (lambda y: y.detach().numpy().sum(), "failed at test_losses"),
        (lambda y: {}["missing"], "failed at test_losses.*KeyError: 'missing'"),
        (lambda y: y, r"must return one number.*a tensor of shape \[512, 192\]"),
        (lambda y: y.detach().mean(), "must return one number.*without a gradient"),
        (lambda y: VALUES.mean(), "must return one number.*depends on what the module returns"),
        (lambda y: 0.5, "must return a tensor of one element, not float"),
        (lambda y: None, "must return a tensor of one element, not NoneType"),
    ],
)
def test_a_loss_that_is_none(loss: Any, message: str) -> None:
    with pytest.raises(recals.RecalsError, match=message):
        recals.optimize(torch.jit.script(Head()), (torch.randn(ROWS, 16),), "100%", loss=loss)


def test_a_loss_is_a_function() -> None:
    with pytest.raises(TypeError, match="loss is a function"):
        recals.estimate(torch.jit.script(Head()), (torch.randn(ROWS, 16),), loss=torch.ones(()))
