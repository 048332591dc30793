"""Branches, loops, optional inputs, and modules that were traced."""

from collections.abc import Callable
from typing import Any

import pytest
import recals
import torch
import torch.nn.functional as F
from support import (
    BUDGETS,
    TIGHTEST,
    assert_same,
    check_steps,
    features,
    net,
    recomputed_nodes,
    rewrite,
    run,
    scalar,
    step,
    twins,
)
from torch import Tensor, nn
from training import prepare_gradients, same_bits

INPUTS = (features(),)


class Stack(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(24, 64)
        self.second = nn.Linear(64, 64)
        self.last = nn.Linear(64, 8)


class OnTraining(Stack):
    """Training and eval take different ways."""

    def forward(self, features: Tensor) -> Tensor:
        x = torch.tanh(self.first(features))
        if self.training:
            x = x + 0.1 * torch.randn_like(x)
            x = torch.sigmoid(self.second(x))
        else:
            x = torch.sigmoid(x)
        return self.last(F.gelu(x))


class OnShape(Stack):
    def forward(self, features: Tensor) -> Tensor:
        x = torch.tanh(self.first(features))
        if features.shape[0] > 100:
            x = torch.sigmoid(self.second(x))
        else:
            x = F.relu(x) * 2.0
        if x.dim() == 2 and x.dtype == torch.float32:
            x = F.gelu(x)
        return self.last(x)


class ManyLayers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(24, 24) for _ in range(8)])
        self.norms = nn.ModuleDict({str(number): nn.LayerNorm(24) for number in range(8)})
        self.dropout = nn.Dropout(0.1)

    def forward(self, features: Tensor) -> Tensor:
        for number, (layer, norm) in enumerate(zip(self.layers, self.norms.values())):  # noqa: B905
            hidden = self.dropout(F.gelu(layer(norm(features))))
            features = features + hidden if number % 2 == 0 else features * torch.sigmoid(hidden)
        return features


class Counted(Stack):
    """A loop over a number known from the shapes."""

    def forward(self, features: Tensor) -> Tensor:
        x = torch.tanh(self.first(features))
        for number in range(features.shape[0] // 32):
            x = torch.sigmoid(self.second(x)) + float(number)
        return self.last(x)


class Gathered(Stack):
    """A list grows in the loop, as in dense connections."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(24 + 8 * number, 8) for number in range(6)])

    def forward(self, features: Tensor) -> Tensor:
        found: list[Tensor] = [features]
        for layer in self.layers:
            found.append(torch.tanh(layer(torch.cat(found, 1))))
        return torch.stack(found[1:], 2).sum(2)


class WhileLoop(Stack):
    def forward(self, features: Tensor) -> Tensor:
        x = torch.tanh(self.first(features))
        number = 0
        while number < 3:
            x = torch.sigmoid(self.second(x))
            number += 1
        return self.last(x)


class EarlyReturn(Stack):
    def forward(self, features: Tensor) -> Tensor:
        x = torch.sigmoid(torch.tanh(self.first(features)))
        if x.shape[1] != 64:
            return x
        return self.last(F.gelu(self.second(x)))


class Forked(Stack):
    """Forks of a submodule and of a function, waited for later and out of order."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = ForkedInside()

    def forward(self, features: Tensor) -> Tensor:
        x = torch.tanh(self.first(features))
        forked = torch.jit.fork(self.second, x)
        several = [torch.jit.fork(squared, x), torch.jit.fork(squared, x * 0.5)]
        x = torch.sigmoid(self.inner(x))
        for one in several:
            x = x + torch.jit.wait(one)
        return self.last(x * torch.jit.wait(forked))


class ForkedInside(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 64)

    def forward(self, x: Tensor) -> Tensor:
        forked = torch.jit.fork(self.layer, x)
        return F.gelu(x) + torch.jit.wait(forked)


def squared(x: Tensor) -> Tensor:
    return torch.sigmoid(x) * torch.tanh(x)


class Asserted(Stack):
    """Checks, and text that only an error would show."""

    def forward(self, features: Tensor) -> Tensor:
        assert features.dim() == 2, "two dimensions"
        if features.shape[1] != 24:
            raise ValueError(f"24 columns, not {features.shape[1]}")
        x = torch.sigmoid(torch.tanh(self.first(features)))
        torch._assert(x.shape[0] > 0, "no rows")
        return self.last(F.gelu(self.second(x)))


KINDS = [OnTraining, OnShape, ManyLayers, Counted, Gathered, WhileLoop, EarlyReturn, Forked, Asserted]


@pytest.mark.parametrize("budget", [TIGHTEST, "60%", "100%"])
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_static_control_flow(kind: type[nn.Module], budget: str) -> None:
    check_steps(kind(), INPUTS, budget, steps=2)


@pytest.mark.smoke
@pytest.mark.parametrize("kind", [OnTraining, OnShape, ManyLayers], ids=lambda kind: kind.__name__)
def test_static_control_flow_is_recomputed(kind: type[nn.Module]) -> None:
    _, budgeted = twins(kind(), INPUTS)
    assert recomputed_nodes(lambda: run(budgeted, INPUTS)) > 0


@pytest.mark.smoke
def test_eval_takes_its_own_branch() -> None:
    plain, budgeted = twins(OnTraining(), INPUTS)
    assert_same(step(plain, INPUTS), step(budgeted, INPUTS))
    plain.eval()
    budgeted.eval()
    with torch.no_grad():
        assert same_bits(plain(*INPUTS), budgeted(*INPUTS))
    assert_same(step(plain, INPUTS), step(budgeted, INPUTS))
    plain.train()
    budgeted.train()
    assert_same(step(plain, INPUTS), step(budgeted, INPUTS))


@pytest.mark.parametrize("rows", [16, 128, 250])
def test_other_shapes_take_their_branch_without_gradients(rows: int) -> None:
    for kind in (OnShape, Counted):
        plain, budgeted = twins(kind(), INPUTS)
        with torch.no_grad():
            assert same_bits(plain(features(rows)), budgeted(features(rows)))


def test_part_of_the_module_in_eval_mode() -> None:
    """Frozen BatchNorm: the flag of a submodule is read, not that of the whole."""
    plain, budgeted = twins(net(), INPUTS)
    for module in (plain, budgeted):
        module.norm.eval()
    with (
        torch.jit.optimized_execution(False),  # TorchScript's own optimiser can move a bit.
        pytest.warns(recals.BudgetWarning, match=r"'norm\.training' was True and is False now"),
    ):
        assert_same(step(plain, INPUTS), step(budgeted, INPUTS))


def test_part_in_eval_mode_already_when_rewritten() -> None:
    module = net()
    module.norm.eval()
    plain, budgeted = twins(module, INPUTS)
    for seed in range(2):
        assert_same(step(plain, INPUTS, seed=seed), step(budgeted, INPUTS, seed=seed))


class DataDependent(Stack):
    """Which way is taken depends on the numbers: it cannot be known before."""

    def forward(self, features: Tensor) -> Tensor:
        x = torch.sigmoid(torch.tanh(self.first(features)))
        if bool(x.mean() > 0.5):
            x = torch.tanh(self.second(x))
        else:
            x = F.gelu(self.second(x)) * 2.0
        return self.last(torch.sigmoid(x))


class DataDependentLoop(Stack):
    def forward(self, features: Tensor) -> Tensor:
        x = torch.sigmoid(torch.tanh(self.first(features)))
        for _ in range(int(features[0, 0].abs() * 3) + 1):
            x = torch.tanh(self.second(x))
        return self.last(torch.sigmoid(x))


@pytest.mark.parametrize("kind", [DataDependent, DataDependentLoop], ids=lambda kind: kind.__name__)
def test_branch_on_numbers_is_refused(kind: type[nn.Module]) -> None:
    with pytest.raises(
        recals.RecalsError, match=r"aten::\w+ at test_control_flow\.py:\d+ depends on the values in a tensor"
    ):
        rewrite(kind(), INPUTS, "100%")


# ----------------------------------------------------------------------------------------------------------------------
# Optional inputs and values that the plan was made for


class WithOptional(Stack):
    def forward(self, features: Tensor, mask: Tensor | None = None, scale: float | None = None) -> Tensor:
        x = torch.tanh(self.first(features))
        if mask is not None:
            x = x.masked_fill(mask, 0.0)
        if scale is not None:
            x = x * scale
        return self.last(torch.sigmoid(self.second(F.gelu(x))))


MASK = features(128, 64) > 1


@pytest.mark.parametrize(
    "inputs",
    [INPUTS, (*INPUTS, None), (*INPUTS, MASK), (*INPUTS, MASK, 0.5), (*INPUTS, None, 0.5)],
    ids=["left-out", "none", "given", "both", "number"],
)
def test_optional_inputs(inputs: tuple[Any, ...]) -> None:
    for budget in (TIGHTEST, "100%"):
        check_steps(WithOptional(), inputs, budget, steps=2)


def refused(module: nn.Module, example: tuple[Any, ...], other: tuple[Any, ...]) -> None:
    """A step on what the plan was not made for is an error that shows both, and leaves nothing broken."""
    plain, budgeted = twins(module, example)
    with pytest.raises(RuntimeError, match=r"recals: the plan was made for inputs .*, but this training step got "):
        step(budgeted, other)
    assert_same(step(plain, example), step(budgeted, example))


@pytest.mark.parametrize(
    ("example", "other"),
    [
        (INPUTS, (*INPUTS, MASK)),
        ((*INPUTS, MASK), INPUTS),
        ((*INPUTS, None, 0.5), (*INPUTS, None, 0.25)),
        ((*INPUTS, None, 0.5), INPUTS),
    ],
    ids=["given-though-none", "none-though-given", "other-number", "no-number"],
)
def test_other_optional_inputs_than_the_example(example: tuple[Any, ...], other: tuple[Any, ...]) -> None:
    refused(WithOptional(), example, other)


class OnValue(Stack):
    def forward(self, features: Tensor, kind: str, flag: bool, times: int) -> Tensor:
        x = torch.tanh(self.first(features)) if kind == "tanh" else torch.sigmoid(self.first(features))
        if flag:
            x = x * 2.0
        for _ in range(times):
            x = torch.sigmoid(self.second(x))
        return self.last(F.gelu(x))


@pytest.mark.parametrize(
    "other",
    [("sigmoid", True, 2), ("tanh", False, 2), ("tanh", True, 3), ("tanh", True, 0)],
    ids=["word", "flag", "more", "none"],
)
def test_other_values_than_the_example(other: tuple[Any, ...]) -> None:
    refused(OnValue(), (*INPUTS, "tanh", True, 2), (*INPUTS, *other))


def test_input_needs_a_gradient_though_the_example_did_not() -> None:
    refused(net(), INPUTS, (features().requires_grad_(),))


def test_input_needs_no_gradient_though_the_example_did() -> None:
    plain, budgeted = twins(net(), (features().requires_grad_(),))
    for inputs in (INPUTS, (features().requires_grad_(),)):
        assert_same(step(plain, inputs), step(budgeted, inputs))


def test_strides_differ_from_the_example() -> None:
    refused(net(), INPUTS, (features(24, 128).t(),))


# ----------------------------------------------------------------------------------------------------------------------
# Traced modules, and modules that contain scripted or traced ones


class Traceable(Stack):
    def forward(self, features: Tensor) -> Tensor:
        x = torch.tanh(self.first(features))
        x = F.dropout(torch.sigmoid(self.second(x)), 0.2)
        return self.last(F.gelu(x))


def traced(module: nn.Module, inputs: tuple[Any, ...]) -> torch.jit.ScriptModule:
    return torch.jit.trace(module, inputs, check_trace=False)


@pytest.mark.smoke
@pytest.mark.parametrize("budget", BUDGETS)
@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
@pytest.mark.parametrize("kind", [Traceable, Forked], ids=lambda kind: kind.__name__)
def test_traced_module(kind: type[nn.Module], budget: str) -> None:
    plain, other = kind(), kind()
    other.load_state_dict(plain.state_dict())
    budgeted = rewrite(traced(other, INPUTS), INPUTS, budget)
    prepare_gradients(plain)
    prepare_gradients(budgeted)
    for seed in range(3):
        assert_same(step(plain, INPUTS, seed=seed), step(budgeted, INPUTS, seed=seed))


class Mixed(nn.Module):
    """A scripted module that calls a traced one."""

    def __init__(self, wrap: Callable[[nn.Module], nn.Module]) -> None:
        super().__init__()
        self.inner = wrap(Traceable())
        self.last = nn.Linear(8, 8)

    def forward(self, features: Tensor) -> Tensor:
        return self.last(torch.tanh(self.inner(features)))


@pytest.mark.parametrize("wrap", [torch.jit.script, lambda inner: traced(inner, INPUTS)], ids=["scripted", "traced"])
@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
def test_submodule_that_was_scripted_or_traced_before(wrap: Callable[[nn.Module], nn.Module]) -> None:
    plain = Mixed(lambda inner: inner)
    other = Mixed(wrap)
    other.load_state_dict(plain.state_dict())
    budgeted = rewrite(other, INPUTS)
    prepare_gradients(plain)
    prepare_gradients(budgeted)
    for seed in range(2):
        assert_same(step(plain, INPUTS, seed=seed), step(budgeted, INPUTS, seed=seed))


class Functions(Stack):
    """Free functions, scripted or not, and a static method."""

    def forward(self, features: Tensor) -> Tensor:
        x = swish(self.first(features))
        x = scripted_shift(self.second(x), 0.5)
        return self.last(self.twice(x))

    @staticmethod
    def twice(x: Tensor) -> Tensor:
        return torch.tanh(x) * 2.0


def swish(x: Tensor) -> Tensor:
    return x * torch.sigmoid(x)


@torch.jit.script
def scripted_shift(x: Tensor, by: float) -> Tensor:
    return torch.tanh(x) + by


def test_free_functions() -> None:
    with torch.jit.optimized_execution(False):  # The scripted one is run by TorchScript in the plain module too.
        check_steps(Functions(), INPUTS)


class Rnn(nn.Module):
    """A recurrent layer of torch's own, and one written as a loop."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.GRUCell(24, 32)
        self.last = nn.Linear(32, 8)

    def forward(self, sequence: Tensor) -> Tensor:
        state = torch.zeros([sequence.shape[1], 32], dtype=sequence.dtype)
        for moment in range(sequence.shape[0]):
            state = self.cell(sequence[moment], state)
        return self.last(torch.tanh(state))


def test_recurrent_loop() -> None:
    check_steps(Rnn(), (features(12 * 16).view(12, 16, 24),), steps=2)


class Lstm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(24, 32, num_layers=2, dropout=0.2)
        self.last = nn.Linear(32, 8)

    def forward(self, sequence: Tensor) -> Tensor:
        output, _ = self.lstm(torch.tanh(sequence))
        return self.last(torch.sigmoid(torch.tanh(output)))


@pytest.mark.parametrize("budget", [TIGHTEST, "100%"])
def test_lstm(budget: str) -> None:
    check_steps(Lstm(), (features(12 * 16).view(12, 16, 24),), budget, steps=2)


def test_output_that_needs_no_gradient_at_all() -> None:
    class Chooser(nn.Module):
        def forward(self, features: Tensor) -> Tensor:
            return torch.tanh(features).argmax(1)

    with pytest.raises(recals.RecalsError, match="no output of the method requires grad"):
        rewrite(Chooser(), INPUTS, "100%")


def test_loss_of_only_one_output() -> None:
    class Two(Stack):
        def forward(self, features: Tensor) -> tuple[Tensor, Tensor]:
            x = torch.sigmoid(torch.tanh(self.first(features)))
            return self.last(F.gelu(x)), torch.tanh(self.second(x))

    for chosen in (0, 1):
        check_steps(Two(), INPUTS, loss=lambda output, chosen=chosen: scalar(output[chosen]))
