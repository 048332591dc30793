"""Ops in place: made again out of place with the bits of the module, and left in place where nothing is made again."""

import copy

import pytest
import recals
import torch
import torch.nn.functional as F
from support import assert_same, features, rewrite, scalar, smallest_budget, step, twins
from torch import Tensor, nn

# Each is applied to the result of a linear.
OPS = {
    "selu_": "torch.selu_(x)",
    "elu_": "F.elu(x, 0.7, inplace=True)",
    "celu_": "torch.celu_(x, 1.3)",
    "leaky_relu_": "F.leaky_relu(x, 0.1, inplace=True)",
    "hardtanh_": "F.hardtanh(x, -0.5, 0.5, inplace=True)",
    "hardswish_": "F.hardswish(x, inplace=True)",
    "hardsigmoid_": "F.hardsigmoid(x, inplace=True)",
    "silu_": "F.silu(x, inplace=True)",
    "mish_": "F.mish(x, inplace=True)",
    "threshold_": "F.threshold(x, 0.1, 20.0, inplace=True)",
    "relu6_": "F.relu6(x, inplace=True)",
    "rrelu_": "F.rrelu(x, 0.1, 0.4, True, inplace=True)",
    "dropout_": "F.dropout(x, 0.3, True, inplace=True)",
    "clamp_": "x.clamp_(-0.5, 0.5)",
    "sigmoid_": "x.sigmoid_()",
    "tanh_": "x.tanh_()",
    "exp_": "x.exp_()",
    "mul_": "x.mul_(0.5)",
    "erf_": "x.erf_()",
}
NOT_MADE_AGAIN = {"dropout_"}
"""A dropout in place allocates otherwise than its twin."""


class Layers(nn.Module):
    def __init__(self, layers: int = 8, width: int = 32) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            self.layers = nn.ModuleList([nn.Linear(width, width) for _ in range(layers)])


def eager_of(op: str) -> nn.Module:
    class Eager(Layers):
        def forward(self, x: Tensor) -> Tensor:
            for layer in self.layers:
                x = eval(OPS[op], {"torch": torch, "F": F}, {"x": layer(x)})
            return x

    return Eager()


def peak_of(module: nn.Module, x: Tensor) -> int:
    step(module, (x,))
    module.zero_grad(set_to_none=False)
    with recals.track_memory() as memory:
        scalar(module(x)).backward()
    return memory.peak["cpu"]


@pytest.mark.parametrize("op", OPS)
def test_in_place_activations_are_made_again_with_the_same_bits(op: str) -> None:
    x = features(256, 32)
    traced = torch.jit.trace(eager_of(op), (x,), check_trace=False)
    plain = recals.estimate(traced, (x,)).peak["cpu"]
    smallest = smallest_budget(traced, (x,))["cpu"]
    if op not in NOT_MADE_AGAIN:
        assert smallest < 0.65 * plain
    for budget in (smallest, "100%"):
        eager = eager_of(op)
        budgeted = recals.optimize(torch.jit.trace(eager_of(op), (x,), check_trace=False), (x,), budget)
        assert_same(step(eager, (x,)), step(budgeted, (x,)))
        assert peak_of(budgeted, x) <= (smallest if budget == smallest else plain)


class Chain(nn.Module):
    """Writes in place one after the other."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(48, 48) for _ in range(6)])

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            y = layer(x).mul_(0.5)
            y += x
            x = F.selu(y, inplace=True)
        return x


def test_a_plan_that_keeps_everything_takes_what_the_module_takes() -> None:
    x = features(512, 48)
    eager = Chain()
    budgeted = rewrite(copy.deepcopy(eager), (x,), "100%")
    assert recals.plan_of(budgeted)["recompute_seconds"] == 0
    plain = peak_of(eager, x)
    assert peak_of(budgeted, x) <= plain
    assert recals.estimate(torch.jit.script(Chain()), (x,)).peak["cpu"] >= plain
    eager, budgeted = twins(eager, (x,), "100%")
    assert_same(step(eager, (x,)), step(budgeted, (x,)))


@pytest.mark.parametrize("budget", ["min", "30%", "50%", "70%", "85%", "95%"])
def test_in_place_where_the_plan_leaves_it_alone(budget: str) -> None:
    x = features(512, 48)
    eager, budgeted = twins(Chain(), (x,), budget)
    for seed in range(2):
        assert_same(step(eager, (x,), seed=seed), step(budgeted, (x,), seed=seed))
    allowed = recals.plan_of(budgeted)["devices"][0]["budget"]
    assert peak_of(budgeted, x) <= allowed


def test_an_op_in_place_whose_derivative_is_its_own_has_a_twin_of_its_own() -> None:
    """The derivative of elu_ reads the result, in other roundings than that of elu, which reads the input."""
    x = torch.linspace(-3, 3, 1001).requires_grad_()
    for twin, op in ((torch.ops.recals.elu, F.elu), (torch.ops.recals.selu, F.selu), (torch.ops.recals.celu, F.celu)):
        ((of_twin,), (in_place,)) = (torch.autograd.grad(y.sum(), x) for y in (twin(x), op(x.clone(), inplace=True)))
        assert torch.equal(of_twin, in_place)


def test_every_derivative_of_an_op_in_place_is_that_of_its_twin() -> None:
    """The list of ops whose derivative differs in place is complete, as far as pointwise ops go."""
    x = torch.cat([torch.linspace(-2.5, 2.5, 500), torch.linspace(0.01, 0.99, 500)]).requires_grad_()
    differ = set()
    for schema in torch._C._jit_get_all_schemas():
        name = schema.name.removeprefix("aten::")
        needs = [a for a in schema.arguments[1:] if not a.has_default_value()]
        if not schema.name.startswith("aten::") or not name.endswith("_") or name.endswith("__") or needs:
            continue
        write = (
            schema.arguments and schema.arguments[0].alias_info is not None and schema.arguments[0].alias_info.is_write
        )
        twin, op = getattr(torch.ops.aten, name[:-1], None), getattr(torch.ops.aten, name)
        if not write or twin is None or "rand" in name or "Generator" in str(schema):
            continue
        try:
            torch.manual_seed(0)
            ours = torch.autograd.grad(twin(x + 0).sum(), x)[0]
            torch.manual_seed(0)
            theirs = torch.autograd.grad(op(x + 0).sum(), x)[0]
        except (RuntimeError, TypeError, NotImplementedError):
            continue
        if not torch.equal(ours.nan_to_num(), theirs.nan_to_num()):
            differ.add(name)
    assert differ <= {"elu_", "celu_", "selu_"}
    assert "selu_" in differ or "elu_" in differ, "nothing was compared"


class WrittenSlice(nn.Module):
    """A sum into a slice that is all of channels-last channels; what reads it is a convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(8, 24, 1)
        self.norm = nn.BatchNorm2d(24)
        self.again = nn.Conv2d(24, 8, 1)
        self.second = nn.Conv2d(8, 12, 3, padding=1)
        self.shortcut = nn.Conv2d(8, 24, 1)
        self.last = nn.Conv2d(24, 24, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.norm(self.first(x)))
        x = self.again(y)
        parts = torch.cat([self.second(x), self.second(torch.relu(x))], 1)[:, :24, :, :]
        parts += self.shortcut(x)
        return torch.sigmoid(self.last(parts))


def test_a_view_that_is_written_gets_its_gradients_in_the_layout_of_its_base() -> None:
    """The twin of the sum would hand on gradients in another layout, which convolutions sum up in another order."""
    last = torch.channels_last
    x = torch.randn(2, 8, 28, 28).contiguous(memory_format=last)
    plain, budgeted = twins(WrittenSlice().to(memory_format=last), (x,))
    for seed in range(2):
        assert_same(step(plain, (x,), seed=seed), step(budgeted, (x,), seed=seed))
    assert recals.counters()["recomputed_nodes"] > 0


class WrittenTokens(Layers):
    """Linears of three dimensions return views; their gradient comes in another layout than theirs."""

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.relu_(layer(x))
            x = x + torch.tanh(x.transpose(0, 1)).transpose(0, 1)
        return x.transpose(1, 2)


def test_ops_in_place_on_contiguous_views_are_made_again() -> None:
    x = torch.randn(8, 16, 32)
    plain, budgeted = twins(WrittenTokens(), (x,))
    smallest = recals.plan_of(budgeted)["devices"][0]
    assert smallest["peak"] < 0.7 * smallest["plain_peak"]
    assert "aten::relu" in {node["op"] for node in recals.plan_of(budgeted)["nodes_replayed"]}
    for seed in range(2):
        assert_same(step(plain, (x,), seed=seed), step(budgeted, (x,), seed=seed))
    everything = rewrite(WrittenTokens(), (x,), "100%")
    assert peak_of(everything, x) == peak_of(WrittenTokens(), x)
