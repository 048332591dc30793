"""What the analysis cannot follow is refused in words that name the op, its line and a way out."""

import copy
import re
from collections.abc import Callable

import pytest
import recals
import torch
import torch.nn.functional as F
from support import TIGHTEST, assert_same, check_steps, features, rewrite, run, step, twins
from torch import Tensor, nn
from training import prepare_gradients

INPUTS = (features(),)

TORCHS_WORDS = re.compile(r"fake impl|PT2|Meta|meta|FakeTensor|torch\.compile|Exception raised from")
"""What a user of Recals has nothing to do with."""


class Layers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(24, 64)
        self.last = nn.Linear(64, 8)


class InnerGradient(Layers):
    def forward(self, features: Tensor) -> Tensor:
        x = torch.tanh(self.first(features))
        force = torch.autograd.grad([x.sum()], [features], create_graph=True)[0]
        assert force is not None
        return force


class InnerBackward(Layers):
    def forward(self, features: Tensor) -> Tensor:
        x = torch.tanh(self.first(features))
        x.sum().backward()
        return self.last(x)


class Ignoring(Layers):
    def forward(self, features: Tensor) -> Tensor:
        return self.last(self.python(torch.tanh(self.first(features))))

    @torch.jit.ignore
    def python(self, x: Tensor) -> Tensor:
        return x * 2


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: torch.autograd.function.FunctionCtx, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, gradient: Tensor) -> Tensor:
        return gradient * 2


class OwnFunction(Layers):
    def forward(self, features: Tensor) -> Tensor:
        return self.last(Doubled.apply(torch.tanh(self.first(features))))


class Constant(Layers):
    def forward(self, features: Tensor) -> tuple[Tensor, Tensor]:
        penalty = torch.tensor(0.0)
        return self.last(torch.tanh(self.first(features))), penalty


class Comparing(Layers):
    def forward(self, features: Tensor) -> Tensor:
        x = torch.tanh(self.first(features))
        if torch.equal(x.sum(), x.mean()):
            x = x * 2
        return self.last(x)


def refusal(module: torch.jit.ScriptModule, *inputs: Tensor) -> str:
    with pytest.raises(recals.RecalsError) as caught:
        recals.optimize(module, inputs or INPUTS, "50%")
    message = str(caught.value)
    assert not TORCHS_WORDS.search(message), message
    return message


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        (InnerGradient, r"aten::grad at test_refusals\.py:\d+ differentiates inside the step.* outside of the method"),
        (InnerBackward, r"aten::backward at test_refusals\.py:\d+ differentiates inside the step"),
        (Ignoring, r"prim::PythonOp at test_refusals\.py:\d+ calls the Python function 'python'"),
        (Constant, r"'forward' returns a constant tensor, f32\[\]@cpu, .* at test_refusals\.py:\d+.*new_zeros"),
        (Comparing, r"aten::equal at test_refusals\.py:\d+ depends on the values in a tensor"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_what_is_refused_names_its_line(kind: type[nn.Module], says: str) -> None:
    inputs = features().requires_grad_(kind is InnerGradient)
    assert re.search(says, refusal(torch.jit.script(kind()), inputs))


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
def test_an_own_function_is_named() -> None:
    module = torch.jit.trace(OwnFunction(), INPUTS, check_trace=False)
    assert re.search(r"prim::PythonOp at .* calls the Python function 'Doubled'", refusal(module))


def traced(function: Callable[[Tensor], Tensor]) -> torch.jit.ScriptModule:
    class Wrapped(Layers):
        def forward(self, features: Tensor) -> Tensor:
            return function(self.first(features))

    return torch.jit.trace(Wrapped(), INPUTS, check_trace=False)


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
@pytest.mark.parametrize(
    ("function", "says"),
    [
        (lambda x: x.masked_select(x > 0), "aten::masked_select at .* depends on the values in a tensor"),
        (lambda x: x.narrow(1, x[0].argmax(), 1), "aten::narrow at .* depends on the values in a tensor"),
        (lambda x: torch.tensor_split(x, x.argmax(1)[:2])[0], "aten::tensor_split at .* depends on the values"),
        # Only its derivative looks at the mask.
        (
            lambda x: x.index_put((x > 0,), x[0, :1]),
            "IndexPutBackward0, the derivative of aten::index_put at .*, depends on the values in a tensor",
        ),
    ],
    ids=["masked-select", "narrow", "tensor-split", "derivative"],
)
def test_what_depends_on_data_says_so(function: Callable[[Tensor], Tensor], says: str) -> None:
    assert re.search(says, refusal(traced(function)))


@torch.library.custom_op("recals_test::without_fake", mutates_args=())
def without_fake(x: Tensor) -> Tensor:
    return x * 2


without_fake.register_autograd(lambda ctx, gradient: gradient * 2)


def test_an_op_of_the_user_without_a_form_for_shapes_says_what_it_lacks() -> None:
    message = refusal(traced(without_fake))
    assert re.search(r"recals_test::without_fake at .* has no form for tensors without data .*register_fake", message)


# ----------------------------------------------------------------------------------------------------------------------
# What used to be refused, or was refused for a reason that was none


class Popping(Layers):
    def forward(self, features: list[Tensor]) -> Tensor:
        x = torch.tanh(self.first(features.pop()))
        return self.last(torch.sigmoid(x)) + features[0].sum()


class PoppingDict(Layers):
    def forward(self, features: dict[str, Tensor]) -> Tensor:
        x = torch.tanh(self.first(features.pop("x")))
        return self.last(torch.sigmoid(x)) + features["y"].sum()


@pytest.mark.parametrize("budget", [TIGHTEST, "100%"])
def test_a_container_that_the_method_takes_from(budget: str) -> None:
    x, y = features(), features(seed=1)
    for kind, inputs in ((Popping, [y, x]), (PoppingDict, {"x": x, "y": y})):
        plain, budgeted = twins(kind(), (inputs,), budget)
        for seed in range(2):
            # The eager module really takes it out.
            assert_same(*(step(module, (copy.copy(inputs),), seed=seed) for module in (plain, budgeted)))


class FromDict(Layers):
    def forward(self, batch: dict[str, Tensor]) -> dict[str, Tensor]:
        x = torch.tanh(self.first(batch["x"]) * batch["scale"])
        return {"y": self.last(torch.sigmoid(x)), "hidden": x}


def test_a_dict_in_another_order_is_the_same_dict() -> None:
    batch = {"x": features(), "scale": features(1, 64)[0], "unused": features()}
    plain, budgeted = twins(FromDict(), (batch,))
    other = {key: batch[key] for key in reversed(batch)}
    for inputs in (batch, other):
        outcomes = [step(module, (inputs,)) for module in (plain, budgeted)]
        assert list(outcomes[0].output) == list(outcomes[1].output)
        assert_same(*outcomes)
    again = rewrite(FromDict(), (other,))
    assert recals.plan_of(again) == recals.plan_of(budgeted)


class ThroughDict(Layers):
    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        x = self.first(torch.stack(list(batch.values()))[0])
        return self.last(torch.sigmoid(torch.tanh(x)))


def test_a_dict_that_is_gone_through_keeps_its_order() -> None:
    batch = {"b": features(), "a": features(seed=1)}
    plain, budgeted = twins(ThroughDict(), (batch,))
    assert_same(step(plain, (batch,)), step(budgeted, (batch,)))
    with pytest.raises(RuntimeError, match=r'made for inputs \(\{"b": .*"a": .* but this training step got \(\{"a": '):
        budgeted({key: batch[key] for key in sorted(batch)})


def test_eval_with_gradients_and_another_shape_is_told_what_helps() -> None:
    """Nothing in it goes another way in eval mode, so that eval mode changes nothing."""

    class Modeless(Layers):
        def forward(self, features: Tensor) -> Tensor:
            return self.last(torch.sigmoid(torch.tanh(self.first(features))))

    budgeted = rewrite(Modeless(), INPUTS).eval()
    with pytest.raises(RuntimeError, match=r"torch\.no_grad\(\), where any input is accepted") as caught:
        budgeted(features(rows=64))
    assert "eval mode" not in str(caught.value)
    with torch.no_grad():
        budgeted(features(rows=64))


class Recognised(nn.Module):
    """The usual loss of speech recognition."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(24, 64)
        self.last = nn.Linear(64, 10)
        self.register_buffer("lengths", torch.tensor([32, 30, 28, 26]))
        self.register_buffer("target_lengths", torch.tensor([6, 5, 4, 3]))

    def forward(self, features: Tensor, targets: Tensor) -> Tensor:
        x = self.last(torch.sigmoid(torch.tanh(self.first(features)))).view(32, 4, 10).log_softmax(2)
        return F.ctc_loss(x, targets, self.lengths, self.target_lengths)


class Spectral(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(24, 64)
        self.register_buffer("window", torch.hann_window(64))

    def forward(self, features: Tensor) -> Tensor:
        x = torch.tanh(self.first(features)).view(8, 1024)
        spectrum = torch.stft(x, 64, 16, window=self.window, return_complex=True)
        return torch.istft(spectrum * 0.5, 64, 16, window=self.window)


@pytest.mark.parametrize("budget", [TIGHTEST, "100%"])
@pytest.mark.parametrize(
    ("module", "inputs"),
    [
        (Recognised(), (features(), torch.arange(24).remainder(9).add(1).view(4, 6))),
        (Spectral(), INPUTS),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, nn.Module) else "",
)
def test_kernels_that_were_missing(module: nn.Module, inputs: tuple[Tensor, ...], budget: str) -> None:
    check_steps(module, inputs, budget, steps=2)


@pytest.mark.parametrize("budget", [TIGHTEST, "100%"])
@pytest.mark.parametrize(
    "function",
    [
        torch.cov,
        lambda x: torch.corrcoef(x[:8]),
        lambda x: torch.linalg.lstsq(x, torch.tanh(x[:, :3])).solution,
        lambda x: F.ctc_loss(
            x.view(32, 4, 64).log_softmax(2), torch.arange(24).view(4, 6) + 1, [32, 30, 28, 26], [6, 5, 4, 3]
        ),
        lambda x: x.masked_scatter(x > 0, torch.tanh(x)),
        lambda x: torch.fake_quantize_per_tensor_affine(x, 0.1, 0, -128, 127),
        lambda x: torch.fake_quantize_per_channel_affine(
            x, torch.full((64,), 0.1), torch.zeros(64, dtype=torch.int32), 1, -128, 127
        ),
        lambda x: torch.tanh(x)[:, torch.tensor([3, 1, 2])],
        lambda x: torch.tanh(x)[torch.tensor([3, 1, 2]), x.argmax(1)[:3]],
        lambda x: torch.tanh(x).index_fill(1, torch.tensor([1, 2]), x.mean()),
        lambda x: torch.complex(x, torch.tanh(x)).sum(),
        lambda x: F.fractional_max_pool3d(x.view(8, 4, 4, 8, 8), 2, output_size=[2, 4, 4]),
    ],
    ids=[
        "cov",
        "corrcoef",
        "lstsq",
        "ctc",
        "masked-scatter",
        "quantised",
        "quantised-by-channel",
        "constant-index",
        "constant-beside-index",
        "index-fill",
        "complex-number",
        "fractional-pool",
    ],
)
def test_ops_that_were_refused(function: Callable[[Tensor], Tensor], budget: str) -> None:
    class Wrapped(Layers):
        def forward(self, features: Tensor) -> Tensor:
            return function(torch.sigmoid(self.first(features)))

    plain = Wrapped()
    budgeted = rewrite(torch.jit.trace(copy.deepcopy(plain), INPUTS, check_trace=False), INPUTS, budget)
    for module in (plain, budgeted):
        prepare_gradients(module)

    def loss(output: Tensor) -> Tensor:
        return torch.view_as_real(output).sum() if output.is_complex() else output.square().sum()

    for seed in range(2):
        assert_same(*(step(module, INPUTS, seed=seed, loss=loss) for module in (plain, budgeted)))
    with recals.track_memory() as memory:
        run(budgeted, INPUTS, loss=loss)
    assert memory.peak["cpu"] <= recals.plan_of(budgeted)["devices"][0]["budget"]


class Renormalised(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(50, 64, max_norm=1.0)
        self.last = nn.Linear(64, 8)

    def forward(self, indices: Tensor) -> Tensor:
        return self.last(torch.sigmoid(torch.tanh(self.table(indices))))


@pytest.mark.parametrize("budget", [TIGHTEST, "100%"])
def test_embedding_that_is_renormalised(budget: str) -> None:
    inputs = (torch.arange(200).remainder(50),)
    plain, other = Renormalised(), Renormalised()
    budgeted = rewrite(torch.jit.trace(other, inputs, check_trace=False), inputs, budget)
    plain.load_state_dict(other.state_dict())  # tracing has made it shorter once
    for module in (plain, budgeted):
        module.table.weight.data.mul_(2.0)
        prepare_gradients(module)
    for seed in range(2):
        assert_same(*(step(module, inputs, seed=seed) for module in (plain, budgeted)))
    assert budgeted.table.weight.norm(dim=1).max() < 1.01
