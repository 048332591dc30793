"""Eager modules within a budget: one line, the model itself, every bit and byte as promised."""

import copy
import gc
import io
import pickle
import subprocess
import sys
import warnings
import weakref
from pathlib import Path
from typing import Any

import models
import pytest
import recals
import torch
import torch.nn.functional as F
import training
from conftest import ROOT
from eager import Twins, assert_same, run, twins
from support import features, net
from torch import Tensor, nn
from training import cpu_of

pytestmark = pytest.mark.usefixtures("forget_compiled")


class WithLoss(nn.Module):
    """`net`, and a loss."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = net()

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x).square().mean()


# ----------------------------------------------------------------------------------------------------------------------
# The promise


@pytest.mark.smoke
@pytest.mark.parametrize("budget", ["75%", "50%", "min"])
@pytest.mark.parametrize("name", ["gpt", "mlp"])
def test_a_model_trains_within_its_budget_to_the_bit(name: str, budget: str) -> None:
    workload = models.build(name, "small")
    inputs, targets = workload.make_batch(0)
    pair = twins(workload.module, budget=budget, loss=lambda out: workload.loss(out, targets))
    plain, ours = pair.steps(*inputs, loss=lambda out: workload.loss(out, targets))
    assert pair.warnings == []
    assert ours.peak <= pair.budget < plain.peak
    (plan,) = pair.plans
    assert ours.peak == cpu_of(plan)["peak"], "predicted to the byte"
    if budget != "min":
        assert pair.budget <= plain.peak * int(budget[:-1]) / 100


@pytest.mark.slow
@pytest.mark.all_threads
@pytest.mark.parametrize("budget", ["75%", "50%", "min"])
@pytest.mark.parametrize("autocast", [None, torch.bfloat16], ids=["f32", "bf16"])
@pytest.mark.parametrize("name", models.MAIN)
def test_models_train_within_their_budgets(name: str, autocast: torch.dtype | None, budget: str) -> None:
    workload = models.build(name, "small")
    inputs, targets = workload.make_batch(0)

    def loss(output: Any) -> Tensor:
        return workload.loss(output, targets).float()

    pair = twins(workload.module, budget=budget, loss=loss)
    try:
        pair.step(*inputs, loss=loss, autocast=autocast)
    except recals.BudgetError as error:
        pair = twins(workload.module, budget=error.smallest, loss=loss)
    plain, ours = pair.steps(*inputs, loss=loss, autocast=autocast)
    assert pair.warnings == []
    assert ours.peak <= pair.budget
    assert pair.budget < plain.peak


def test_with_example_inputs_the_first_step_is_within_the_budget_too() -> None:
    pair = twins(WithLoss(), features())
    assert len(pair.plans) == 1, "planned before any call"
    _, ours = pair.step(features())
    assert ours.peak <= pair.budget
    assert len(pair.plans) == 1


def test_example_inputs_run_nothing() -> None:
    model = WithLoss()
    state = training.cloned(training.named_state(model))
    random = torch.get_rng_state()
    recals.optimize(model, features(), budget="50%")
    assert training.differing(state, dict(training.named_state(model))) == []
    assert torch.equal(torch.get_rng_state(), random)


def test_example_kwargs_plan_as_keywords() -> None:
    class Named(WithLoss):
        def forward(self, x: Tensor, *, scale: float) -> Tensor:
            return super().forward(x) * scale

    pair = twins(Named())
    recals.optimize(pair.ours, budget="50%", example_kwargs={"x": features(), "scale": 2.0})
    assert len(pair.plans) == 1
    pair.step(x=features(), scale=2.0)
    assert len(pair.plans) == 1


def test_gradients_accumulate_as_in_the_plain_model() -> None:
    pair = twins(WithLoss())
    for number in range(3):
        pair.step(features(seed=number), zero=number == 0, seed=number)


def test_an_optimizer_trains_the_same_parameters() -> None:
    pair = twins(WithLoss())
    optimizers = [torch.optim.AdamW(model.parameters(), lr=0.01) for model in (pair.plain, pair.ours)]
    for number in range(3):
        pair.step(features(seed=number), seed=number)
        for optimizer in optimizers:
            optimizer.step()
    assert training.differing_state(pair.plain, pair.ours) == []


def test_gradients_of_inputs_are_those_of_the_plain_model() -> None:
    pair = twins(WithLoss())
    gradients = []
    for model in (pair.plain, pair.ours):
        x = features().requires_grad_()
        run(model, x)
        gradients.append(x.grad)
    assert training.same_bits(*gradients)


def test_frozen_and_tied_weights() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.token = nn.Embedding(50, 32)
            self.middle = nn.Linear(32, 32)
            self.frozen = nn.Linear(32, 32).requires_grad_(False)
            self.head = nn.Linear(32, 50, bias=False)
            self.head.weight = self.token.weight

        def forward(self, tokens: Tensor) -> Tensor:
            x = F.gelu(self.frozen(F.gelu(self.middle(self.token(tokens)))))
            return F.cross_entropy(self.head(x).flatten(0, 1), tokens.flatten())

    tokens = torch.randint(50, (8, 40))
    pair = twins(Tied(), budget="75%")
    _, ours = pair.steps(tokens)
    assert pair.ours.head.weight is pair.ours.token.weight
    assert ours.gradients["frozen.weight"] is None
    assert ours.peak <= pair.budget
    pair.ours.frozen.requires_grad_(True)
    pair.plain.frozen.requires_grad_(True)
    _, ours = pair.steps(tokens)
    assert ours.gradients["frozen.weight"] is not None
    assert len(pair.plans) == 2


# ----------------------------------------------------------------------------------------------------------------------
# It stays the model


def test_it_is_the_model_itself() -> None:
    model = WithLoss()
    kind, keys = type(model), list(model.state_dict())
    parameters = [id(parameter) for parameter in model.parameters()]
    ours = recals.optimize(model, budget="50%")
    assert ours is model
    assert type(ours) is kind
    assert list(ours.state_dict()) == keys
    assert [id(parameter) for parameter in ours.parameters()] == parameters


def test_without_gradients_it_runs_as_it_is() -> None:
    pair = twins(WithLoss())
    x = features()
    recals.reset_counters()
    with torch.no_grad():
        assert training.same_bits(run_once(pair.plain, x), run_once(pair.ours, x))
    pair.plain.eval(), pair.ours.eval()
    with torch.no_grad():
        assert training.same_bits(run_once(pair.plain, x), run_once(pair.ours, x))
    assert pair.plans == []
    assert recals.counters()["calls"] == 0


def run_once(model: nn.Module, x: Tensor) -> Tensor:
    torch.manual_seed(3)
    return model(x)


def test_train_and_eval_have_plans_of_their_own() -> None:
    pair = twins(WithLoss(), budget="75%")
    pair.steps(features())
    pair.plain.eval(), pair.ours.eval()
    plain, ours = pair.steps(features())
    assert len(pair.plans) == 2, "a step in eval mode has a gradient, too, so it has a budget"
    assert ours.peak < plain.peak


def test_hooks_are_called_also_those_that_come_later() -> None:
    pair = twins(WithLoss())
    pair.steps(features())
    for model in (pair.plain, pair.ours):
        model.inner.second.register_forward_hook(lambda module, inputs, output: output * 2)
    pair.steps(features())


def test_a_deep_copy_is_plain_and_can_be_optimised() -> None:
    pair = twins(WithLoss())
    pair.steps(features())
    other = copy.deepcopy(pair.ours)
    with pytest.raises(recals.RecalsError, match="not made by"):
        recals.plan_of(other)
    recals.optimize(other, budget="75%")
    assert_same(run(pair.plain, features(), seed=9), run(other, features(), seed=9))
    (plan,) = recals.plan_of(other)
    assert cpu_of(plan)["budget"] > pair.budget


def test_pickle_and_state_dict_are_the_plain_models() -> None:
    pair = twins(WithLoss())
    pair.steps(features())
    buffer = io.BytesIO()
    torch.save(pair.ours.state_dict(), buffer)
    buffer.seek(0)
    pair.plain.load_state_dict(torch.load(buffer))
    loaded = pickle.loads(pickle.dumps(pair.ours))
    assert_same(run(pair.plain, features()), run(loaded, features()))


def test_restore_and_the_switch_leave_the_plain_model(monkeypatch: pytest.MonkeyPatch) -> None:
    pair = twins(WithLoss())
    pair.steps(features())
    recals.reset_counters()
    monkeypatch.setenv("RECALS_DISABLE", "1")
    pair.step(features())
    assert recals.counters()["calls"] == 0
    monkeypatch.delenv("RECALS_DISABLE")
    pair.step(features())
    assert recals.counters()["calls"] == 1
    assert recals.restore(pair.ours) is pair.ours
    pair.step(features())
    assert recals.counters()["calls"] == 1
    with pytest.raises(recals.RecalsError, match="not made by"):
        recals.plan_of(pair.ours)


def test_the_switch_before_optimize(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RECALS_DISABLE", "1")
    model = recals.optimize(WithLoss(), features(), budget=1)
    assert model._compiled_call_impl is None
    assert recals.restore(model) is model


def test_several_models_in_one_step() -> None:
    """As a GAN has: two models of one class, and one backward through both."""
    pair = twins(nn.ModuleList([WithLoss(), WithLoss()]))
    for model in pair.ours:
        recals.optimize(model, budget="50%")
    for seed in range(2):
        outcomes = []
        for both in (pair.plain, pair.ours):
            outcomes.append(run_both(both, seed))
        assert_same(*outcomes)
    assert all(len(recals.plan_of(model)) == 1 for model in pair.ours)


def run_both(both: nn.Module, seed: int) -> Any:
    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.both = both

        def forward(self, x: Tensor) -> Tensor:
            return both[0](x) + 2 * both[1](x)

    return run(Both(), features(), seed=seed)


def test_more_models_of_one_class_than_torch_would_compile() -> None:
    """Torch compiles a function eight times and then runs it plain without a word."""
    for number in range(10):
        width = 8 * (number + 1)
        model = nn.Sequential(nn.Linear(16, width), nn.GELU(), nn.Linear(width, 16), nn.Dropout(0.1))
        pair = twins(model, budget="90%", loss=lambda out: out.sum())
        pair.step(torch.randn(32, 16), loss=lambda out: out.sum())
        assert len(pair.plans) == 1


def test_a_model_that_goes_leaves_nothing_behind() -> None:
    model = recals.optimize(WithLoss(), budget="50%")
    run(model, features())
    parameter = weakref.ref(model.inner.first.weight)
    del model
    torch._dynamo.reset()
    gc.collect()
    assert parameter() is None


# ----------------------------------------------------------------------------------------------------------------------
# What else is done with models


class Stack(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(32, 128), nn.Linear(128, 128), nn.Linear(128, 32)])

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers[:-1]:
            x = F.dropout(F.gelu(layer(x)), 0.1)
        return self.layers[-1](x)


def rows(count: int = 256) -> Tensor:
    return torch.randn(count, 32, generator=torch.Generator().manual_seed(0))


def penalised(model: nn.Module) -> Tensor:
    x = rows().requires_grad_()
    (gradient,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
    return (gradient.norm(dim=1) - 1).square().mean()


def called_with_other_weights(model: nn.Module) -> Tensor:
    weights = {name: parameter * 1.5 for name, parameter in model.named_parameters()}
    return torch.func.functional_call(model, weights, (rows(),)).square().mean()


def called_twice(model: nn.Module) -> Tensor:
    return F.cosine_similarity(model(rows()), model(rows(100)).mean(0, keepdim=True)).mean()


def saved_on_the_cpu(model: nn.Module) -> Tensor:
    with torch.autograd.graph.save_on_cpu():
        return model(rows()).square().mean()


def checkpointed(model: nn.Module) -> Tensor:
    return torch.utils.checkpoint.checkpoint(model, rows(), use_reentrant=False).square().mean()


@pytest.mark.parametrize(
    ("step", "said"),
    [
        (penalised, "create_graph"),
        (called_with_other_weights, ""),
        (called_twice, ""),
        (saved_on_the_cpu, "hooks on saved tensors"),
        (checkpointed, "hooks on saved tensors"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_steps_of_other_kinds_have_the_plain_bits(step: Any, said: str) -> None:
    pair = twins(Stack(), budget="60%")
    found = []
    for seed in range(3):
        outcomes = []
        for model in (pair.plain, pair.ours):
            training.zero_gradients(model)
            torch.manual_seed(seed)
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                loss = step(model)
                loss.backward()
            found += [str(w.message) for w in caught if issubclass(w.category, recals.BudgetWarning)]
            outcomes.append((loss.detach(), training.cloned(training.named_gradients(model)), torch.get_rng_state()))
        assert training.same_bits(outcomes[0][0], outcomes[1][0])
        assert training.differing(outcomes[0][1], outcomes[1][1]) == []
        assert torch.equal(outcomes[0][2], outcomes[1][2])
    assert len(found) == (1 if said else 0)
    assert all(said in text for text in found)


@pytest.mark.skipif(not torch.distributed.is_available(), reason="needs torch.distributed")
def test_ddp_around_it() -> None:
    class Summed(Stack):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x).square().mean()

    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        pair = twins(Summed(), budget="60%")
        ddp = Twins(nn.parallel.DistributedDataParallel(pair.plain), nn.parallel.DistributedDataParallel(pair.ours))
        plain, ours = ddp.steps(rows(), count=3)
        assert ours.peak < plain.peak
        assert ours.peak <= pair.budget
    finally:
        torch.distributed.destroy_process_group()


def test_parametrised_weights_and_adapters() -> None:
    class Adapted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.base = Stack().requires_grad_(False)
            self.down, self.up = nn.Linear(32, 4, bias=False), nn.Linear(4, 32, bias=False)
            nn.utils.parametrizations.weight_norm(self.up)

        def forward(self, x: Tensor) -> Tensor:
            return (self.base(x).detach() + F.gelu(self.up(F.gelu(self.down(x))))).square().mean()

    pair = twins(Adapted(), budget="min")
    pair.steps(rows(), count=3)
    assert pair.warnings == []
    assert len(pair.plans) == 1


def test_a_part_of_a_model_may_have_a_budget_alone() -> None:
    class Whole(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.part, self.head = Stack(), nn.Linear(32, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.part(x)).square().mean()

    pair = twins(Whole(), budget="60%")
    recals.restore(pair.ours)
    recals.optimize(pair.ours.part, budget="60%")
    pair.steps(rows(), count=2)
    assert len(recals.plan_of(pair.ours.part)) == 1
    recals.optimize(pair.ours, budget="60%")
    pair.steps(rows(), count=2)
    assert len(pair.plans) == 1, "the whole is captured through the part"


# ----------------------------------------------------------------------------------------------------------------------
# Outputs


class Outputs(nn.Module):
    """Returns a loss and what it is made of, as models of transformers do."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = net()
        self.more = nn.Linear(8, 512)

    def forward(self, x: Tensor) -> dict[str, Any]:
        logits = self.more(self.inner(x))
        aside = F.gelu(logits.detach() @ self.more.weight)
        return {"loss": logits.square().mean(), "logits": logits, "aside": aside, "nothing": None, "rows": x.shape[0]}


def test_the_only_number_is_the_loss() -> None:
    pair = twins(Outputs(), features(), budget="90%")
    plain, ours = pair.steps(features(), loss=lambda out: out["loss"])
    assert pair.warnings == []
    (plan,) = pair.plans
    assert cpu_of(plan)["plain_peak"] == plain.peak
    assert ours.peak <= pair.budget


@pytest.mark.parametrize("what", ["logits", "aside"])
def test_another_output_that_gets_a_gradient_is_said_and_counted_from_then_on(what: str) -> None:
    def loss(out: dict[str, Any]) -> Tensor:
        return out["loss"] + out[what].cos().sum()

    pair = twins(Outputs(), features(), budget="90%")
    pair.step(features(), loss=loss)
    (text,) = pair.warnings
    assert "has got a gradient" in text
    assert "loss=lambda out" in text
    _, ours = pair.steps(features(), loss=loss)
    assert len(pair.warnings) == 1, "said once"
    assert ours.peak <= pair.budget


def test_a_loss_function_that_is_not_the_loss_is_found_out() -> None:
    pair = twins(Outputs(), features(), budget="90%", loss=lambda out: out["loss"])
    pair.steps(features(), count=3, loss=lambda out: out["loss"] + out["aside"].sum())
    assert len(pair.warnings) == 1
    _, ours = pair.steps(features(), loss=lambda out: out["loss"] + out["aside"].sum())
    assert ours.peak <= pair.budget


def test_an_output_alone_may_be_the_loss() -> None:
    pair = twins(Outputs(), features(), budget="90%")
    pair.step(features(), loss=lambda out: out["logits"].cos().sum())
    assert len(pair.warnings) == 1


def test_a_loss_function_is_counted_and_not_run() -> None:
    def loss(out: dict[str, Any]) -> Tensor:
        return F.dropout(out["logits"], 0.5).cos().mean()

    pair = twins(Outputs(), budget="90%", loss=loss)
    plain, ours = pair.steps(features(), loss=lambda out: out["logits"].cos().mean())
    assert pair.warnings == []
    assert ours.peak <= pair.budget
    assert torch.equal(plain.random, ours.random), "its dropout drew nothing"
    assert isinstance(pair.ours(features()), dict)


def test_outputs_come_as_the_model_makes_them() -> None:
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = net()

        def forward(self, x: Tensor) -> Any:
            y = self.inner(x)
            return [y[0], (x, None, {"n": 3, "sum": y.sum(), "again": y}), "text"]

    pair = twins(Odd())
    x = features()
    torch.manual_seed(1)
    plain = pair.plain(x)
    torch.manual_seed(1)
    ours = pair.ours(x)
    assert ours[1][0] is x
    assert ours[1][1] is None
    assert ours[1][2]["n"] == 3
    assert ours[2] == "text"
    assert training.same_bits(plain[0], ours[0])
    assert training.same_bits(plain[1][2]["again"], ours[1][2]["again"])
    pair.steps(x, loss=lambda out: out[1][2]["sum"])


# ----------------------------------------------------------------------------------------------------------------------
# Errors, reports, torch.compile


def test_an_impossible_budget_is_an_error_that_says_the_smallest() -> None:
    model = WithLoss()
    with pytest.raises(recals.BudgetError, match="smallest") as raised:
        recals.optimize(model, features(), budget=1000)
    assert model._compiled_call_impl is None, "the model is as it was"
    later = recals.optimize(WithLoss(), budget=1000)
    with pytest.raises(recals.BudgetError) as in_call:
        later(features())
    assert raised.value.smallest == in_call.value.smallest
    recals.optimize(model, features(), budget=raised.value.smallest)


@pytest.mark.parametrize(
    ("options", "kind", "words"),
    [
        ({}, TypeError, "needs a budget"),
        ({"budget": 0.5}, TypeError, "50%"),
        ({"budget": "much"}, ValueError, "much"),
        ({"budget": "50%", "on_new_shape": "ask"}, ValueError, "on_new_shape"),
        ({"budget": "50%", "max_plans": 0}, ValueError, "max_plans"),
        ({"budget": "50%", "loss": 3}, TypeError, "loss is a function"),
        ({"budget": "50%", "method": "step"}, TypeError, "scripted modules"),
        ({"budget": "50%", "on_mismatch": "shout"}, ValueError, "shout"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_wrong_arguments_are_refused_at_once(options: dict[str, Any], kind: type[Exception], words: str) -> None:
    with pytest.raises(kind, match=words):
        recals.optimize(WithLoss(), **options)


def test_the_budget_alone_by_position_is_refused_with_the_right_call() -> None:
    with pytest.raises(TypeError, match=r"recals.optimize\(model, budget='8GiB'\)"):
        recals.optimize(WithLoss(), "8GiB")


def test_plans_name_the_modules_and_lines_of_the_model() -> None:
    pair = twins(WithLoss(), features())
    (plan,) = pair.plans
    found = {storage["module"] for storage in plan["storages"]}
    assert {"inner.second", "inner.dropout", "inner.layer_norm"} <= found
    assert any(storage["where"].startswith("support.py:") for storage in plan["storages"])
    assert plan["graph"] == 0
    assert plan["signature"].startswith("(f32[")


def test_pins_go_by_module_path() -> None:
    pair = twins(WithLoss(), features(), pins={"inner.second": "must_save"})
    (plan,) = pair.plans
    fates = {storage["fate"] for storage in plan["storages"] if storage["module"] == "inner.second"}
    assert fates == {"keep"}
    free = twins(WithLoss(), features())
    assert plan["storages"] != free.plans[0]["storages"]


@pytest.mark.smoke
def test_reports_and_curves_take_eager_modules() -> None:
    model, x = WithLoss(), features()
    plain = run(copy.deepcopy(model), x)
    plain = run(copy.deepcopy(model), x)
    report = recals.estimate(model, x)
    assert report.peak["cpu"] == plain.peak
    assert "inner" in str(report)
    curve = recals.pareto(model, example_kwargs={"x": x})
    assert curve.plain_peak == plain.peak
    found = recals.verify(model, x)
    assert found.holds


def test_torch_compile_knows_the_backend_by_name(tmp_path: Path) -> None:
    """By the entry point of the installed package, without an import."""
    written = (ROOT / "pyproject.toml").read_text().split("[project.entry-points.torch_dynamo_backends]\n")[1]
    metadata = tmp_path / "recals-0.0.0.dist-info"
    metadata.mkdir()
    lines = written.split("\n\n")[0].replace('"', "")
    (metadata / "entry_points.txt").write_text(f"[torch_dynamo_backends]\n{lines}\n")
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: recals\nVersion: 0.0.0\n")
    program = """
import sys, torch
assert "recals" not in sys.modules
torch.set_num_threads(1)
model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.GELU(), torch.nn.Dropout(0.1), torch.nn.Linear(64, 8))
compiled = torch.compile(model, backend="recals", options={"budget": "min"})
x = torch.randn(128, 32)
def step(call):
    model.zero_grad()
    torch.manual_seed(1)
    call(x).square().mean().backward()
    return [parameter.grad for parameter in model.parameters()]
plain, ours = step(model), step(compiled)
assert all(map(torch.equal, plain, ours))
import recals
print(recals.counters()["dropped_slots"] + recals.counters()["packs"])
"""
    path = [str(tmp_path), str(Path(recals.__file__).parents[1])]
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", f"import sys\nsys.path[:0] = {path!r}\n{program}"],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=120,
    )
    assert int(done.stdout.split()[-1]) > 0


def test_the_backend_refuses_what_it_does_not_know() -> None:
    from recals.eager.backend import backend

    for options, words in (({}, "needs a budget"), ({"budget": "50%", "speed": 3}, "no option 'speed'")):
        with pytest.raises(Exception, match=words):
            torch.compile(WithLoss(), backend=backend, options=options)(features())


def test_the_backend_keeps_within_a_graphs_budget() -> None:
    from recals.eager.backend import backend

    model = WithLoss()
    plain = copy.deepcopy(model)
    training.prepare_gradients(model), training.prepare_gradients(plain)
    compiled = torch.compile(model, backend=backend, options={"budget": "50%"})
    pair = Twins(plain, model)
    for seed in range(2):
        expected = run(pair.plain, features(), seed=seed)
        training.zero_gradients(model)
        torch.manual_seed(seed)
        with recals.track_memory() as memory:
            compiled(features()).backward()
        assert training.differing(expected.gradients, dict(training.named_gradients(model))) == []
    assert memory.peak["cpu"] <= expected.peak / 2


def test_reports_of_a_model_with_a_plan_are_its_plans() -> None:
    pair = twins(WithLoss(), features())
    _, ours = pair.steps(features())
    report = recals.estimate(pair.ours, features())
    assert report.peak["cpu"] == ours.peak
    found = recals.verify(pair.ours, features())
    assert found.holds
    assert found.measured["cpu"] == ours.peak
    assert recals.pareto(pair.ours, features()).plain_peak == recals.estimate(pair.plain, features()).peak["cpu"]


def test_auto_leaves_room_for_gradients_and_adam(monkeypatch: pytest.MonkeyPatch) -> None:
    from recals.eager import graphs, steps

    weight, bias = nn.Parameter(torch.zeros(100)), nn.Parameter(torch.zeros(10))
    frozen = nn.Parameter(torch.zeros(7), requires_grad=False)
    bias.grad = torch.zeros(10)
    assert steps.owed_to((weight, bias, frozen, torch.zeros(5), 3)) == {"cpu": 4 * (3 * 100 + 2 * 10)}

    pair = twins(WithLoss(), features(), budget="auto")
    assert pair.budget > 2**20
    monkeypatch.setattr(graphs, "owed_to", lambda arguments: {"cpu": 2**60})
    with pytest.raises(recals.BudgetError, match="1 byte"):
        recals.optimize(WithLoss(), features(), budget="auto")


def test_the_first_example_of_the_readme_runs() -> None:
    program = (ROOT / "README.md").read_text().split("```python\n")[1].split("```")[0]
    names: dict[str, Any] = {}
    exec(program, names)
    assert type(names["model"]).__name__ == "ResNet"
    (plan,) = recals.plan_of(names["model"])
    assert cpu_of(plan)["budget"] == 512 * 2**20


def test_planning_for_a_gpu_goes_on_working() -> None:
    """torch.compile puts a CUDA guard into the process that counts a device where there is none."""
    pair = twins(WithLoss(), budget="75%")
    pair.steps(features())
    scripted = torch.jit.script(net())
    assert recals.estimate(scripted, features(), target_device="cuda:0").peak["cuda:0"] > 0
