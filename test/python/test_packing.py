"""Packed slots, cheaper replays and nested replays: the bits of the plain step, and never more bytes than predicted."""

import copy
import io
import re
import zipfile
from collections import Counter
from typing import Any

import models
import pytest
import recals
import torch
import torch.nn.functional as F
import training
from recals._load import _C
from support import TIGHTEST, assert_same, check_steps, features, rewrite, run, smallest_budget, step, twins
from torch import Tensor, nn


def fates(module: nn.Module) -> Counter[str]:
    """How many storages that slots show have which fate."""
    return Counter(storage["fate"] for storage in recals.plan_of(module)["storages"] if storage["slots"])


def runs(module: nn.Module, inputs: tuple[Any, ...]) -> dict[str, int | float]:
    """The counters of one step."""
    recals.reset_counters()
    run(module, inputs)
    return recals.counters()


def code_of_regions(module: nn.Module) -> str:
    """The plan as TorchScript."""
    names = (f"recals_forward_region_{number}" for number in range(len(recals.plan_of(module)["regions"])))
    return "".join(getattr(module, name).code for name in names)


class Masks(nn.Module):
    """Everything that has a smaller form: signs, noise, booleans, positions, and what is only asked for its size."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, padding=1)
        self.second = nn.Conv2d(8, 8, 3, padding=1)
        self.third = nn.Linear(8 * 16, 64)
        self.last = nn.Linear(64, 10)

    def forward(self, images: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.first(images)), 2)
        x = F.dropout2d(self.second(x), 0.25, self.training)
        x = x.masked_fill(x > 1.0, 1.0)
        x = F.avg_pool2d(torch.where(x < 0.0, torch.tanh(x), x), 2)
        x = F.dropout(F.relu(self.third(x.flatten(1))), 0.5, self.training)
        values, _ = torch.sort(self.last(x), dim=1)
        return values


def images(rows: int = 16) -> Tensor:
    return torch.randn(rows, 3, 16, 16, generator=torch.Generator().manual_seed(3))


class Chain(nn.Module):
    """As long as it is wide: little but nested replays makes it small."""

    def __init__(self, length: int = 24, width: int = 32) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(width, width) for _ in range(length)])

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return x


# ----------------------------------------------------------------------------------------------------------------------
# Packs


@pytest.mark.smoke
@pytest.mark.parametrize("budget", [TIGHTEST, "60%", "80%"])
def test_every_form_gives_the_plain_bits(budget: str) -> None:
    check_steps(Masks(), (images(),), budget)


@pytest.mark.smoke
def test_signs_and_noise_alone_bring_an_mlp_below_half() -> None:
    workload = models.build("mlp", "small")
    plain = training.plain(workload)
    agreed = training.budgeted(workload, "50%")
    counted = fates(agreed.trainee.module)
    assert counted["pack"] > 0
    assert counted["recompute"] == 0, "packing alone is enough, and cheaper"
    plain.gradients(0)()
    recals.reset_counters()
    peak = training.measured_peak(agreed.trainee.gradients(0))
    assert peak <= agreed.granted
    assert recals.counters()["packs"] == counted["pack"]
    assert recals.counters()["recomputed_nodes"] == 0
    assert training.differing_gradients(plain.module, agreed.trainee.module) == []


@pytest.mark.parametrize("name", ["mlp", "gpt", "unet", "resnet18", "uneven"])
@pytest.mark.parametrize("budget", ["70%", "40%"])
def test_models_with_all_fates_stay_within_what_was_predicted(name: str, budget: str) -> None:
    workload = models.build(name, "small")
    plain = training.plain(workload)
    agreed = training.budgeted(workload, budget)
    predicted = recals.plan_of(agreed.trainee.module)["devices"][0]["peak"]
    for number in range(2):
        plain.gradients(number)()
        peak = training.measured_peak(agreed.trainee.gradients(number))
        assert peak <= predicted <= agreed.granted
        assert training.differing_gradients(plain.module, agreed.trainee.module) == []


class SharedMask(nn.Module):
    """One mask that two ops save, once as it is and once expanded."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(24, 96)
        self.scale = nn.Linear(24, 96)

    def forward(self, x: Tensor) -> Tensor:
        a, b = self.layer(x), self.scale(x)
        mask = a.sum(1, keepdim=True) > 0
        wide = mask.expand(-1, 96) & (b > 0)
        return torch.tanh(a.masked_fill(wide, 0.0)) * torch.sigmoid(b.masked_fill(wide, 1.0).masked_fill(mask, 2.0))


class SharedRelu(nn.Module):
    """A result of relu that is read for its values, too, beside one that is not."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(24, 96)
        self.second = nn.Linear(96, 96)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.first(x))
        z = torch.relu(self.second(y))
        return F.dropout(torch.relu(y + z), 0.5, self.training) + torch.relu(z - y).sum()


class InPlace(nn.Module):
    """relu_ and dropout_ in place, also on a view of what something else has saved."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(24, 96)
        self.second = nn.Linear(96, 96)
        self.activation = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        y = self.activation(F.dropout(self.first(x), 0.5, self.training, inplace=True))
        z = self.second(y)
        z[:, :48].relu_()
        left, right = z.chunk(2, 1)
        right = right * 1.5
        return F.relu(left * 2, inplace=True) + right.masked_fill_(right > 0.5, 0.5)


class Strided(nn.Module):
    """Slots that are views with other strides and offsets than their storage."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(24, 96)

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x).t()[3:, ::2]
        z = F.dropout(torch.relu(y).t(), 0.25, self.training)
        mask = (z > 0.25).t()[:, 1:].t()
        return torch.where(mask, z[1:], torch.relu(z[:-1]) * 0.5)


@pytest.mark.parametrize("budget", [TIGHTEST, "70%"])
@pytest.mark.parametrize("kind", [SharedMask, SharedRelu, InPlace, Strided])
def test_packs_of_slots_that_share_and_show_storages(kind: type[nn.Module], budget: str) -> None:
    check_steps(kind(), (features(),), budget)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_dtypes(dtype: torch.dtype) -> None:
    module = models.build("mlp", "small").module.to(dtype)
    inputs = (models.build("mlp", "small").make_batch(0)[0][0].to(dtype),)
    plain, budgeted = twins(module, inputs, "50%")
    assert fates(budgeted)["pack"] > 0
    assert_same(step(plain, inputs), step(budgeted, inputs))


def test_on_several_threads() -> None:
    # Large enough for ranges, each with its own share of the packed bytes.
    torch.set_num_threads(3)
    layers = [layer for _ in range(3) for layer in (nn.Linear(256, 256), nn.ReLU(), nn.Dropout(0.3))]
    inputs = (features(333, 256),)
    plain, budgeted = twins(nn.Sequential(*layers, nn.Linear(256, 4)), inputs, "60%")
    assert runs(budgeted, inputs)["packs"] > 0
    for module in (plain, budgeted):
        module.zero_grad(set_to_none=False)
    assert_same(step(plain, inputs), step(budgeted, inputs))


# ----------------------------------------------------------------------------------------------------------------------
# Autograd


def mlp() -> tuple[nn.Module, tuple[Tensor]]:
    torch.manual_seed(0)
    layers = [layer for _ in range(4) for layer in (nn.Linear(64, 64), nn.ReLU(), nn.Dropout(0.25))]
    return nn.Sequential(*layers, nn.Linear(64, 8)), (features(96, 64),)


@pytest.mark.parametrize("budget", [TIGHTEST, "60%"])
def test_two_backwards_over_a_kept_graph(budget: str) -> None:
    module, inputs = mlp()
    outcomes = []
    for twin in twins(module, inputs, budget):
        torch.manual_seed(1)
        loss = twin(*inputs).square().sum()
        loss.backward(retain_graph=True)
        loss.backward()
        outcomes.append([parameter.grad for parameter in twin.parameters()])
    assert all(map(training.same_bits, *outcomes))


@pytest.mark.parametrize("budget", [TIGHTEST, "60%"])
def test_gradient_of_a_gradient(budget: str) -> None:
    module, inputs = mlp()
    outcomes = []
    for twin in twins(module, inputs, budget):
        torch.manual_seed(1)
        parameters = list(twin.parameters())
        first = torch.autograd.grad(twin(*inputs).square().sum(), parameters, create_graph=True)
        penalty = sum(gradient.square().sum() for gradient in first)
        outcomes.append([*first, *torch.autograd.grad(penalty, parameters)])
    assert all(map(training.same_bits, *outcomes))


@pytest.mark.parametrize("budget", [TIGHTEST, "60%"])
def test_a_backward_in_parts(budget: str) -> None:
    module, inputs = mlp()
    outcomes = []
    for twin in twins(module, inputs, budget):
        torch.manual_seed(1)
        loss = twin(*inputs).square().sum()
        parameters = list(twin.parameters())
        last = torch.autograd.grad(loss, parameters[-2:], retain_graph=True)
        middle = torch.autograd.grad(loss, parameters[4:6], retain_graph=True)
        every = torch.autograd.grad(loss, parameters)
        outcomes.append([*last, *middle, *every])
    assert all(map(training.same_bits, *outcomes))


def test_slots_with_hooks_of_the_user_are_left_alone() -> None:
    module, inputs = mlp()
    plain, budgeted = twins(module, inputs, "60%")
    seen: list[Tensor] = []

    def keep(tensor: Tensor) -> Tensor:
        seen.append(tensor)
        return tensor

    recals.reset_counters()
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        budgeted_outcome = step(budgeted, inputs)
    assert recals.counters()["packs"] == recals.counters()["dropped_slots"] == 0
    assert len(seen) > 0
    assert_same(step(plain, inputs), budgeted_outcome)


def test_a_forward_without_a_backward_leaves_nothing() -> None:
    module, inputs = mlp()
    budgeted = rewrite(module, inputs, "60%")
    run(budgeted, inputs)
    with recals.track_memory() as memory:
        budgeted(*inputs)
    assert memory.live == {"cpu": 0}


# ----------------------------------------------------------------------------------------------------------------------
# Recipes


class Smooth(nn.Module):
    """Dropouts whose results are dear to keep and cheap to make again from their noise."""

    def __init__(self, p: float = 0.5) -> None:
        super().__init__()
        self.p = p
        self.layers = nn.ModuleList([nn.Linear(48, 48) for _ in range(6)])

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = F.dropout(F.gelu(layer(x)), self.p, self.training)
        return x


@pytest.mark.parametrize("p", [0.0, 0.1, 0.999, 1.0])
@pytest.mark.parametrize("budget", [TIGHTEST, "50%"])
def test_dropout_is_made_again_from_its_noise(p: float, budget: str) -> None:
    check_steps(Smooth(p), (features(96, 48),), budget)


def test_made_from_noise_nothing_is_drawn_again() -> None:
    module, inputs = Smooth(), (features(96, 48),)
    budgeted = rewrite(module, inputs)
    code = code_of_regions(budgeted)
    replayed = [node["op"] for node in recals.plan_of(budgeted)["nodes_replayed"]]
    assert "aten::dropout" in replayed
    assert "ops.recals.pack_internal" in code or "ops.recals.keep_internal" in code
    torch.manual_seed(1)
    loss = budgeted(*inputs).sum()
    state = torch.get_rng_state()
    # A replay that drew would draw from wherever the generator is; these must not.
    torch.manual_seed(7)
    loss.backward()
    gradients = [parameter.grad.clone() for parameter in budgeted.parameters()]
    budgeted.zero_grad()
    torch.manual_seed(1)
    budgeted(*inputs).sum().backward()
    assert torch.equal(torch.get_rng_state(), state)
    assert all(map(training.same_bits, gradients, [parameter.grad for parameter in budgeted.parameters()]))


def test_where_the_noise_is_not_saved_it_is_drawn_again() -> None:
    # Frozen after the plan was made: the first dropouts have no gradient, save nothing, and still feed what is trained.
    inputs = (features(96, 48),)
    plain, budgeted = twins(Smooth(), inputs, "50%")
    for module in (plain, budgeted):
        for layer in range(3):
            for parameter in getattr(module.layers, str(layer)).parameters():
                parameter.requires_grad_(False)
                parameter.grad = None
    assert_same(step(plain, inputs), step(budgeted, inputs))


# ----------------------------------------------------------------------------------------------------------------------
# Nested replays


@pytest.mark.smoke
def test_a_chain_replayed_many_times_is_small() -> None:
    module, inputs = Chain(), (features(256, 32),)
    scripted = torch.jit.script(copy.deepcopy(module))
    plain_peak = recals.estimate(scripted, inputs).peak["cpu"]
    smallest = smallest_budget(scripted, inputs)["cpu"]
    # One replay of each node cannot go below about 2 * sqrt(24) of 24 activations.
    assert smallest < 0.4 * plain_peak
    plain, budgeted = twins(module, inputs, TIGHTEST)
    counted = runs(budgeted, inputs)
    assert counted["recomputed_nodes"] > len(recals.plan_of(budgeted)["nodes_replayed"]), "no node ran twice"
    budgeted.zero_grad(set_to_none=False)
    assert_same(step(plain, inputs), step(budgeted, inputs))
    peak = training.measured_peak(lambda: run(budgeted, inputs))
    assert peak <= smallest


@pytest.mark.parametrize("budget", ["25%", "40%"])
def test_nested_replays_of_random_ops(budget: str) -> None:
    check_steps(Smooth(), (features(96, 48),), budget)


# ----------------------------------------------------------------------------------------------------------------------
# Files


@pytest.mark.parametrize("make", [Masks, Smooth, Chain], ids=["masks", "recipes", "nested"])
def test_saved_and_loaded(make: type[nn.Module]) -> None:
    inputs: tuple[Tensor] = {Masks: (images(),), Smooth: (features(96, 48),), Chain: (features(64, 32),)}[make]
    plain, budgeted = twins(make(), inputs)
    buffer = io.BytesIO()
    torch.jit.save(budgeted, buffer)
    buffer.seek(0)
    loaded = torch.jit.load(buffer)
    training.prepare_gradients(loaded)
    assert recals.plan_of(loaded) == recals.plan_of(budgeted)
    before, after = runs(budgeted, inputs), runs(loaded, inputs)
    for count in ("packs", "unpacks", "recomputed_nodes", "dropped_slots"):
        assert before[count] == after[count], count
    loaded.zero_grad(set_to_none=False)
    assert_same(step(plain, inputs), step(loaded, inputs))


def test_restored() -> None:
    module = torch.jit.script(Masks())
    budgeted = rewrite(module, (images(),))
    assert "ops.recals.pack" in code_of_regions(budgeted)
    assert recals.restore(budgeted).code == module.code


def test_taken_out_of_the_graph() -> None:
    module = torch.jit.script(Masks())
    analysis = recals.passes.analyse(module, (images(),))
    planned = recals.passes.plan(analysis, smallest_budget(module, (images(),)))
    graph = planned.graph.copy()
    assert "recals::pack" in str(graph)
    assert recals.passes.remove_boundaries(graph)
    assert "recals::" not in str(graph)


def in_format(module: torch.jit.ScriptModule, number: int) -> torch.jit.ScriptModule:
    """`module`, saved and loaded as if a library that writes this format had written it."""
    written, rewritten = io.BytesIO(), io.BytesIO()
    torch.jit.save(module, written)
    with zipfile.ZipFile(written) as source, zipfile.ZipFile(rewritten, "w") as target:
        for name in source.namelist():
            content = source.read(name)
            if name.endswith(".py"):
                content = re.sub(rb"(ops\.recals\.enter\(.*), \d+\)", rb"\1, %d)" % number, content)
            target.writestr(name, content)
    rewritten.seek(0)
    loaded: torch.jit.ScriptModule = torch.jit.load(rewritten)
    assert f", {number})" in loaded.code
    return loaded


def test_a_file_of_the_first_format_still_trains() -> None:
    module, inputs = nn.Sequential(nn.Linear(24, 96), nn.Tanh(), nn.Sigmoid(), nn.Linear(96, 4)), (features(),)
    plain, budgeted = twins(module, inputs)
    assert fates(budgeted)["recompute"] > 0
    assert fates(budgeted)["pack"] == 0
    loaded = in_format(budgeted, 1)
    training.prepare_gradients(loaded)
    assert_same(step(plain, inputs), step(loaded, inputs))


def test_a_file_of_a_later_format_is_refused() -> None:
    budgeted = rewrite(Smooth(), (features(96, 48),))
    later = _C.FORMAT_VERSION + 1
    with pytest.raises(
        RuntimeError, match=rf"written in format {later}, but this library reads formats 1 to {later - 1}"
    ):
        in_format(budgeted, later)(features(96, 48))
