"""Random numbers: what is recomputed draws again what it drew, and the stream goes on as in the plain run."""

import copy
import threading

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
    step,
    twins,
)
from torch import Tensor, nn
from training import prepare_gradients

WIDTH = 96  # Scripted code below says 96: it cannot read globals.
INPUTS = (features(rows=128, width=WIDTH),)


class TwoDropouts(nn.Module):
    """Dropouts between matmuls."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.second = nn.Linear(WIDTH, WIDTH)
        self.third = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        x = F.dropout(torch.relu(self.first(x)), 0.5)
        x = F.dropout(torch.relu(self.second(x)), 0.5)
        return self.third(x)


class OneDropout(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.second = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(F.dropout(torch.tanh(self.first(x)), 0.3))


class AroundMiddle(nn.Module):
    """A stack with a random middle, so that something is dropped on either side of it."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.second = nn.Linear(WIDTH, WIDTH)
        self.third = nn.Linear(WIDTH, WIDTH)

    def middle(self, x: Tensor) -> Tensor:
        return x

    def forward(self, x: Tensor) -> Tensor:
        x = self.middle(torch.tanh(self.first(x)))
        x = self.middle(torch.sigmoid(self.second(F.gelu(x))))
        return self.third(F.silu(x))


class Dropout(AroundMiddle):
    def middle(self, x: Tensor) -> Tensor:
        return F.dropout(x, 0.2)


class DropoutOfNothingAndAll(AroundMiddle):
    """Probabilities of 0 and 1 are cases of their own inside torch."""

    def middle(self, x: Tensor) -> Tensor:
        return F.dropout(x, 0.0) + F.dropout(x, 1.0)


class FeatureDropout(AroundMiddle):
    def middle(self, x: Tensor) -> Tensor:
        return F.dropout1d(x.view(-1, 8, 12), 0.3).view(-1, 96)


class AlphaDropout(AroundMiddle):
    def middle(self, x: Tensor) -> Tensor:
        return F.alpha_dropout(x, 0.3, training=True)


class FeatureAlphaDropout(AroundMiddle):
    def middle(self, x: Tensor) -> Tensor:
        return F.feature_alpha_dropout(x.view(-1, 8, 12), 0.3, training=True).view(-1, 96)


class RandomRelu(AroundMiddle):
    def middle(self, x: Tensor) -> Tensor:
        return F.rrelu(x - 0.3, 0.1, 0.4, training=True)


class Bernoulli(AroundMiddle):
    def middle(self, x: Tensor) -> Tensor:
        return x * torch.bernoulli(torch.sigmoid(x.detach()))


class BernoulliInPlace(AroundMiddle):
    def middle(self, x: Tensor) -> Tensor:
        return x * torch.empty_like(x).bernoulli_(0.6)


class RandLike(AroundMiddle):
    def middle(self, x: Tensor) -> Tensor:
        return x * torch.rand_like(x)


class RandnLike(AroundMiddle):
    def middle(self, x: Tensor) -> Tensor:
        return x + 0.1 * torch.randn_like(x) * x


class RandShape(AroundMiddle):
    def middle(self, x: Tensor) -> Tensor:
        return x * torch.rand([x.shape[0], 1], dtype=x.dtype) + torch.randn([x.shape[1]], dtype=x.dtype)


class RandintLike(AroundMiddle):
    def middle(self, x: Tensor) -> Tensor:
        return x * torch.randint_like(x.detach(), 1, 5)


class InPlaceFillers(AroundMiddle):
    def middle(self, x: Tensor) -> Tensor:
        a = torch.empty_like(x).uniform_(0.5, 1.5)
        b = torch.empty_like(x).normal_(0.0, 0.1)
        c = torch.empty_like(x).exponential_(2.0)
        return x * a + b * c


class Multinomial(AroundMiddle):
    def middle(self, x: Tensor) -> Tensor:
        chosen = torch.multinomial(torch.softmax(x.detach(), dim=1), 48)
        return x.scatter_add(1, chosen, torch.tanh(x[:, :48]))


class Permutation(AroundMiddle):
    def middle(self, x: Tensor) -> Tensor:
        return x[torch.randperm(x.shape[0])]


class Gumbel(AroundMiddle):
    def middle(self, x: Tensor) -> Tensor:
        noise = -torch.empty_like(x).exponential_().log()
        return x * torch.softmax(x + noise, dim=1)


class AttentionDropout(AroundMiddle):
    """The attention's own dropout."""

    def middle(self, x: Tensor) -> Tensor:
        heads = x.view(4, 4, 8, 96)
        return F.scaled_dot_product_attention(heads, heads, heads, dropout_p=0.2).reshape(-1, 96)


class TwoDropoutsOfOneValue(AroundMiddle):
    """One value, dropped out twice, independently."""

    def middle(self, x: Tensor) -> Tensor:
        return F.dropout(x, 0.5) + F.dropout(x, 0.5)


MODULES = [
    TwoDropouts,
    OneDropout,
    Dropout,
    DropoutOfNothingAndAll,
    FeatureDropout,
    AlphaDropout,
    FeatureAlphaDropout,
    RandomRelu,
    Bernoulli,
    BernoulliInPlace,
    RandLike,
    RandnLike,
    RandShape,
    RandintLike,
    InPlaceFillers,
    Multinomial,
    Permutation,
    Gumbel,
    AttentionDropout,
    TwoDropoutsOfOneValue,
]


@pytest.mark.parametrize("budget", [TIGHTEST, "60%"])
@pytest.mark.parametrize("kind", MODULES, ids=lambda kind: kind.__name__)
def test_random_op(kind: type[nn.Module], budget: str) -> None:
    check_steps(kind(), INPUTS, budget, steps=2)


@pytest.mark.smoke
@pytest.mark.parametrize("budget", BUDGETS)
def test_two_dropouts_between_matmuls(budget: str) -> None:
    check_steps(TwoDropouts(), INPUTS, budget)


@pytest.mark.smoke
def test_one_dropout_with_everything_recomputed() -> None:
    plain, budgeted = twins(OneDropout(), INPUTS)
    assert recomputed_nodes(lambda: run(budgeted, INPUTS)) > 0
    run(plain, INPUTS)
    assert_same(step(plain, INPUTS), step(budgeted, INPUTS))


@pytest.mark.smoke
@pytest.mark.parametrize("budget", BUDGETS)
def test_draw_between_forward_and_backward(budget: str) -> None:
    """The draw is the plain run's, and disturbs neither the replay nor the stream after it."""
    plain, budgeted = twins(net(), (features(),), budget)
    draws = []
    for module in (plain, budgeted):
        outcomes = [step(module, (features(),), seed=1, between=lambda: draws.append(torch.rand(5)))]
        outcomes.append(step(module, (features(),), seed=2, between=lambda: torch.manual_seed(99)))
        outcomes.append(step(module, (features(),), seed=3, between=lambda: draws.append(torch.randn(3))))
        if module is plain:
            expected = outcomes
    for one, other in zip(expected, outcomes, strict=True):
        assert_same(one, other)
    assert torch.equal(draws[0], draws[2])
    assert torch.equal(draws[1], draws[3])


def test_stream_is_untouched_by_the_backward() -> None:
    _, budgeted = twins(TwoDropouts(), INPUTS)
    output = budgeted(*INPUTS)
    before = torch.get_rng_state()
    output.sum().backward()
    assert torch.equal(torch.get_rng_state(), before)


def test_stream_is_put_back_after_an_error_in_the_backward() -> None:
    _, budgeted = twins(TwoDropouts(), INPUTS)
    output = budgeted(*INPUTS)
    before = torch.get_rng_state()

    def interrupt(gradient: Tensor) -> None:
        raise ArithmeticError

    budgeted.first.weight.register_hook(interrupt)
    with pytest.raises(ArithmeticError):
        output.sum().backward()
    assert torch.equal(torch.get_rng_state(), before)


def test_optimize_leaves_the_stream_alone() -> None:
    module = TwoDropouts()
    before = torch.get_rng_state()
    twins(module, INPUTS)
    assert torch.equal(torch.get_rng_state(), before)


def test_steps_differ_from_each_other() -> None:
    """A replay must not freeze the masks: two steps without a new seed differ, in both alike."""
    plain, budgeted = twins(TwoDropouts(), INPUTS)
    outputs = []
    for module in (plain, budgeted):
        torch.manual_seed(1)
        outputs.append([module(*INPUTS).detach().clone() for _ in range(3)])
    assert not torch.equal(outputs[0][0], outputs[0][1])
    assert all(map(torch.equal, outputs[0], outputs[1]))


def test_unseeded_training_is_the_plain_run() -> None:
    """One seed at the beginning, as in most scripts."""
    plain, budgeted = twins(net(), (features(),))
    losses = []
    for module in (plain, budgeted):
        optimizer = torch.optim.SGD(module.parameters(), lr=0.05)
        torch.manual_seed(11)
        of_module = []
        for _ in range(6):
            loss = module(torch.randn(128, 24)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            of_module.append(float(loss.detach()))
        losses.append(of_module)
    assert losses[0] == losses[1]


def test_many_dropouts() -> None:
    class Many(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList([nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Dropout(0.1)) for _ in range(12)])

        def forward(self, x: Tensor) -> Tensor:
            for layer in self.layers:
                x = torch.relu(layer(x))
            return x

    for budget in (TIGHTEST, "40%", "80%"):
        check_steps(Many(), INPUTS, budget, steps=2)


class OfConstants(AroundMiddle):
    """The probabilities are known when the plan is made; the numbers are not."""

    def middle(self, x: Tensor) -> Tensor:
        chosen = torch.multinomial(torch.tensor([0.5, 0.25, 0.25]), 128, replacement=True)
        return x * chosen.unsqueeze(1) * torch.bernoulli(torch.tensor(0.5))


def test_draws_from_constants_are_draws_of_each_step() -> None:
    scripted = torch.jit.script(OfConstants())
    before = torch.get_rng_state()
    recals.optimize(scripted, INPUTS, "100%")
    assert torch.equal(torch.get_rng_state(), before)
    check_steps(OfConstants(), INPUTS, steps=4)


# ----------------------------------------------------------------------------------------------------------------------
# Generators of one's own


class OwnGenerator(AroundMiddle):
    def __init__(self) -> None:
        super().__init__()
        self.generator = torch.Generator()

    def middle(self, x: Tensor) -> Tensor:
        return x * torch.rand(x.shape, generator=self.generator) + torch.rand_like(x)


def with_generators(plain: nn.Module, budgeted: nn.Module, seed: int) -> None:
    plain.generator = torch.Generator().manual_seed(seed)
    budgeted.generator = torch.Generator().manual_seed(seed)


def test_generator_of_the_module() -> None:
    """It is drawn from anew, its stream goes on as in the plain run, and another one may take its place."""
    plain, budgeted = twins(OwnGenerator(), INPUTS)
    for seed in range(3):
        if seed != 1:
            with_generators(plain, budgeted, seed)
        recals.reset_counters()
        assert_same(step(plain, INPUTS), step(budgeted, INPUTS))
        assert recals.counters()["rng_restores"] >= 2, "both generators are needed again"
        assert torch.equal(plain.generator.get_state(), budgeted.generator.get_state())


def test_draws_from_a_generator_between_forward_and_backward() -> None:
    plain, budgeted = twins(OwnGenerator(), INPUTS)
    with_generators(plain, budgeted, 3)
    draws = []
    for module in (plain, budgeted):
        between = lambda module=module: draws.append(torch.rand(5, generator=module.generator))  # noqa: E731
        step(module, INPUTS, between=between)
    assert torch.equal(*draws)
    assert torch.equal(plain.generator.get_state(), budgeted.generator.get_state())


def test_measuring_leaves_a_generator_alone() -> None:
    module = torch.jit.script(OwnGenerator())
    before = module.generator.get_state()
    recals.optimize(module, INPUTS, "100%", cost_model="profile")
    assert torch.equal(module.generator.get_state(), before)


class SeedsInEveryStep(OwnGenerator):
    def middle(self, x: Tensor) -> Tensor:
        self.generator.manual_seed(3)
        return x * torch.rand(x.shape, generator=self.generator)


class SeedsEverything(AroundMiddle):
    def middle(self, x: Tensor) -> Tensor:
        torch.manual_seed(3)
        return F.dropout(x, 0.2)


class MakesOne(AroundMiddle):
    def middle(self, x: Tensor) -> Tensor:
        return x * torch.rand(x.shape, generator=torch.Generator(device="cpu"))


@pytest.mark.parametrize("kind", [SeedsInEveryStep, SeedsEverything, MakesOne], ids=lambda kind: kind.__name__)
def test_generator_made_or_seeded_in_the_step_is_refused(kind: type[nn.Module]) -> None:
    scripted = torch.jit.script(kind())
    before = torch.get_rng_state()
    with pytest.raises(recals.RecalsError, match="makes or seeds a random generator in every step"):
        recals.optimize(scripted, INPUTS, "50%")
    assert torch.equal(torch.get_rng_state(), before)


def test_generator_as_an_argument_is_refused() -> None:
    class Takes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(WIDTH, WIDTH)

        def forward(self, x: Tensor, generator: torch.Generator | None = None) -> Tensor:
            return torch.tanh(self.linear(x)) * torch.rand(x.shape, generator=generator)

    scripted = torch.jit.script(Takes())
    with pytest.raises(recals.RecalsError, match="'forward' is given a random generator"):
        recals.optimize(scripted, (*INPUTS, torch.Generator()), "90%")
    budgeted = recals.optimize(scripted, INPUTS, "100%")
    with pytest.raises(RuntimeError, match="the plan was made for inputs"):
        budgeted(*INPUTS, torch.Generator())


# ----------------------------------------------------------------------------------------------------------------------
# What states cost


def saves_and_restores(module: nn.Module) -> tuple[int, int]:
    recals.reset_counters()
    run(module, INPUTS)
    return recals.counters()["rng_saves"], recals.counters()["rng_restores"]


class DrawsNothing(AroundMiddle):
    """Torch tags these ops as random; called like this they are not."""

    def middle(self, x: Tensor) -> Tensor:
        heads = x.view(4, 4, 8, 96)
        x = F.scaled_dot_product_attention(heads, heads, heads).reshape(-1, 96)
        return F.rrelu(F.dropout(F.alpha_dropout(x, 0.5, training=False), 0.0), training=False)


def test_what_draws_nothing_stores_nothing() -> None:
    plain, budgeted = twins(DrawsNothing(), INPUTS)
    assert_same(step(plain, INPUTS), step(budgeted, INPUTS))
    assert recomputed_nodes(lambda: run(budgeted, INPUTS)) > 0
    assert saves_and_restores(budgeted) == (0, 0)


def test_states_are_stored_for_what_is_drawn_again_only() -> None:
    _, budgeted = twins(RandLike(), INPUTS)
    saves, restores = saves_and_restores(budgeted)
    assert saves > 0
    assert restores > 0
    _, loose = twins(RandLike(), INPUTS, "100%")
    assert saves_and_restores(loose) == (0, 0)


@pytest.mark.parametrize("kind", [TwoDropouts, RandLike, AttentionDropout, RandomRelu], ids=lambda kind: kind.__name__)
def test_without_preserving_what_draws_is_kept(kind: type[nn.Module]) -> None:
    """No gradient changes, and the plan does without states; a dropout is still made again from its mask."""
    module = kind()
    scripted = torch.jit.script(copy.deepcopy(module))
    with pytest.raises(recals.BudgetError) as error:
        recals.optimize(scripted, INPUTS, 1, preserve_rng_state=False)
    budgeted = recals.optimize(scripted, INPUTS, error.value.smallest, preserve_rng_state=False)
    prepare_gradients(budgeted)
    prepare_gradients(module)
    assert recomputed_nodes(lambda: run(budgeted, INPUTS)) > 0
    assert saves_and_restores(budgeted) == (0, 0)
    budgeted.zero_grad(set_to_none=False)
    assert_same(step(module, INPUTS), step(budgeted, INPUTS))


@pytest.mark.parametrize("devices", ["all", "none", 0, [0, 1], torch.tensor([1]), ()], ids=str)
def test_gpu_devices_are_not_the_cpu(devices: object) -> None:
    scripted = torch.jit.script(RandLike())
    with pytest.raises(recals.BudgetError) as expected:
        recals.optimize(scripted, INPUTS, 1)
    with pytest.raises(recals.BudgetError) as error:
        recals.optimize(scripted, INPUTS, 1, gpu_devices=devices)
    assert error.value.smallest == expected.value.smallest


@pytest.mark.parametrize(("devices", "keeps"), [("all", False), ("none", True), (0, True), ([0, 1], False)], ids=str)
def test_gpu_devices_of_a_plan_for_cuda(devices: object, keeps: bool) -> None:
    planned = recals.passes.analyse(torch.jit.script(RandLike()), INPUTS, target_device="cuda:1", gpu_devices=devices)
    with pytest.raises(recals.BudgetError) as error:
        recals.passes.plan(planned, 1)
    plan = recals.passes.plan(planned, error.value.smallest).plan
    fates = {line["name"]: line["fate"] for line in plan["storages"]}
    assert (fates["%rand_like"] == "keep") == keeps


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"gpu_devices": "cuda:0"}, ValueError, "not 'cuda:0'"),
        ({"gpu_devices": [0, -1]}, ValueError, "counts from 0"),
        ({"gpu_devices": 0.5}, TypeError, "not 0.5"),
        ({"gpu_devices": [True]}, TypeError, "not True"),
        ({"preserve_rng_state": "no"}, TypeError, "True or False, not 'no'"),
    ],
    ids=str,
)
def test_wrong_rng_options(arguments: dict[str, object], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        recals.optimize(torch.jit.script(OneDropout()), INPUTS, "50%", **arguments)


# ----------------------------------------------------------------------------------------------------------------------
# Threads


def test_models_in_threads_do_not_disturb_each_other() -> None:
    """They share the CPU's generator, so which numbers each draws is chance; forward and backward of each agree."""
    errors: list[BaseException] = []

    def train(module: nn.Module) -> None:
        try:
            x = INPUTS[0].clone().requires_grad_()
            for _ in range(40):
                noise = module(x)
                (gradient,) = torch.autograd.grad(noise.sum(), x)
                # y = x * n, so its gradient is the n of the forward: y / x.
                assert torch.equal(x * gradient, noise)
        except BaseException as error:
            errors.append(error)

    class Noise(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            for _ in range(4):
                x = x * torch.randint_like(x.detach(), 1, 3)
            return x

    x = INPUTS[0].clone().requires_grad_()
    modules = [rewrite(torch.jit.script(Noise()), (x,)) for _ in range(4)]
    recals.reset_counters()
    threads = [threading.Thread(target=train, args=(module,)) for module in modules]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert recals.counters()["rng_restores"] > 0


def test_a_replay_that_another_draw_disturbs_is_an_error() -> None:
    """Another draw in the middle of one, here made by the op itself, is told by where the generator ends."""
    calls = []

    def noise(like: Tensor) -> Tensor:
        calls.append(None)
        if len(calls) == 3:
            torch.rand(1)
        return torch.rand(like.shape)

    library = torch.library.Library("recals_test_random", "DEF")
    library.define("noise(Tensor like) -> Tensor", tags=[torch.Tag.nondeterministic_seeded])
    library.impl("noise", noise, "CPU")
    library.impl("noise", torch.empty_like, "Meta")

    class Custom(AroundMiddle):
        def middle(self, x: Tensor) -> Tensor:
            return x * torch.ops.recals_test_random.noise(x.detach())

    def again(op: str, module: str, name: str, size: int) -> str | None:
        return "must_recompute" if op == "recals_test_random::noise" else None

    budgeted = recals.optimize(torch.jit.script(Custom()), INPUTS, "1GiB", pins=again, scratch="rules")
    with pytest.raises(RuntimeError, match=r"noise at .*drew other random numbers.*another thread used the generator"):
        run(budgeted, INPUTS)
    budgeted.zero_grad()
    run(budgeted, INPUTS)
    assert len(calls) == 3 + 4
