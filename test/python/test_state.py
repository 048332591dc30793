"""State is written once a step, values changed in place stay right, and every tensor keeps its layout and type."""

from typing import NamedTuple

import pytest
import recals
import torch
import torch.nn.functional as F
from support import BUDGETS, TIGHTEST, assert_same, check_steps, features, net, rewrite, run, step, twins
from torch import Tensor, nn
from training import differing_gradients, differing_state, prepare_gradients, same_bits

INPUTS = (features(),)


def images(batch: int = 4, channels: int = 6, side: int = 16) -> Tensor:
    return features(batch * channels, side * side).view(batch, channels, side, side)


# ----------------------------------------------------------------------------------------------------------------------
# BatchNorm and other buffers


class Normed(nn.Module):
    def __init__(self, momentum: float | None = 0.1) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(6, 12, 3, padding=1),
            nn.BatchNorm2d(12, momentum=momentum),
            nn.ReLU(),
            nn.Conv2d(12, 12, 3, padding=1),
            nn.BatchNorm2d(12, momentum=momentum),
            nn.ReLU(inplace=True),
            nn.Conv2d(12, 4, 1),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


@pytest.mark.smoke
@pytest.mark.parametrize("budget", BUDGETS)
def test_batch_norm_statistics_move_once_a_step(budget: str) -> None:
    inputs = (images(),)
    plain, budgeted = twins(Normed(), inputs, budget)
    for number in range(1, 4):
        assert_same(step(plain, inputs, seed=number), step(budgeted, inputs, seed=number))
        assert int(budgeted.state_dict()["layers.1.num_batches_tracked"]) == number


def test_batch_norm_with_cumulative_statistics_is_refused() -> None:
    """The weight of the new batch is a number read from a buffer, which no plan can know."""
    with pytest.raises(recals.RecalsError, match=r"at batchnorm\.py:\d+ depends on the values in a tensor"):
        rewrite(Normed(momentum=None), (images(),), "100%")


@pytest.mark.parametrize("budget", BUDGETS)
@pytest.mark.parametrize("tracking", [True, False])
def test_instance_norm(tracking: bool, budget: str) -> None:
    """It saves copies of its running statistics, where it has some; they move once a step."""

    def norm() -> nn.Module:
        return nn.InstanceNorm2d(12, affine=True, track_running_stats=tracking)

    layers = [nn.Conv2d(6, 12, 3, padding=1), norm(), nn.PReLU(12), nn.Conv2d(12, 12, 3), norm(), nn.Tanh()]
    check_steps(nn.Sequential(*layers), (images(),), budget)


def test_batch_norm_statistics_with_two_backwards() -> None:
    inputs = (images(),)
    plain, budgeted = twins(Normed(), inputs)
    for module in (plain, budgeted):
        output = module(*inputs)
        output.sum().backward(retain_graph=True)
        output.square().sum().backward()
    assert differing_state(plain, budgeted) == []
    assert differing_gradients(plain, budgeted) == []


def test_batch_norm_in_eval_mode_inside_a_module_in_training() -> None:
    inputs = (images(),)
    plain, budgeted = twins(Normed(), inputs)
    step(plain, inputs)
    step(budgeted, inputs)
    plain.eval()
    budgeted.eval()
    before = budgeted.state_dict()["layers.1.running_mean"].clone()
    assert_same(step(plain, inputs), step(budgeted, inputs))
    assert torch.equal(before, budgeted.state_dict()["layers.1.running_mean"])


class Counting(nn.Module):
    """A buffer is changed in the forward, and read by the same step."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(24, 64)
        self.last = nn.Linear(64, 8)
        self.register_buffer("steps", torch.zeros((), dtype=torch.long))
        self.register_buffer("average", torch.ones(64))

    def forward(self, features: Tensor) -> Tensor:
        x = torch.tanh(self.first(features))
        self.steps += 1
        self.average.mul_(0.9).add_(x.detach().mean(0), alpha=0.1)
        x = torch.sigmoid(x - self.average.clone())
        return self.last(torch.tanh(x * 2))


class CountingWithoutGrad(Counting):
    """The same with a context manager."""

    def forward(self, features: Tensor) -> Tensor:
        x = torch.tanh(self.first(features))
        with torch.no_grad():
            self.steps += 1
            self.average.mul_(0.9).add_(x.mean(0), alpha=0.1)
        x = torch.sigmoid(x - self.average.clone())
        return self.last(torch.tanh(x * 2))


def test_a_context_manager_is_refused() -> None:
    with pytest.raises(
        recals.RecalsError, match=r"prim::CreateObject at test_state\.py:\d+ is not supported.*torch\.no_grad"
    ):
        rewrite(CountingWithoutGrad(), INPUTS, "100%")


class CountingAssigned(Counting):
    """The buffer is replaced, not written to."""

    def forward(self, features: Tensor) -> Tensor:
        x = torch.tanh(self.first(features))
        self.steps = self.steps + 1
        self.average = self.average * 0.9 + 0.1 * x.detach().mean(0)
        x = torch.sigmoid(x - self.average)
        return self.last(torch.tanh(x * 2))


class CountingAssignedThenWritten(Counting):
    """The buffer is replaced, and then the new one is written to."""

    def forward(self, features: Tensor) -> Tensor:
        x = torch.tanh(self.first(features))
        self.steps = self.steps + 1
        self.average = self.average * 0.9
        self.average.add_(x.detach().mean(0), alpha=0.1)
        x = torch.sigmoid(x - self.average.clone())
        return self.last(torch.tanh(x * 2))


@pytest.mark.parametrize("budget", BUDGETS)
@pytest.mark.parametrize(
    "kind",
    [Counting, CountingAssigned, CountingAssignedThenWritten],
    ids=["written", "assigned", "assigned-then-written"],
)
def test_buffer_changed_in_the_forward(kind: type[nn.Module], budget: str) -> None:
    plain, budgeted = twins(kind(), INPUTS, budget)
    for number in range(1, 4):
        assert_same(step(plain, INPUTS, seed=number), step(budgeted, INPUTS, seed=number))
        assert int(budgeted.steps) == number


# ----------------------------------------------------------------------------------------------------------------------
# Changes in place


class InPlace(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(24, 64)
        self.second = nn.Linear(64, 64)
        self.last = nn.Linear(64, 8)

    def change(self, x: Tensor) -> Tensor:
        return x

    def forward(self, features: Tensor) -> Tensor:
        x = self.change(self.first(features))
        x = torch.sigmoid(x)
        x = self.change(self.second(torch.tanh(x)))
        return self.last(F.gelu(x))


class Relu(InPlace):
    def change(self, x: Tensor) -> Tensor:
        return x.relu_()


class FunctionalRelu(InPlace):
    def change(self, x: Tensor) -> Tensor:
        return F.relu(x, inplace=True)


class Add(InPlace):
    def change(self, x: Tensor) -> Tensor:
        x += 1.0
        return x.add_(x.detach(), alpha=0.5)


class Mul(InPlace):
    def change(self, x: Tensor) -> Tensor:
        y = torch.tanh(x)
        return y.mul(2.0).mul_(x)


class DropoutInPlace(InPlace):
    def change(self, x: Tensor) -> Tensor:
        return F.dropout(x, 0.3, inplace=True)


class MaskedFill(InPlace):
    def change(self, x: Tensor) -> Tensor:
        return x.masked_fill_(x > 1.0, 0.5)


class Column(InPlace):
    def change(self, x: Tensor) -> Tensor:
        x[:, 0] = 0.0
        return x


class Block(InPlace):
    def change(self, x: Tensor) -> Tensor:
        x[1:5, 3:9] = x[11:15, 13:19] * 2.0
        return x


class Masked(InPlace):
    def change(self, x: Tensor) -> Tensor:
        x[x < -1.0] = -1.0
        return x


class ThroughView(InPlace):
    """The write goes through a view; the base is read afterwards."""

    def change(self, x: Tensor) -> Tensor:
        x.narrow(1, 0, 32).mul_(3.0)
        x.view(-1)[::7].add_(1.0)
        return x


class BufferOfResults(InPlace):
    """Results are written into a tensor made before."""

    def change(self, x: Tensor) -> Tensor:
        result = torch.zeros_like(x)
        for row in range(4):
            result[row * 32 : (row + 1) * 32] = torch.tanh(x[row * 32 : (row + 1) * 32] * float(row + 1))
        return result


class Clamp(InPlace):
    def change(self, x: Tensor) -> Tensor:
        return x.clamp_(-0.5, 0.5).exp_()


class Accumulated(InPlace):
    def change(self, x: Tensor) -> Tensor:
        total = torch.zeros_like(x)
        for _ in range(3):
            x = torch.tanh(x + 0.5)
            total += x
        return total


IN_PLACE = [
    Relu,
    FunctionalRelu,
    Add,
    Mul,
    DropoutInPlace,
    MaskedFill,
    Column,
    Block,
    Masked,
    ThroughView,
    BufferOfResults,
    Clamp,
    Accumulated,
]


@pytest.mark.parametrize("budget", [TIGHTEST, "60%", "100%"])
@pytest.mark.parametrize("kind", IN_PLACE, ids=lambda kind: kind.__name__)
def test_change_in_place(kind: type[nn.Module], budget: str) -> None:
    check_steps(kind(), INPUTS, budget, steps=2)


class OnInput(nn.Module):
    """The caller's own tensor is changed by the forward."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(24, 24)

    def forward(self, features: Tensor) -> Tensor:
        features.mul_(0.5)
        return self.last(torch.sigmoid(torch.tanh(features)))


def test_input_changed_in_place_by_the_forward_is_changed_once() -> None:
    mine, theirs = features(), features()
    plain, budgeted = twins(OnInput(), (features(),))
    for seed in range(3):
        assert_same(step(plain, (mine,), seed=seed), step(budgeted, (theirs,), seed=seed))
        assert same_bits(mine, theirs)


# ----------------------------------------------------------------------------------------------------------------------
# Sharing


class Tied(nn.Module):
    """One weight read three times, once transposed."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(40, 64)
        self.middle = nn.Linear(64, 64)
        self.head = nn.Linear(64, 40, bias=False)
        self.head.weight = self.table.weight
        self.dropout = nn.Dropout(0.1)

    def forward(self, rows: Tensor) -> Tensor:
        x = self.dropout(self.table(rows))
        x = torch.tanh(self.middle(F.gelu(self.middle(x))))
        return self.head(self.dropout(x)) + (x @ self.table.weight[:40].t())


@pytest.mark.smoke
@pytest.mark.parametrize("budget", BUDGETS)
def test_shared_parameters(budget: str) -> None:
    inputs = (torch.randint(40, (8, 16), generator=torch.Generator().manual_seed(0)),)
    plain, budgeted = twins(Tied(), inputs, budget)
    assert len(list(budgeted.parameters())) == len(list(plain.parameters()))
    for seed in range(3):
        assert_same(step(plain, inputs, seed=seed), step(budgeted, inputs, seed=seed))


class SharedLayer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Sequential(nn.Linear(24, 24), nn.GELU(), nn.Dropout(0.1))

    def forward(self, features: Tensor) -> Tensor:
        for _ in range(6):
            features = self.layer(features) + features
        return features


def test_one_layer_called_many_times() -> None:
    check_steps(SharedLayer(), INPUTS)


# ----------------------------------------------------------------------------------------------------------------------
# Layouts and types


class Convs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(6, 12, 3, padding=1)
        self.norm = nn.BatchNorm2d(12)
        self.second = nn.Conv2d(12, 12, 3, stride=2)
        self.dropout = nn.Dropout2d(0.1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.dropout(torch.relu(self.norm(self.first(x))))
        return torch.tanh(F.avg_pool2d(F.max_pool2d(self.second(x), 2), 2))


@pytest.mark.smoke
@pytest.mark.parametrize("budget", BUDGETS)
def test_channels_last_input(budget: str) -> None:
    inputs = (images().contiguous(memory_format=torch.channels_last),)
    check_steps(Convs(), inputs, budget)


def test_channels_last_module() -> None:
    inputs = (images().contiguous(memory_format=torch.channels_last),)
    check_steps(Convs().to(memory_format=torch.channels_last), inputs)


@pytest.mark.parametrize(
    "tensor",
    [
        pytest.param(features(24, 128).t(), id="transposed"),
        pytest.param(features(128, 48)[:, ::2], id="every-other"),
        pytest.param(features(1, 24).expand(128, 24), id="expanded"),
        pytest.param(features(256, 24)[128:], id="slice"),
        pytest.param(features(1, 24), id="one-row"),
    ],
)
def test_strided_input(tensor: Tensor) -> None:
    class Plain(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(24, 64)
            self.last = nn.Linear(64, 8)

        def forward(self, features: Tensor) -> Tensor:
            x = torch.sigmoid(torch.tanh(self.first(torch.tanh(features))))
            return self.last(F.gelu(x))

    check_steps(Plain(), (tensor,))


def test_empty_batch() -> None:
    class Plain(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(24, 64)

        def forward(self, features: Tensor) -> Tensor:
            return torch.sigmoid(torch.tanh(self.first(features)))

    check_steps(Plain(), (features(0, 24),), "100%")


class MixedTypes(nn.Module):
    """float64, float32, bfloat16, integers and booleans in one graph."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(24, 64).double()
        self.second = nn.Linear(64, 64)
        self.third = nn.Linear(64, 64).to(torch.bfloat16)

    def forward(self, features: Tensor, rows: Tensor, mask: Tensor) -> Tensor:
        x = torch.tanh(self.first(features))
        x = F.gelu(self.second(x.float()))
        y = torch.sigmoid(self.third(torch.tanh(x.to(torch.bfloat16))))
        x = torch.where(mask, x, y.float() * 2.0)
        x = x[rows] * (rows.float() / 7.0).unsqueeze(1)
        return torch.tanh(x).half().float()


@pytest.mark.smoke
@pytest.mark.parametrize("budget", BUDGETS)
def test_mixed_types(budget: str) -> None:
    generator = torch.Generator().manual_seed(0)
    inputs = (
        features().double().requires_grad_(),
        torch.randint(128, (128,), generator=generator),
        torch.rand(128, 64, generator=generator) > 0.5,
    )
    check_steps(MixedTypes(), inputs, budget)


class Pair(NamedTuple):
    value: Tensor
    count: Tensor


class Outputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(24, 64)
        self.second = nn.Linear(64, 64)
        self.dropout = nn.Dropout(0.2)

    def hidden(self, features: Tensor) -> tuple[Tensor, Tensor]:
        x = self.dropout(torch.tanh(self.first(features)))
        return x, torch.sigmoid(self.second(F.gelu(x)))


class OutTuple(Outputs):
    def forward(self, features: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor], int]:
        x, y = self.hidden(features)
        return x, (y, x > 0), x.shape[0]


class OutDict(Outputs):
    def forward(self, features: Tensor) -> dict[str, Tensor]:
        x, y = self.hidden(features)
        return {"hidden": x, "output": y, "rows": y.argmax(1)}


class OutNamedTuple(Outputs):
    def forward(self, features: Tensor) -> Pair:
        x, y = self.hidden(features)
        return Pair(x + y, (y > 0.5).sum())


class OutList(Outputs):
    def forward(self, features: Tensor) -> list[Tensor]:
        x, y = self.hidden(features)
        return [y, x, y]


class OutViews(Outputs):
    """Outputs that share a storage with each other, and with what is saved."""

    def forward(self, features: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x, y = self.hidden(features)
        left, right = y.chunk(2, dim=1)
        return left, right.t(), x.view(-1)


class OutDetached(Outputs):
    def forward(self, features: Tensor) -> tuple[Tensor, Tensor]:
        x, y = self.hidden(features)
        return y, x.detach()


class OutOptional(Outputs):
    def forward(self, features: Tensor) -> tuple[Tensor, Tensor | None, str]:
        x, y = self.hidden(features)
        return x * y, None, "done"


class OutScalar(Outputs):
    def forward(self, features: Tensor) -> Tensor:
        x, y = self.hidden(features)
        return (x * y).mean()


class OutInput(Outputs):
    """The input itself is an output too."""

    def forward(self, features: Tensor) -> tuple[Tensor, Tensor]:
        return self.hidden(features)[1], features


OUTPUTS = [OutTuple, OutDict, OutNamedTuple, OutList, OutViews, OutDetached, OutOptional, OutScalar, OutInput]


@pytest.mark.parametrize("budget", [TIGHTEST, "100%"])
@pytest.mark.parametrize("kind", OUTPUTS, ids=lambda kind: kind.__name__)
def test_outputs_keep_their_types(kind: type[nn.Module], budget: str) -> None:
    check_steps(kind(), INPUTS, budget, steps=2)


class Nested(nn.Module):
    """Inputs that are lists, tuples, dicts, numbers and words."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(24, 64)
        self.last = nn.Linear(64, 8)

    def forward(
        self,
        parts: list[Tensor],
        pair: tuple[Tensor, int],
        named: dict[str, Tensor],
        factor: float,
        kind: str = "tanh",
        flag: bool = False,
    ) -> Tensor:
        x = self.first(torch.cat(parts, 0)) + pair[0] * float(pair[1]) + named["shift"]
        x = torch.tanh(x) if kind == "tanh" else torch.sigmoid(x)
        if flag:
            x = x * 2.0
        return self.last(F.gelu(torch.sigmoid(x * factor)))


@pytest.mark.parametrize("extra", [(), ("sigmoid",), ("tanh", True)], ids=["defaults", "word", "flag"])
def test_inputs_of_all_kinds(extra: tuple[object, ...]) -> None:
    parts = [features(64, seed=1), features(64, seed=2)]
    inputs = (parts, (features(128, 64), 3), {"shift": features(128, 64, seed=3)}, 1.5, *extra)
    check_steps(Nested(), inputs)


def test_keyword_arguments() -> None:
    inputs = ([features()], (features(128, 64), 3), {"shift": features(128, 64, seed=3)}, 1.5, "tanh")
    plain, budgeted = twins(Nested(), inputs)
    parts, pair, named, factor, kind = inputs
    kwargs = {"kind": kind, "named": named, "factor": factor}
    assert_same(step(plain, (parts, pair), kwargs=kwargs), step(budgeted, (parts, pair), kwargs=kwargs))


# ----------------------------------------------------------------------------------------------------------------------
# Attributes and other methods


class WithMethods(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = net()
        self.factor = 2.0

    def forward(self, features: Tensor) -> Tensor:
        return self.net(features) * self.factor

    @torch.jit.export
    def embed(self, features: Tensor) -> Tensor:
        return torch.tanh(self.net.first(features)) * self.factor

    @torch.jit.export
    def training_step(self, features: Tensor) -> Tensor:
        return self.net(features).square().mean()


@pytest.mark.smoke
def test_another_method_than_forward() -> None:
    import recals

    plain = WithMethods()
    scripted = torch.jit.script(WithMethods())
    scripted.load_state_dict(plain.state_dict())
    budgeted = recals.optimize(scripted, INPUTS, "80%", method="training_step")
    prepare_gradients(plain)
    prepare_gradients(budgeted)
    for module in (plain, budgeted):
        torch.manual_seed(1)
        module.training_step(*INPUTS).backward()
    assert differing_gradients(plain, budgeted) == []
    assert differing_state(plain, budgeted) == []


def test_other_methods_and_attributes_stay() -> None:
    plain = WithMethods()
    scripted = torch.jit.script(WithMethods())
    scripted.load_state_dict(plain.state_dict())
    budgeted = rewrite(scripted, INPUTS)
    assert budgeted.factor == 2.0
    assert torch.equal(plain.embed(features(7)), budgeted.embed(features(7)))
    prepare_gradients(plain)
    prepare_gradients(budgeted)
    run(plain, INPUTS)
    run(budgeted, INPUTS)
    assert differing_gradients(plain, budgeted) == []


# ----------------------------------------------------------------------------------------------------------------------
# Attributes that the forward assigns


class Carried(nn.Module):
    """What it returned last time goes into this time, as a whole or in part."""

    def __init__(self, part: str) -> None:
        super().__init__()
        self.linear = nn.Linear(24, 24)
        self.part = part
        self.register_buffer("state", torch.zeros(128, 24))

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.linear(x))
        if self.part == "row":
            y = y + self.state[0]
        elif self.part == "flat":
            y = y + self.state.view(-1)[:24]
        elif self.part == "transposed":
            y = y * torch.relu(self.state.t().t() + 1)
        elif self.part == "twice":
            y = y + self.state[0] + self.state[1:2]
        else:
            y = y + self.state
        self.state = y.detach()
        return torch.relu(self.linear(y)) + self.state.mean()


@pytest.mark.parametrize("budget", BUDGETS)
@pytest.mark.parametrize("part", ["whole", "row", "flat", "transposed", "twice"])
def test_an_assigned_attribute_is_read_in_the_next_step(part: str, budget: str) -> None:
    plain, budgeted = twins(Carried(part), INPUTS, budget)
    for number in range(1, 4):
        assert_same(step(plain, INPUTS, seed=number), step(budgeted, INPUTS, seed=number))
        assert same_bits(plain.state, budgeted.state)


def test_planning_leaves_assigned_attributes_alone() -> None:
    module = torch.jit.script(Carried("row"))
    before = module.state
    recals.optimize(module, INPUTS, "min")
    assert module.state is before or same_bits(module.state, before)
    assert recals.estimate(module, INPUTS).peak == recals.estimate(module, INPUTS).peak


class CarriedInAList(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(24, 24)
        self.states: list[Tensor] = [torch.zeros(24)]

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.linear(x))
        self.states = [y.detach()[0]]
        return y


def test_an_assigned_list_of_tensors_is_refused_with_its_line() -> None:
    with pytest.raises(recals.RecalsError, match=r"test_state\.py:\d+ assigns a container of tensors to 'states'"):
        rewrite(CarriedInAList(), INPUTS)


def test_a_frozen_module_says_what_to_freeze() -> None:
    for training in (True, False):
        scripted = torch.jit.script(net().train(training))
        frozen = torch.jit.freeze(rewrite(scripted, INPUTS).eval())
        plain = torch.jit.freeze(scripted.eval())
        restored = torch.jit.freeze(recals.restore(rewrite(scripted.train(training), INPUTS)).eval())
        for grad in (True, False):
            with torch.set_grad_enabled(grad):
                with pytest.raises(RuntimeError, match=r"torch\.jit\.freeze takes it away.*recals\.restore"):
                    frozen(*INPUTS)
                assert same_bits(restored(*INPUTS), plain(*INPUTS))
