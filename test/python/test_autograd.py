"""Autograd sees an ordinary graph: everything that works on a plain module works, with the same bits."""

import copy
import gc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import recals
import torch
import torch.nn.functional as F
from support import (
    BUDGETS,
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
from training import differing, differing_gradients, differing_state, named_gradients, prepare_gradients, same_bits

INPUTS = (features(),)


def one_hook_each(module: nn.Module) -> dict[str, int]:
    """Counts, from now on, how often each parameter's gradient is ready."""
    counts: dict[str, int] = {}

    def count(name: str) -> Callable[[Tensor], None]:
        def ready(parameter: Tensor) -> None:
            counts[name] = counts.get(name, 0) + 1

        return ready

    for name, parameter in module.named_parameters():
        parameter.register_post_accumulate_grad_hook(count(name))
    return counts


@pytest.mark.smoke
@pytest.mark.parametrize("budget", BUDGETS)
def test_three_steps(budget: str) -> None:
    check_steps(net(), INPUTS, budget)


# ----------------------------------------------------------------------------------------------------------------------
# What needs a gradient


@pytest.mark.parametrize("frozen", [("first", "norm"), ("second",), ("layer_norm", "last"), ("first", "third")])
def test_frozen_layers(frozen: tuple[str, ...]) -> None:
    module = net()
    for name in frozen:
        getattr(module, name).requires_grad_(False)
    plain, budgeted = twins(module, INPUTS)
    assert_same(step(plain, INPUTS), step(budgeted, INPUTS))
    for name, gradient in named_gradients(budgeted):
        assert (gradient is None) == name.startswith(frozen)


def test_only_the_input_needs_a_gradient() -> None:
    inputs = (features().requires_grad_(),)
    check_steps(net().requires_grad_(False), inputs)


def test_parameters_and_input_need_gradients() -> None:
    check_steps(net(), (features().requires_grad_(),))


def test_layers_frozen_after_the_rewrite() -> None:
    """The plan was made for more gradients than are asked for; the bits are still right."""
    plain, budgeted = twins(net(), INPUTS)
    for module in (plain, budgeted):
        for parameter in (*module.first.parameters(), *module.norm.parameters()):
            parameter.requires_grad_(False)
        prepare_gradients(module)
    assert_same(step(plain, INPUTS), step(budgeted, INPUTS))


def test_gradients_that_do_not_exist_yet_are_made() -> None:
    plain, budgeted = twins(net(), INPUTS)
    for module in (plain, budgeted):
        module.zero_grad(set_to_none=True)
    assert_same(step(plain, INPUTS), step(budgeted, INPUTS))


def test_each_parameter_is_ready_once() -> None:
    plain, budgeted = twins(net(), INPUTS)
    counts = one_hook_each(budgeted)
    run(plain, INPUTS)
    run(budgeted, INPUTS)
    assert counts == dict.fromkeys(dict(budgeted.named_parameters()), 1)
    assert differing_gradients(plain, budgeted) == []


class Shared(nn.Module):
    """One layer in several regions."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(24, 96)
        self.middle = nn.Linear(96, 96)
        self.last = nn.Linear(96, 8)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.sigmoid(torch.tanh(self.first(x)))
        for _ in range(3):
            x = F.dropout(torch.sigmoid(torch.tanh(self.middle(x))), 0.2)
        return self.last(x)


@pytest.mark.parametrize("static", [False, True], ids=["dynamic", "static"])
def test_data_parallel_with_a_layer_in_several_regions(static: bool, tmp_path: Path) -> None:
    """Its reducer refuses a parameter that is ready twice, and copies each gradient when it is ready."""
    plain, budgeted = twins(Shared(), INPUTS)
    assert len(recals.plan_of(budgeted)["regions"]) > 1
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path / 'ranks'}", rank=0, world_size=1)
    try:
        replicas = [
            nn.parallel.DistributedDataParallel(module, static_graph=static, gradient_as_bucket_view=True)
            for module in (plain, budgeted)
        ]
        for seed in range(3):
            for replica in replicas:
                replica.zero_grad()
            run(replicas[0], INPUTS, seed=seed)
            assert recomputed_nodes(lambda seed=seed: run(replicas[1], INPUTS, seed=seed)) > 0
            assert differing_gradients(plain, budgeted) == []
    finally:
        torch.distributed.destroy_process_group()


def test_tensor_hooks_change_gradients_as_in_the_plain_run() -> None:
    plain, budgeted = twins(net(), INPUTS)
    for module in (plain, budgeted):
        module.second.weight.register_hook(lambda gradient: gradient * 2)
    assert_same(step(plain, INPUTS), step(budgeted, INPUTS))


# ----------------------------------------------------------------------------------------------------------------------
# Ways to call the backward


def test_autograd_grad_of_some_parameters() -> None:
    plain, budgeted = twins(net(), INPUTS)
    results = []
    for module in (plain, budgeted):
        torch.manual_seed(1)
        loss = scalar(module(*INPUTS))
        results.append(torch.autograd.grad(loss, [module.second.weight, module.first.bias]))
    assert all(map(same_bits, *results))
    assert all(not gradient.any() for _, gradient in named_gradients(budgeted) if gradient is not None)


@pytest.mark.parametrize("name", ["first.weight", "norm.bias", "second.weight", "last.weight"])
def test_backward_to_one_parameter(name: str) -> None:
    plain, budgeted = twins(net(), INPUTS)
    for module in (plain, budgeted):
        torch.manual_seed(1)
        loss = scalar(module(*INPUTS))
        loss.backward(inputs=[dict(module.named_parameters())[name]])
    assert differing_gradients(plain, budgeted) == []


def test_backward_to_one_parameter_after_the_other() -> None:
    plain, budgeted = twins(net(), INPUTS)
    for module in (plain, budgeted):
        torch.manual_seed(1)
        loss = scalar(module(*INPUTS))
        for name, parameter in module.named_parameters():
            loss.backward(inputs=[parameter], retain_graph=name != "last.bias")
    assert differing_gradients(plain, budgeted) == []


@pytest.mark.smoke
@pytest.mark.parametrize("budget", BUDGETS)
def test_second_backward_on_a_retained_graph(budget: str) -> None:
    plain, budgeted = twins(net(), INPUTS, budget)
    for module in (plain, budgeted):
        torch.manual_seed(1)
        loss = scalar(module(*INPUTS))
        loss.backward(retain_graph=True)
        torch.rand(3)
        loss.backward(retain_graph=True)
        loss.backward()
    assert differing_gradients(plain, budgeted) == []


def test_second_backward_on_a_released_graph_is_an_error() -> None:
    _, budgeted = twins(net(), INPUTS)
    loss = scalar(budgeted(*INPUTS))
    loss.backward()
    with pytest.raises(RuntimeError, match="second time"):
        loss.backward()


def test_two_losses_of_one_forward() -> None:
    plain, budgeted = twins(net(), INPUTS)
    for module in (plain, budgeted):
        torch.manual_seed(1)
        output = module(*INPUTS)
        output.square().mean().backward(retain_graph=True)
        output.sum().backward()
    assert differing_gradients(plain, budgeted) == []


def test_two_forwards_then_two_backwards_in_either_order() -> None:
    for order in (1, -1):
        plain, budgeted = twins(net(), INPUTS)
        for module in (plain, budgeted):
            torch.manual_seed(1)
            losses = [scalar(module(features(seed=number))) for number in range(3)]
            for loss in losses[::order]:
                loss.backward()
        assert differing_gradients(plain, budgeted) == []
        assert differing_state(plain, budgeted) == []


def test_one_backward_through_two_forwards() -> None:
    plain, budgeted = twins(net(), INPUTS)
    for module in (plain, budgeted):
        torch.manual_seed(1)
        (scalar(module(features(seed=1))) * scalar(module(features(seed=2)))).backward()
    assert differing_gradients(plain, budgeted) == []


class Smooth(nn.Module):
    """Twice differentiable, with dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(24, 64)
        self.second = nn.Linear(64, 64)
        self.last = nn.Linear(64, 1)
        self.dropout = nn.Dropout(0.2)

    def forward(self, features: Tensor) -> Tensor:
        x = self.dropout(torch.tanh(self.first(features)))
        x = self.dropout(F.gelu(self.second(x)))
        return self.last(torch.sigmoid(x))


@pytest.mark.parametrize("budget", BUDGETS)
def test_gradient_penalty(budget: str) -> None:
    """A loss of the gradient needs the backward of the backward."""
    inputs = (features().requires_grad_(),)
    plain, budgeted = twins(Smooth(), inputs, budget)

    def penalised(output: Tensor) -> Tensor:
        (gradient,) = torch.autograd.grad(output.sum(), inputs[0], create_graph=True)
        return output.square().mean() + (gradient.square().sum(1).sqrt() - 1).square().mean()

    for seed in range(2):
        before = step(plain, inputs, seed=seed, loss=penalised)
        assert_same(before, step(budgeted, inputs, seed=seed, loss=penalised))


def test_hessian_vector_product() -> None:
    plain, budgeted = twins(Smooth(), INPUTS)
    results = []
    for module in (plain, budgeted):
        torch.manual_seed(1)
        weights = [module.first.weight, module.second.weight]
        first = torch.autograd.grad(module(*INPUTS).square().mean(), weights, create_graph=True)
        results.append(torch.autograd.grad(sum((g * g).sum() for g in first), weights))
    assert all(map(same_bits, *results))


@pytest.mark.smoke
def test_accumulation_over_micro_batches() -> None:
    plain, budgeted = twins(net(), INPUTS)
    optimizers = [torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9) for module in (plain, budgeted)]
    for update in range(3):
        for module, optimizer in zip((plain, budgeted), optimizers, strict=True):
            optimizer.zero_grad(set_to_none=False)
            for micro in range(4):
                run(module, (features(seed=10 * update + micro),), seed=micro, loss=lambda y: scalar(y) / 4)
            optimizer.step()
        assert differing_gradients(plain, budgeted) == []
        assert differing_state(plain, budgeted) == []


# ----------------------------------------------------------------------------------------------------------------------
# What goes wrong in between


@pytest.mark.smoke
def test_forward_without_backward_leaves_nothing() -> None:
    plain, budgeted = twins(net(), INPUTS)
    run(plain, INPUTS)
    run(budgeted, INPUTS)
    with recals.track_memory() as memory:
        for _ in range(5):
            budgeted(*INPUTS)
            assert memory.live.get("cpu", 0) == 0
    for _ in range(5):
        plain(*INPUTS)
    assert_same(step(plain, INPUTS), step(budgeted, INPUTS))


class Lookup(nn.Module):
    """Fails in the middle of the forward where an index is out of range."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(24, 64)
        self.table = nn.Embedding(16, 64)
        self.last = nn.Linear(64, 8)
        self.dropout = nn.Dropout(0.2)

    def forward(self, features: Tensor, rows: Tensor) -> Tensor:
        x = self.dropout(torch.tanh(self.first(features)))
        x = self.dropout(torch.sigmoid(x + self.table(rows)))
        return self.last(F.gelu(x))


@pytest.mark.smoke
def test_error_in_the_forward_leaves_nothing() -> None:
    good = (features(), torch.arange(128) % 16)
    bad = (features(), torch.arange(128))
    plain, budgeted = twins(Lookup(), good)
    assert_same(step(plain, good), step(budgeted, good))
    with recals.track_memory() as memory:
        for _ in range(3):
            with pytest.raises((IndexError, RuntimeError), match="index out of range"):
                budgeted(*bad)
        assert memory.live.get("cpu", 0) == 0
    assert_same(step(plain, good), step(budgeted, good))


class Interrupt(Exception):
    pass


@pytest.mark.smoke
@pytest.mark.parametrize("name", ["last.weight", "second.weight", "first.weight"])
def test_error_in_the_backward_stays_within_the_budget_and_leaves_nothing_after_the_next(name: str) -> None:
    """Autograd itself keeps what it had queued until its next backward; after that nothing may be left."""
    plain, budgeted = twins(net(), INPUTS)

    def interrupt(gradient: Tensor) -> None:
        raise Interrupt

    left = []
    for module in (plain, budgeted):
        run(module, INPUTS)
        with recals.track_memory() as memory:
            hook = dict(module.named_parameters())[name].register_hook(interrupt)
            with pytest.raises(Interrupt):
                run(module, INPUTS)
            hook.remove()
            gc.collect()  # The traceback that pytest kept refers to the step's tensors.
            left.append(memory.live.get("cpu", 0))
            run(module, INPUTS)
            assert memory.live.get("cpu", 0) == 0
        prepare_gradients(module)
    assert left[1] <= recals.plan_of(budgeted)["devices"][0]["budget"]
    assert_same(step(plain, INPUTS), step(budgeted, INPUTS))


class ReplayOnly(nn.Module):
    """`observed` is read by an addition, which saves nothing: whoever reads it again replays."""

    def __init__(self) -> None:
        super().__init__()
        self.shift = nn.Parameter(torch.linspace(-1, 1, 24))

    def forward(self, observed: Tensor) -> Tensor:
        x = observed + self.shift
        for _ in range(4):
            x = torch.sigmoid(torch.tanh(x) + 1.0)
        return x


@pytest.mark.smoke
def test_input_changed_in_place_before_the_backward_is_an_error_that_names_it() -> None:
    observed = features()
    budgeted = rewrite(ReplayOnly(), (observed,))
    prepare_gradients(budgeted)
    output = budgeted(observed)
    observed.add_(1)
    with pytest.raises(RuntimeError, match="observed"):
        scalar(output).backward()
    # The next step is right.
    plain = ReplayOnly()
    prepare_gradients(plain)
    prepare_gradients(budgeted)
    assert_same(step(plain, (observed,)), step(budgeted, (observed,)))


class Unsteady(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(24, 32)
        self.last = nn.Linear(32, 32)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.ops.recals_test.unsteady(torch.sigmoid(self.first(x)))
        return self.last(torch.tanh(torch.sigmoid(x)))


@pytest.fixture(scope="module")
def changes() -> Iterator[list[Callable[[Tensor], Tensor]]]:
    """An op written in Python, recals_test::unsteady: a sine, unless there is something else to do."""
    instead: list[Callable[[Tensor], Tensor]] = []
    with torch.library._scoped_library("recals_test", "FRAGMENT"):

        @torch.library.custom_op("recals_test::unsteady", mutates_args=())
        def unsteady(x: Tensor) -> Tensor:
            return instead[0](x) if instead else x.sin()

        unsteady.register_fake(torch.empty_like)
        unsteady.register_autograd(lambda ctx, gradient: gradient)
        yield instead


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda x: x.double(), "double of"),
        (lambda x: x[:64].clone(), "float of [64, 32]"),
        (lambda x: x.t().contiguous().t(), "strides [1, 128]"),
        (lambda x: x.to("meta"), "on meta"),
        (lambda x: x.to(torch.int32), "int of [128, 32]"),
    ],
    ids=["dtype", "shape", "strides", "device", "bytes-alike"],
)
def test_what_is_recomputed_otherwise_than_it_was_made_is_an_error(
    changes: list[Callable[[Tensor], Tensor]], change: Callable[[Tensor], Tensor], words: str
) -> None:
    pins = {"recals_test::unsteady": "must_recompute", "aten::sigmoid": "must_recompute"}
    budgeted = recals.optimize(torch.jit.script(Unsteady()), INPUTS, "1GiB", pins=pins)
    budgeted(*INPUTS).sum().backward()
    loss = budgeted(*INPUTS).sum()
    changes.append(change)
    with pytest.raises(RuntimeError, match=r"recals: unsteady.* was recomputed as .*recals_test::unsteady") as error:
        loss.backward()
    changes.clear()
    assert words in str(error.value)
    assert "but the forward had float of [128, 32], strides [32, 1], on cpu" in str(error.value)


def test_parameter_changed_in_place_before_the_backward_is_an_error() -> None:
    _, budgeted = twins(net(), INPUTS)
    output = budgeted(*INPUTS)
    with torch.no_grad():
        for parameter in budgeted.parameters():
            parameter.add_(0.5)
    with pytest.raises(RuntimeError, match=r"in-?place"):
        scalar(output).backward()


def test_output_changed_in_place_is_as_in_the_plain_run() -> None:
    """The last linear's output is not needed again, so changing it is allowed."""
    plain, budgeted = twins(net(), INPUTS)
    for module in (plain, budgeted):
        torch.manual_seed(1)
        scalar(module(*INPUTS).mul_(2).relu_()).backward()
    assert differing_gradients(plain, budgeted) == []


# ----------------------------------------------------------------------------------------------------------------------
# Together with other tools


def test_saved_tensor_hooks_of_the_user() -> None:
    plain, budgeted = twins(net(), INPUTS)
    packed: list[Tensor] = []

    def pack(tensor: Tensor) -> tuple[Tensor, int]:
        packed.append(tensor.detach().clone())
        return packed[-1], tensor._version

    def unpack(pair: tuple[Tensor, int]) -> Tensor:
        return pair[0]

    plain_step = step(plain, INPUTS)
    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        assert_same(plain_step, step(budgeted, INPUTS))
    assert packed
    # Without them again.
    assert_same(step(plain, INPUTS), step(budgeted, INPUTS))


def test_save_on_cpu() -> None:
    plain, budgeted = twins(net(), INPUTS)
    with torch.autograd.graph.save_on_cpu():
        assert_same(step(plain, INPUTS), step(budgeted, INPUTS))


def test_inside_torch_checkpoint() -> None:
    """Without its early stop, an exception that TorchScript cannot carry."""
    from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop

    plain, budgeted = twins(Smooth(), INPUTS)
    for module in (plain, budgeted):
        torch.manual_seed(1)
        with set_checkpoint_early_stop(False):
            scalar(checkpoint(module, *INPUTS, use_reentrant=False)).backward()
    assert differing_gradients(plain, budgeted) == []


@pytest.mark.filterwarnings("ignore:Anomaly Detection")
def test_anomaly_mode() -> None:
    plain, budgeted = twins(net(), INPUTS)
    with torch.autograd.detect_anomaly(check_nan=True):
        assert_same(step(plain, INPUTS), step(budgeted, INPUTS))


class Scaled(torch.autograd.Function):
    """Reads what it saved twice."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x, x.sigmoid())
        return x * x.sigmoid()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        _, _ = ctx.saved_tensors
        x, s = ctx.saved_tensors
        return gradient * (s + x * s * (1 - s))


def test_custom_functions_around_the_module() -> None:
    plain, budgeted = twins(net(), INPUTS)
    for module in (plain, budgeted):
        torch.manual_seed(1)
        scalar(Scaled.apply(module(*INPUTS))).backward()
    assert differing_gradients(plain, budgeted) == []


def test_autocast_around_the_forward_only() -> None:
    """The backward runs outside; what it replays runs under the forward's autocast state."""
    with torch.autocast("cpu", dtype=torch.bfloat16):
        plain, budgeted = twins(Smooth(), INPUTS)
    for module in (plain, budgeted):
        for seed in range(3):
            torch.manual_seed(seed)
            with torch.autocast("cpu", dtype=torch.bfloat16):
                output = module(*INPUTS)
            assert output.dtype == torch.bfloat16
            scalar(output.float()).backward()
    assert differing_gradients(plain, budgeted) == []


def test_gradient_scaler_skips_an_overflow() -> None:
    plain, budgeted = twins(net(), INPUTS)
    for module in (plain, budgeted):
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
        for seed in range(4):
            optimizer.zero_grad(set_to_none=False)
            factor = float("inf") if seed == 1 else 1.0
            run(module, INPUTS, seed=seed, loss=lambda y, s=scaler, f=factor: s.scale(scalar(y) * f))
            scaler.step(optimizer)
            scaler.update()
    assert differing_state(plain, budgeted) == []


def test_default_dtype_changed_before_the_backward() -> None:
    plain, budgeted = twins(Ones(), INPUTS)
    for module in (plain, budgeted):
        torch.manual_seed(1)
        loss = scalar(module(*INPUTS))
        torch.set_default_dtype(torch.float64)
        try:
            loss.backward()
        finally:
            torch.set_default_dtype(torch.float32)
    assert differing_gradients(plain, budgeted) == []


class Ones(nn.Module):
    """Makes a tensor of the default dtype."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(24, 64)
        self.last = nn.Linear(64, 8)

    def forward(self, features: Tensor) -> Tensor:
        x = torch.tanh(self.first(features))
        x = torch.sigmoid(x * torch.ones([64]) + 0.5)
        return self.last(torch.tanh(x))


# ----------------------------------------------------------------------------------------------------------------------
# Tensors and types are the user's own


@pytest.mark.smoke
def test_optimizer_made_before_the_rewrite_keeps_working() -> None:
    plain, original = net(), net()
    plain_optimizer = torch.optim.AdamW(plain.parameters(), lr=1e-2)
    optimizer = torch.optim.AdamW(original.parameters(), lr=1e-2)
    budgeted = rewrite(original, INPUTS)
    for seed in range(5):
        for module, its in ((plain, plain_optimizer), (budgeted, optimizer)):
            run(module, INPUTS, seed=seed)
            its.step()
            its.zero_grad()
    assert differing_state(plain, budgeted) == []
    assert differing_state(plain, original) == []


def test_parameters_are_the_very_same_tensors() -> None:
    original = net()
    scripted = torch.jit.script(original)
    budgeted = rewrite(scripted, INPUTS)
    for name, tensor in [*original.named_parameters(), *original.named_buffers()]:
        mine = dict([*budgeted.named_parameters(), *budgeted.named_buffers()])[name]
        assert mine.data_ptr() == tensor.data_ptr()
    run(budgeted, INPUTS)
    assert all(parameter.grad is not None for parameter in original.parameters())
    assert differing_gradients(original, budgeted) == []
    # Parameters written by hand reach the rewritten module.
    with torch.no_grad():
        original.last.bias.fill_(3.0)
    assert torch.equal(budgeted.last.bias, torch.full((8,), 3.0))


@pytest.mark.smoke
def test_other_instances_of_the_class_are_untouched() -> None:
    first, second = torch.jit.script(net(0)), torch.jit.script(net(1))
    assert first._c._type() == second._c._type(), "the premise: they share their type"
    code = first.code
    budgeted = rewrite(first, INPUTS)
    assert "recals" in budgeted.code
    assert first.code == second.code == code
    third = torch.jit.script(net(2))
    assert third.code == code
    for seed, scripted in enumerate((first, second, third)):
        plain = net(seed)
        prepare_gradients(plain)
        prepare_gradients(scripted)
        nodes = recomputed_nodes(
            lambda plain=plain, scripted=scripted: assert_same(unoptimised(plain), unoptimised(scripted))
        )
        assert nodes == 0


def unoptimised(module: nn.Module) -> Any:
    """A step op by op: TorchScript's own optimiser can move a bit."""
    with torch.jit.optimized_execution(False):
        return step(module, INPUTS)


def test_two_instances_rewritten_with_different_budgets() -> None:
    inputs = INPUTS
    budgets = ["tightest", "60%", "100%"]
    modules = [twins(net(number), inputs, budget) for number, budget in enumerate(budgets)]
    for seed in range(2):
        for plain, budgeted in modules:
            assert_same(step(plain, inputs, seed=seed), step(budgeted, inputs, seed=seed))


def test_rewritten_module_inside_a_bigger_eager_one() -> None:
    def around(inner: nn.Module) -> nn.Module:
        return nn.Sequential(nn.Linear(24, 24), inner, nn.Linear(8, 4))

    torch.manual_seed(5)
    plain = around(net())
    other = copy.deepcopy(plain)
    between = (features().requires_grad_(),)
    budgeted = nn.Sequential(other[0], rewrite(other[1], between), other[2])
    prepare_gradients(plain)
    prepare_gradients(budgeted)
    for seed in range(2):
        assert_same(step(plain, INPUTS, seed=seed), step(budgeted, INPUTS, seed=seed))


def test_training_and_eval_alternate() -> None:
    plain, budgeted = twins(net(), INPUTS)
    for seed in range(3):
        assert_same(step(plain, INPUTS, seed=seed), step(budgeted, INPUTS, seed=seed))
        plain.eval()
        budgeted.eval()
        with torch.no_grad():
            assert same_bits(plain(*INPUTS), budgeted(*INPUTS))
        plain.train()
        budgeted.train()
        with torch.inference_mode():
            torch.manual_seed(seed)
            expected = plain(*INPUTS)
            torch.manual_seed(seed)
            assert torch.equal(expected, budgeted(*INPUTS))
    assert differing_state(plain, budgeted) == []


def test_backward_in_another_thread() -> None:
    import threading

    plain, budgeted = twins(net(), INPUTS)
    for module in (plain, budgeted):
        torch.manual_seed(1)
        loss = scalar(module(*INPUTS))
        thread = threading.Thread(target=loss.backward)
        thread.start()
        thread.join()
    assert differing_gradients(plain, budgeted) == []


def test_comparison_sees_every_difference() -> None:
    """The tests' own measure: one flipped bit, a signed zero, and a missing gradient are all seen."""
    module = net()
    other = copy.deepcopy(module)
    assert differing_state(module, other) == []
    with torch.no_grad():
        other.last.bias[0] = torch.nextafter(other.last.bias[0], torch.tensor(9.0))
    assert differing_state(module, other) == ["last.bias"]
    assert not same_bits(torch.tensor([0.0]), torch.tensor([-0.0]))
    assert same_bits(torch.tensor([float("nan")]), torch.tensor([float("nan")]))
    assert differing({"a": torch.zeros(1)}, {"a": None}) == ["a"]
    assert differing({"a": torch.zeros(1)}, {}) == ["a"]
