"""Steps planned for CUDA on a machine without it: bytes by hand, plans, errors. Tests on a GPU skip without one."""

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import models
import pytest
import recals
import torch
import torch.nn.functional as F
import training
from support import NEEDS_GPU, features, net
from torch import Tensor, nn

UNIT = 512
"""Bytes: a block of CUDA's caching allocator is a multiple of it."""
MIB = 2**20


def blocks(*requests: int) -> int:
    """What the allocator takes for small requests of so many bytes each."""
    return sum((request + UNIT - 1) // UNIT * UNIT for request in requests)


SCALAR = blocks(4)
"""The loss."""


def held(module: nn.Module, *inputs: Tensor) -> int:
    report = recals.estimate(torch.jit.script(module), inputs, target_device="cuda", workspace_margin=0)
    assert set(report.held) == {"cuda:0"}
    return report.held["cuda:0"]


@contextmanager
def cuda_autocast(dtype: torch.dtype) -> Iterator[None]:
    """torch.autocast("cuda") switches itself off on a machine without CUDA; this is the state that it sets on one."""
    before = torch.get_autocast_dtype("cuda")
    torch.set_autocast_enabled("cuda", True)
    torch.set_autocast_dtype("cuda", dtype)
    try:
        yield
    finally:
        torch.set_autocast_dtype("cuda", before)
        torch.set_autocast_enabled("cuda", False)
        torch.clear_autocast_cache()


class Scaled(nn.Module):
    """Something in front of `layer` that requires a gradient, and a loss behind it."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x * self.scale).sum()


# ----------------------------------------------------------------------------------------------------------------------
# Bytes by hand


@pytest.mark.smoke
def test_dropout_keeps_a_byte_per_element() -> None:
    # The product is not saved, the result is not saved by sum: the mask of 3000 bytes and the loss.
    assert held(Scaled(nn.Dropout(0.5)), torch.ones(3, 1000)) == blocks(3000) + SCALAR == 3072 + 512


@pytest.mark.smoke
def test_many_small_tensors_take_a_block_each() -> None:
    layers = nn.Sequential(*[nn.Tanh() for _ in range(20)])
    # tanh saves its result: 20 of 40 bytes.
    assert held(Scaled(layers), torch.ones(10)) == 20 * UNIT + SCALAR
    cpu = recals.estimate(torch.jit.script(Scaled(layers)), (torch.ones(10),))
    assert cpu.held["cpu"] == 20 * 40 + 4


def test_batch_norm_goes_through_cudnn() -> None:
    x = torch.ones(2, 3, 5, 5)
    # Its input of 600 bytes, mean and variance of 12 bytes each.
    contiguous = blocks(600, 12, 12) + SCALAR
    assert held(Scaled(nn.BatchNorm2d(3)), x) == contiguous == 1024 + 2 * 512 + 512
    # Channels last: a reserve of one bit for each of 150 elements.
    assert held(Scaled(nn.BatchNorm2d(3)), x.to(memory_format=torch.channels_last)) == contiguous + blocks(19)


def test_batch_norm_without_cudnn_saves_statistics_in_float() -> None:
    # 2 dimensions are not for cuDNN. 150 halves in and 3 floats for each statistic: what it saves fits a block.
    module = Scaled(nn.BatchNorm1d(300)).half()
    # Statistics of 300 halves would be 600 bytes, two blocks; 300 floats are 1200 bytes, three.
    assert held(module, torch.ones(4, 300, dtype=torch.half)) == blocks(4 * 300 * 2, 1200, 1200) + SCALAR


@pytest.mark.parametrize("dtype", [torch.half, torch.bfloat16], ids=str)
def test_layer_norm_saves_statistics_in_float(dtype: torch.dtype) -> None:
    rows, width = 300, 8
    # The input, and mean and deviation of 300 floats each.
    expected = blocks(rows * width * 2, rows * 4, rows * 4) + SCALAR
    assert held(Scaled(nn.LayerNorm(width)).to(dtype), torch.ones(rows, width, dtype=dtype)) == expected


class Attention(nn.Module):
    """Attention of parameters, 2 samples with 4 heads of 33 positions."""

    def __init__(self, channels: int, dtype: torch.dtype, dropout: float = 0.0) -> None:
        super().__init__()
        self.query, self.key, self.value = (
            nn.Parameter(torch.zeros(2, 4, 33, channels, dtype=dtype)) for _ in range(3)
        )
        self.dropout = dropout

    def forward(self, mask: Tensor | None) -> Tensor:
        return F.scaled_dot_product_attention(self.query, self.key, self.value, mask, self.dropout).sum()


@pytest.mark.smoke
@pytest.mark.parametrize("dtype", [torch.half, torch.bfloat16], ids=str)
@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_flash_attention(dtype: torch.dtype, dropout: float) -> None:
    # Result (in halves), logarithms of sums (floats, one per head and position), seed and offset. Dropout adds nothing.
    expected = blocks(2 * 4 * 33 * 16 * 2, 2 * 4 * 33 * 4, 16, 8) + SCALAR
    assert held(Attention(16, dtype, dropout), None) == expected == 8704 + 1536 + 3 * 512


def test_flash_attention_fills_channels_up_to_eight() -> None:
    rows = 2 * 4 * 33
    # Query, key and value are copied to 16 channels; the result has 16, too.
    expected = blocks(*[rows * 16 * 2] * 4, rows * 4, 16, 8) + SCALAR
    assert held(Attention(13, torch.half), None) == expected


@pytest.mark.smoke
def test_efficient_attention() -> None:
    # Floats are not for flash attention. Positions of the logarithms are padded to 64.
    expected = blocks(2 * 4 * 33 * 16 * 4, 2 * 4 * 64 * 4, 8, 8) + SCALAR
    assert held(Attention(16, torch.float), None) == expected == 16896 + 2048 + 3 * 512


def test_efficient_attention_with_a_mask() -> None:
    mask = torch.ones(33, 33, dtype=torch.bool)
    # The mask as floats, its rows padded to 48.
    expected = blocks(2 * 4 * 33 * 16 * 4, 2 * 4 * 64 * 4, 8, 8, 33 * 48 * 4) + SCALAR
    assert held(Attention(16, torch.float), mask) == expected


@pytest.mark.parametrize(
    ("channels", "dtype"), [(16, torch.double), (6, torch.float)], ids=["double", "channels-not-aligned"]
)
def test_attention_that_no_kernel_takes_holds_its_scores(channels: int, dtype: torch.dtype) -> None:
    scores = 2 * 4 * 33 * 33 * dtype.itemsize
    assert held(Attention(channels, dtype), None) > scores


class Recurrent(nn.Module):
    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)[0].sum()


def test_lstm_keeps_its_reserve_and_one_buffer_of_weights() -> None:
    steps, batch, inside, hidden = 5, 3, 8, 16
    weights = 4 * hidden * (inside + hidden + 2)
    reserve = steps * batch * hidden * (4 + 5)
    expected = (
        blocks(batch * hidden * 4) * 2  # the states that the module starts from
        + blocks(steps * batch * hidden * 4, reserve * 4, weights * 4)
        + SCALAR
    )
    module = Recurrent(nn.LSTM(inside, hidden))
    assert held(module, torch.ones(steps, batch, inside)) == expected


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN], ids=lambda kind: kind.__name__)
def test_recurrent_networks_have_a_whole_step(kind: type[nn.Module]) -> None:
    module = Recurrent(kind(8, 16, num_layers=2, bidirectional=True, batch_first=True, dropout=0.1))
    report = recals.estimate(torch.jit.script(module), (torch.ones(3, 5, 8),), target_device="cuda", workspace_margin=0)
    weights = 4 * sum(parameter.numel() for parameter in module.parameters())
    # Forward keeps a copy of the weights, the backward makes their gradients in one buffer.
    assert report.peak["cuda:0"] >= report.held["cuda:0"] + weights
    assert report.held["cuda:0"] > weights


def test_workspace_margin_is_what_the_peak_has_more() -> None:
    module = torch.jit.script(net())
    peaks = [
        recals.estimate(module, (features(),), target_device="cuda:0", workspace_margin=margin).peak["cuda:0"]
        for margin in (1024 * MIB, 1025 * MIB)
    ]
    assert peaks[1] - peaks[0] == MIB


def test_default_margin_follows_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    module = torch.jit.script(net())

    def peak(margin: int | None = None) -> int:
        report = recals.estimate(module, (features(),), target_device="cuda:0", workspace_margin=margin)
        return report.peak["cuda:0"]

    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    assert peak() == peak(32 * MIB)
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:2:16:8")
    assert peak() == peak((4096 * 2 + 16 * 8) * 1024)
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", "large")
    with pytest.raises(recals.RecalsError, match="CUBLAS_WORKSPACE_CONFIG is 'large'"):
        peak()
    assert peak(0) < peak(MIB)


def test_autocast_of_the_target_device() -> None:
    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(64, 64, bias=False)

        def forward(self, x: Tensor) -> Tensor:
            return torch.tanh(self.linear(x)).sum()

    x = torch.ones(32, 64)
    assert held(Layer(), x) == blocks(32 * 64 * 4) + SCALAR
    with cuda_autocast(torch.bfloat16):
        # The input in halves for the weight's gradient, the weight in halves in autocast's cache, tanh's result.
        assert held(Layer(), x) == blocks(32 * 64 * 2, 64 * 64 * 2, 32 * 64 * 2) + SCALAR
        # Attention of floats is flash attention now, of three casts.
        rows = 2 * 4 * 33
        assert held(Attention(16, torch.float), None) == blocks(*[rows * 16 * 2] * 4, rows * 4, 16, 8) + SCALAR


# ----------------------------------------------------------------------------------------------------------------------
# Plans


@pytest.mark.smoke
@pytest.mark.parametrize("name", models.MAIN)
def test_plan_fits_its_budget_in_the_dry_run(name: str) -> None:
    workload = models.build(name, "small")
    inputs, _ = workload.make_batch(0)
    scripted = torch.jit.script(copy.deepcopy(workload.module))
    plain = recals.estimate(scripted, inputs, target_device="cuda:0", workspace_margin=0).peak["cuda:0"]
    budget = plain * 3 // 4
    budgeted = recals.optimize(scripted, inputs, {"cuda:0": budget}, target_device="cuda:0", workspace_margin=0)
    (line,) = recals.plan_of(budgeted)["devices"]
    assert line["name"] == "cuda:0"
    assert line["plain_peak"] == plain
    assert line["peak"] <= budget
    # The rewritten module, run dry itself.
    again = recals.estimate(budgeted, inputs, target_device="cuda:0", workspace_margin=0)
    assert again.peak["cuda:0"] == line["peak"]
    assert again.held["cuda:0"] == line["held"]


def test_module_and_inputs_may_be_on_meta() -> None:
    inputs = (features(),)
    on_cpu = recals.estimate(torch.jit.script(net()), inputs, target_device="cuda:0")
    module = torch.jit.script(net().to("meta"))
    on_meta = recals.estimate(module, (inputs[0].to("meta"),), target_device="cuda:0")
    assert on_meta.to_json() == on_cpu.to_json()


def test_replayed_dropout_costs_no_device_memory_for_generator_states() -> None:
    """CUDA's generator states are on the host; the plan and its dry run agree on that."""
    layers = nn.Sequential(*[layer for _ in range(8) for layer in (nn.Dropout(0.5), nn.Tanh())])
    x = torch.ones(64, 1024)
    module = torch.jit.script(Scaled(layers))
    plain = recals.passes.analyse(module, (x,), target_device="cuda:0", workspace_margin=0)
    planned = recals.passes.plan(plain, "60%")
    assert planned.peak == planned.simulated_peak


@pytest.mark.smoke
def test_planned_for_cuda_refuses_to_train_on_the_cpu() -> None:
    inputs = (features(),)
    budgeted = recals.optimize(torch.jit.script(net()), inputs, "100%", target_device="cuda")
    with pytest.raises(RuntimeError, match=r"made for inputs .*@cuda:0.*got .*@cpu"):
        budgeted(*inputs)
    with torch.no_grad():
        assert budgeted(*inputs).shape == (128, 8), "without gradients any device will do"


def test_names_of_devices() -> None:
    module, inputs = torch.jit.script(net()), (features(),)
    for device in ("cuda", "cuda:0", torch.device("cuda")):
        plan = recals.plan_of(recals.optimize(module, inputs, {"cuda": "100%"}, target_device=device))
        assert [line["name"] for line in plan["devices"]] == ["cuda:0"]
    assert set(recals.estimate(module, inputs, target_device="cuda:3").peak) == {"cuda:3"}
    same = recals.estimate(module, inputs, target_device="cpu")
    assert same.to_json() == recals.estimate(module, inputs).to_json()


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"target_device": "meta"}, ValueError, "not for 'meta'"),
        ({"target_device": "gpu"}, ValueError, "no device 'gpu'"),
        ({"target_device": 0}, TypeError, "not 0"),
        ({"target_device": "cuda", "workspace_margin": -1}, ValueError, "negative: -1"),
        ({"target_device": "cuda", "workspace_margin": "1MiB"}, TypeError, "number of bytes"),
        ({"workspace_margin": 1}, recals.RecalsError, "for CUDA devices"),
        ({"target_device": "cuda", "cost_model": "profile"}, recals.RecalsError, "Move module and inputs to cuda:0"),
    ],
    ids=str,
)
def test_wrong_targets(arguments: dict[str, object], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        recals.estimate(torch.jit.script(net()), (features(),), **arguments)


def test_budget_for_a_device_that_is_not_the_target() -> None:
    with pytest.raises(ValueError, match="budget for 'cpu', but the step runs on cuda:0"):
        recals.optimize(torch.jit.script(net()), (features(),), {"cpu": "50%"}, target_device="cuda:0")


# ----------------------------------------------------------------------------------------------------------------------
# On a GPU


def measured_on_gpu(step: Callable[[], object]) -> int:
    """The allocator's own peak above the start of a step that is not the first."""
    step()
    torch.cuda.synchronize()
    start = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    step()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - start


def planned_for_gpu(scripted: torch.jit.ScriptModule, inputs: tuple[Tensor, ...], budget: str) -> nn.Module:
    """At the smallest budget that works where `budget` does not."""
    try:
        return recals.optimize(scripted, inputs, budget, target_device="cuda:0")
    except recals.BudgetError as error:
        return recals.optimize(scripted, inputs, error.smallest, target_device="cuda:0")


@pytest.mark.gpu
@NEEDS_GPU
@pytest.mark.parametrize("budget", [None, "50%"], ids=["plain", "50%"])
@pytest.mark.parametrize("name", models.MAIN)
def test_prediction_covers_the_step_on_a_gpu(name: str, budget: str | None) -> None:
    workload = models.build(name, "small")
    inputs, targets = workload.make_batch(0)
    scripted = torch.jit.script(copy.deepcopy(workload.module))
    predicted = recals.estimate(scripted, inputs, target_device="cuda:0").peak["cuda:0"]
    module: nn.Module = copy.deepcopy(workload.module)
    if budget is not None:
        module = planned_for_gpu(scripted, inputs, budget)
        (line,) = recals.plan_of(module)["devices"]
        predicted = line["peak"]
    module = module.to("cuda:0")
    training.prepare_gradients(module)
    there = tuple(tensor.to("cuda:0") for tensor in inputs)
    goal = targets.to("cuda:0")

    def step() -> None:
        training.backward_step(module, workload, there, goal)

    assert measured_on_gpu(step) <= predicted
