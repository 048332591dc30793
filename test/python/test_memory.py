"""Bytes: the measure is exact, estimates cover what is measured, budgets hold wherever they are set, nothing leaks."""

import copy
import gc
import warnings
from collections.abc import Callable
from typing import Any

import models
import pytest
import recals
import torch
import torch.nn.functional as F
import training
from support import TIGHTEST, features, net, recomputed_nodes, rewrite, run, smallest_budget, twins
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

MARGIN = 1.10
EAGER_NUMBERS = 1024
"""Bytes: a number that a tensor is multiplied with becomes a saved tensor of 8 bytes in eager Python only."""
MIB = 2**20


def profiled_peak(step: Callable[[], Any]) -> int:
    """The peak as torch's own profiler tells it: the running sum of its memory events."""
    gc.collect()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        step()
    events = [event for event in profiler.profiler.kineto_results.events() if event.name() == "[memory]"]
    live = peak = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        live += event.nbytes()
        peak = max(peak, live)
    return peak


# ----------------------------------------------------------------------------------------------------------------------
# track_memory


@pytest.mark.smoke
def test_known_allocations() -> None:
    with recals.track_memory() as memory:
        assert memory.peak.get("cpu", 0) == memory.live.get("cpu", 0) == 0
        a = torch.empty(MIB // 4)
        assert memory.live == memory.peak == {"cpu": MIB}
        b = torch.empty(3 * MIB, dtype=torch.uint8)
        assert memory.live == memory.peak == {"cpu": 4 * MIB}
        del a
        assert memory.live == {"cpu": 3 * MIB}
        assert memory.peak == {"cpu": 4 * MIB}
        c = torch.empty(MIB // 8, dtype=torch.double)
        assert memory.peak == {"cpu": 4 * MIB}
        view = b[:10].view(2, 5)
        assert memory.live == {"cpu": 4 * MIB}
        del b, c
        assert memory.live == {"cpu": 3 * MIB}, "the view keeps its storage"
        del view
        assert memory.live == {"cpu": 0}
    assert memory.live == {"cpu": 0}
    assert memory.peak == {"cpu": 4 * MIB}


def test_figures_stay_after_the_block() -> None:
    with recals.track_memory() as memory:
        tensor = torch.empty(MIB, dtype=torch.uint8)
    before = (dict(memory.peak), dict(memory.live))
    later = torch.empty(8 * MIB, dtype=torch.uint8)
    del tensor
    assert (memory.peak, memory.live) == before == ({"cpu": MIB}, {"cpu": MIB})
    del later


def test_release_of_what_was_there_before() -> None:
    tensor = torch.empty(MIB, dtype=torch.uint8)
    with recals.track_memory() as memory:
        del tensor
        assert memory.peak.get("cpu", 0) == 0
        other = torch.empty(3 * MIB, dtype=torch.uint8)
    del other
    assert memory.peak == {"cpu": 3 * MIB}, "what was there before does not count, nor does its end"


def test_curve_is_the_whole_story() -> None:
    with recals.track_memory(curve=True) as memory:
        a = torch.empty(MIB, dtype=torch.uint8)
        b = torch.empty(2 * MIB, dtype=torch.uint8)
        del a
        del b
    curve = memory.curve()
    held = [count for _, count in curve if count]
    assert held == [MIB, 3 * MIB, 2 * MIB]
    assert curve[-1][1] == 0
    times = [moment for moment, _ in curve]
    assert times == sorted(times)
    assert 0 <= times[0] <= times[-1] < 60


def test_curve_of_a_step_agrees_with_its_peak() -> None:
    plain, budgeted = twins(net(), (features(),))
    for module in (plain, budgeted):
        memory = training.measure(lambda module=module: run(module, (features(),)), curve=True)
        assert max(count for _, count in memory.curve) == memory.peak
        assert memory.left == 0


def test_error_inside_the_block_passes_through() -> None:
    memory = recals.track_memory()

    def fail() -> None:
        with memory:
            torch.empty(MIB, dtype=torch.uint8)
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert memory.peak == {"cpu": MIB}
    with recals.track_memory() as again:
        torch.empty(MIB, dtype=torch.uint8)
    assert again.peak == {"cpu": MIB}


class Twice(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2.0

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient * 2.0


def test_custom_functions_inside_the_block() -> None:
    """They ask the profiler, which is who listens to the allocators, for its settings."""
    x = torch.ones(MIB // 4, requires_grad=True)
    with recals.track_memory() as memory:
        Twice.apply(x).sum().backward()
    assert memory.live == {"cpu": MIB}


@pytest.mark.parametrize("name", models.MAIN)
def test_peak_agrees_with_the_profiler(name: str) -> None:
    trainee = training.plain(models.build(name, "small"))
    trainee.gradients(0)()
    assert training.measured_peak(trainee.gradients(1)) == profiled_peak(trainee.gradients(1))


def test_peak_of_a_budgeted_step_agrees_with_the_profiler() -> None:
    agreed = training.budgeted(models.build("gpt", "small"), "50%")
    agreed.trainee.gradients(0)()
    assert training.measured_peak(agreed.trainee.gradients(1)) == profiled_peak(agreed.trainee.gradients(1))


# ----------------------------------------------------------------------------------------------------------------------
# Estimates


@pytest.mark.smoke
@pytest.mark.parametrize("name", [*models.MAIN, "uneven"])
def test_estimate_covers_the_plain_step_closely(name: str) -> None:
    workload = models.build(name, "small")
    inputs, _ = workload.make_batch(0)
    report = recals.estimate(torch.jit.script(copy.deepcopy(workload.module)), inputs)
    trainee = training.plain(workload)
    trainee.gradients(0)()
    peak = training.measured_peak(trainee.gradients(1))
    assert peak - EAGER_NUMBERS <= report.peak["cpu"] <= MARGIN * peak

    with recals.track_memory() as memory:
        output = trainee.module(*inputs)
        held = memory.live["cpu"]
        del output
    assert held - EAGER_NUMBERS <= report.held["cpu"] <= MARGIN * held


def itself(loss: Tensor) -> Tensor:
    return loss


class WithLoss(nn.Module):
    """The loss inside the module: nothing has to be reserved for one that is not known."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x).square().mean()


class Maximum(nn.Module):
    """Its derivative fills what it has just made."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.maximum(x, -x)


class Rows(nn.Module):
    """Its derivative writes into zeros that it has just made."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.register_buffer("rows", torch.arange(0, count, 2))

    def forward(self, x: Tensor) -> Tensor:
        return x[self.rows]


LAYERS = [
    nn.ReLU(),
    nn.GELU(),
    nn.GELU(approximate="tanh"),
    nn.SiLU(),
    nn.Mish(),
    nn.Tanh(),
    nn.Sigmoid(),
    nn.LogSigmoid(),
    nn.Softplus(),
    nn.ELU(),
    nn.LeakyReLU(),
    nn.PReLU(),
    nn.Hardswish(),
    nn.Hardtanh(),
    nn.Softmax(-1),
    nn.LogSoftmax(-1),
    nn.LayerNorm(400),
    nn.BatchNorm1d(400),
    nn.GroupNorm(4, 400),
    nn.Dropout(0.1),
    Maximum(),
    Rows(500),
]


@pytest.mark.parametrize("layer", LAYERS, ids=lambda layer: type(layer).__name__)
def test_estimate_of_one_layer(layer: nn.Module) -> None:
    """Between two matmuls, where nothing else hides what the layer's kernels allocate."""
    module = WithLoss(nn.Sequential(nn.Linear(24, 400), layer, nn.Linear(400, 4)))
    inputs = (features(500),)
    report = recals.estimate(torch.jit.script(copy.deepcopy(module)), inputs)
    training.prepare_gradients(module)
    run(module, inputs, loss=itself)
    peak = training.measured_peak(lambda: run(module, inputs, loss=itself))
    assert peak <= report.peak["cpu"] <= MARGIN * peak


def test_estimate_allocates_nothing() -> None:
    workload = models.build("gpt", "small")
    scripted = torch.jit.script(copy.deepcopy(workload.module))
    inputs, _ = workload.make_batch(0)
    with recals.track_memory() as memory:
        report = recals.estimate(scripted, inputs)
    assert memory.peak.get("cpu", 0) < report.peak["cpu"] / 20


def test_estimate_names_the_largest_storage_and_the_modules() -> None:
    class Expanding(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.narrow = nn.Sequential(nn.Linear(24, 32), nn.Tanh())
            self.wide = nn.Sequential(nn.Linear(32, 1000), nn.Tanh())

        def forward(self, x: Tensor) -> Tensor:
            return self.wide(self.narrow(x)).sum(1)

    report = recals.estimate(torch.jit.script(Expanding()), (features(),))
    largest = report.storages[0]
    assert largest.bytes == 128 * 1000 * 4
    assert largest.name
    assert largest.where
    kept = report.devices["cpu"].by_module
    assert kept["wide.1"].held > kept["narrow.1"].held > 0
    assert kept["wide.1"].held == 128 * 1000 * 4
    text = str(report)
    assert "wide" in text
    assert "peak" in text


def test_estimate_of_a_restored_module_is_that_of_its_plain_form() -> None:
    plain = torch.jit.script(net())
    inputs = (features(),)
    restored = recals.restore(rewrite(plain, inputs))
    assert recals.estimate(restored, inputs).to_json() == recals.estimate(plain, inputs).to_json()


# ----------------------------------------------------------------------------------------------------------------------
# Budgets


@pytest.mark.parametrize("name", [*models.MAIN, "uneven"])
def test_budget_holds_from_loose_to_tight(name: str, record_property: Callable[[str, object], None]) -> None:
    """From the plain peak down to the smallest feasible budget: never above it, and never rising as it shrinks."""
    workload = models.build(name, "small")
    inputs, targets = workload.make_batch(0)
    trainee = training.plain(workload)
    trainee.gradients(0)()
    plain_peak = training.measured_peak(trainee.gradients(1))
    scripted = torch.jit.script(copy.deepcopy(workload.module))
    smallest = smallest_budget(scripted, inputs, loss=lambda output: workload.loss(output, targets))["cpu"]
    assert smallest < plain_peak
    budgets = [smallest + (plain_peak - smallest) * part // 6 for part in range(6, -1, -1)]
    peaks = []
    for budget in budgets:
        agreed = training.budgeted(workload, budget)
        assert agreed.feasible
        agreed.trainee.gradients(0)()
        peaks.append(training.measured_peak(agreed.trainee.gradients(1)))
        assert peaks[-1] <= agreed.predicted <= budget
    sweep = "  ".join(f"{peak / plain_peak:.2f} of {budget / plain_peak:.2f}" for peak, budget in zip(peaks, budgets))  # noqa: B905
    record_property("table", f"{name:9} sweep: {sweep}")
    assert peaks == sorted(peaks, reverse=True)


class BigWeight(nn.Module):
    """The temporary of the weight's gradient is larger than all activations."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(512, 1024)
        self.last = nn.Linear(1024, 16)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.sigmoid(torch.tanh(self.first(x))))


class Dense(nn.Module):
    """Every layer reads the results of all before it."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(512 + 64 * number, 64) for number in range(8)])

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.cat([x, torch.tanh(layer(F.gelu(x)))], 1)
        return x


class Scores(nn.Module):
    """Attention whose scores outweigh everything else."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(32, 96)

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(3):
            q, k, v = self.qkv(x).chunk(3, -1)
            x = x + F.dropout(torch.softmax(q @ k.transpose(-1, -2), -1), 0.1) @ v
        return x


class LongSkip(nn.Module):
    """What the first layer made is read by the last one."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(512, 512) for _ in range(6)])

    def forward(self, x: Tensor) -> Tensor:
        first = torch.tanh(self.layers[0](x))
        y = first
        for layer in self.layers:
            y = torch.sigmoid(torch.tanh(layer(y)))
        return torch.cat([first, y], 1)


class Pointwise(nn.Module):
    """No matmul at all."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(512))

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(5):
            x = torch.tanh(x * self.scale) + torch.sigmoid(x)
        return x


SHAPES = [
    pytest.param(BigWeight, (features(32, 512),), id="big-weight"),
    pytest.param(Dense, (features(256, 512),), id="dense"),
    pytest.param(Scores, (features(4 * 192, 32).view(4, 192, 32),), id="scores"),
    pytest.param(LongSkip, (features(512, 512),), id="long-skip"),
    pytest.param(Pointwise, (features(512, 512),), id="pointwise"),
]


@pytest.mark.parametrize("budget", [TIGHTEST, "70%", "100%"])
@pytest.mark.parametrize(("kind", "inputs"), SHAPES)
def test_prediction_covers_all_kinds_of_graphs(kind: type[nn.Module], inputs: tuple[Tensor], budget: str) -> None:
    _, budgeted = twins(WithLoss(kind()), inputs, budget)
    run(budgeted, inputs, loss=itself)
    measured = training.measured_peak(lambda: run(budgeted, inputs, loss=itself))
    line = training.cpu_plan(budgeted)
    assert measured <= line["peak"] <= line["budget"]
    assert line["peak"] <= MARGIN * measured


@pytest.mark.parametrize(
    "loss",
    [
        pytest.param(lambda output: F.cross_entropy(output, torch.zeros(len(output), dtype=torch.long)), id="entropy"),
        pytest.param(lambda output: F.mse_loss(output, torch.zeros(())), id="squares"),
        pytest.param(lambda output: F.l1_loss(output, torch.zeros(())), id="differences"),
        pytest.param(lambda output: output.square().mean(), id="written-out"),
        pytest.param(lambda output: output.sum(), id="sum"),
    ],
)
@pytest.mark.filterwarnings("ignore:Using a target size")
def test_budget_has_room_for_the_loss_outside(loss: Callable[[Tensor], Tensor]) -> None:
    """An output as large as the activations: the loss's share is large."""
    inputs = (features(512, 512),)
    _, budgeted = twins(LongSkip(), inputs)
    run(budgeted, inputs, loss=loss)
    assert training.measured_peak(lambda: run(budgeted, inputs, loss=loss)) <= training.cpu_plan(budgeted)["budget"]


@pytest.mark.parametrize("layer", [nn.Linear(64, 64), nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 8))], ids=repr)
def test_where_nothing_can_be_gained_nothing_is_lost(layer: nn.Module) -> None:
    inputs = (features(256, 64),)
    plain, budgeted = twins(layer, inputs, "100%")
    peaks = [training.measured_peak(lambda module=module: run(module, inputs)) for module in (plain, budgeted)]
    assert peaks[1] <= peaks[0]
    assert recomputed_nodes(lambda: run(budgeted, inputs)) == 0


def test_plan_adds_up() -> None:
    """The plan's numbers are about one step, and every storage has a fate and a reason."""
    _, budgeted = twins(net(), (features(),))
    plan = recals.plan_of(budgeted)
    (line,) = plan["devices"]
    assert line["held"] <= line["peak"] <= line["budget"]
    assert line["plain_held"] <= line["plain_peak"]
    assert line["held"] < line["plain_held"]
    assert plan["recompute_seconds"] > 0
    assert plan["recomputed_bytes"] > 0
    assert {storage["fate"] for storage in plan["storages"]} >= {"recompute"}
    assert all(storage["reason"] and storage["bytes"] >= 0 for storage in plan["storages"])


def test_counters_do_not_count_planning() -> None:
    scripted = torch.jit.script(
        nn.Sequential(nn.Linear(24, 96), nn.Dropout(0.5), nn.Tanh(), nn.Linear(96, 24), nn.ReLU())
    )
    recals.reset_counters()
    recals.estimate(recals.optimize(scripted, (features(),), "min"), (features(),))
    recals.pareto(scripted, (features(),))
    assert {name: number for name, number in recals.counters().items() if number} == {}


def test_counters_count_one_step() -> None:
    _, budgeted = twins(net(), (features(),))
    run(budgeted, (features(),))
    recals.reset_counters()
    run(budgeted, (features(),))
    once = recals.counters()
    assert once["recomputed_nodes"] > 0
    assert once["recomputed_bytes"] > 0
    assert once["replays"] > 0
    assert once["recompute_seconds"] > 0
    run(budgeted, (features(),))
    twice = recals.counters()
    for name in ("recomputed_nodes", "recomputed_bytes", "replays"):
        assert twice[name] == 2 * once[name]
    with torch.no_grad():
        budgeted(features())
    assert recals.counters()["recomputed_nodes"] == twice["recomputed_nodes"]
    recals.reset_counters()
    assert recals.counters()["recomputed_nodes"] == 0


# ----------------------------------------------------------------------------------------------------------------------
# Leaks

TINY: dict[str, dict[str, int]] = {
    "resnet18": {"batch": 2, "side": 32},
    "gpt": {"blocks": 2, "width": 32, "heads": 2, "length": 32, "batch": 2},
    "unet": {"levels": 2, "channels": 4, "side": 32, "batch": 2},
    "mlp": {"layers": 4, "width": 64, "batch": 128},
    "encoder": {"layers": 2, "width": 32, "heads": 2, "hidden": 64, "length": 32, "batch": 2},
}


@pytest.mark.parametrize("name", models.MAIN)
def test_two_hundred_steps_leak_nothing(name: str) -> None:
    workload = models.build(name, "small", **TINY[name])
    trainee = training.budgeted(workload, 1).trainee
    trainee.train(0)
    batches = [workload.make_batch(number) for number in range(4)]
    gc.collect()
    left, peaks = set(), set()
    with recals.track_memory() as memory:
        for number in range(200):
            training.zero_gradients(trainee.module)
            training.backward_step(trainee.module, workload, *batches[number % 4])
            if number % 20 == 0:
                trainee.optimizer.step()
            left.add(memory.live.get("cpu", 0))
            if number == 100:
                peaks.add(memory.peak["cpu"])
        peaks.add(memory.peak["cpu"])
    assert left == {0}
    assert len(peaks) == 1, "the peak of the first hundred steps is that of all"


def test_dropping_the_module_releases_everything() -> None:
    inputs = (features(),)
    with recals.track_memory() as memory:
        module = net()
        budgeted = rewrite(module, inputs)
        run(budgeted, inputs)
        del budgeted, module
        gc.collect()
        assert memory.live.get("cpu", 0) <= MIB // 100


def test_the_planner_knows_what_autocasts_cache_holds() -> None:
    """Casts of weights stay until the forward ends, whether their slots are dropped or not."""
    torch.manual_seed(0)
    image = [nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1), nn.ReLU()]
    linears = [layer for inside in (16, 512, 512) for layer in (nn.Linear(inside, 512), nn.ReLU())]
    net = nn.Sequential(*image, nn.AdaptiveAvgPool2d(1), nn.Flatten(), *linears, nn.Linear(512, 512))
    module, x = torch.jit.script(net), torch.randn(4, 3, 32, 32)
    with torch.autocast("cpu", torch.bfloat16), warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)  # plans that take more when they are run dry say so
        budgeted = recals.optimize(module, (x,), "60%")
    (line,) = recals.plan_of(budgeted)["devices"]

    def run() -> None:
        with torch.autocast("cpu", torch.bfloat16):
            y = budgeted(x)
        y.float().square().mean().backward()

    training.prepare_gradients(budgeted)
    run()
    assert training.measured_peak(run) <= line["budget"]
