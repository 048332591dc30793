"""Replays run the kernels that the forward ran: grad mode, backend switches, transforms, and what is held unchanged."""

import contextlib
import copy
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import recals
import torch
import torch.nn.functional as F
from support import (
    TIGHTEST,
    Outcome,
    assert_same,
    check_steps,
    features,
    recomputed_nodes,
    rewrite,
    scalar,
    step,
    twins,
)
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from training import cloned, named_gradients, prepare_gradients, same_bits, zero_gradients

# ----------------------------------------------------------------------------------------------------------------------
# Ops that ask whether their inputs require grad


class FoldedProduct(nn.Module):
    """A two-dimensional parameter times a batch: one product if the parameter requires grad, else a batch of them."""

    def __init__(self, rows: int = 16, inside: int = 4) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(rows, inside))
        self.back = nn.Parameter(torch.randn(inside, rows))

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(3):
            x = torch.tanh(torch.matmul(self.weight, x.transpose(1, 2)))
            x = torch.sigmoid(torch.matmul(self.back, x)).transpose(1, 2)
        return x


class Bags(nn.Module):
    """Without grad, an embedding bag with the last offset returns one row more of its bags' sizes."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(32, 16))
        self.layer = nn.Linear(16, 16)
        self.register_buffer("offsets", torch.tensor([0, 3, 7, 12]))

    def forward(self, x: Tensor) -> Tensor:
        table = torch.tanh(self.weight * x)
        indices = torch.arange(12) * 5 % 32
        bags = torch.embedding_bag(table, indices, self.offsets, False, 0, False, None, True)[0]
        return torch.sigmoid(self.layer(torch.tanh(bags)))


class BiasedAttention(nn.Module):
    """A mask that requires grad keeps attention from its fused kernel."""

    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.randn(16, 16))
        self.qkv = nn.Linear(16, 48)

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(2):
            q, k, v = torch.tanh(self.qkv(x)).view(4, 16, 4, 12).transpose(1, 2).chunk(3, dim=-1)
            x = F.scaled_dot_product_attention(q, k, v, self.bias).transpose(1, 2).reshape(4, 16, 16)
        return torch.sigmoid(x)


class SingularValues(nn.Module):
    """Values alone are computed another way than values with the vectors that a gradient needs."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(24, 24)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.layer(x))
        return torch.sigmoid(torch.exp(torch.linalg.svdvals(h) * 0.1))


class Eigenvalues(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(24, 24)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.layer(x))
        return torch.sigmoid(torch.exp(torch.linalg.eigvalsh(h + h.transpose(0, 1)) * 0.1))


class Pooled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(24, 24)

    def forward(self, x: Tensor) -> Tensor:
        return torch.sigmoid(torch.exp(F.max_pool1d(torch.tanh(self.layer(x)).unsqueeze(0), 2)))


ASKING: list[tuple[type[nn.Module], tuple[Tensor, ...]]] = [
    (FoldedProduct, (torch.randn(5, 9, 4, generator=torch.Generator().manual_seed(0)),)),
    (Bags, (features(32, 16),)),
    (BiasedAttention, (torch.randn(4, 16, 16, generator=torch.Generator().manual_seed(0)),)),
    (SingularValues, (features(24, 24),)),
    (Eigenvalues, (features(24, 24),)),
    (Pooled, (features(24, 24),)),
]


def everything(op: str, module: str, name: str, size: int) -> str:
    return "must_recompute" if op in ("aten::sum", "aten::linspace") else "prefer_recompute"


@pytest.mark.parametrize("budget", [TIGHTEST, "60%", "95%"])
@pytest.mark.parametrize(("kind", "inputs"), ASKING)
def test_ops_that_ask_for_grad_run_as_in_the_forward(
    kind: type[nn.Module], inputs: tuple[Tensor, ...], budget: str
) -> None:
    check_steps(kind(), inputs, budget)


@pytest.mark.parametrize(("kind", "inputs"), ASKING)
def test_ops_that_ask_for_grad_with_all_recomputed(kind: type[nn.Module], inputs: tuple[Tensor, ...]) -> None:
    plain = kind()
    prepare_gradients(plain)
    budgeted = recals.optimize(torch.jit.script(copy.deepcopy(plain)), inputs, "1GiB", pins=everything)
    prepare_gradients(budgeted)
    assert_same(step(plain, inputs), step(budgeted, inputs))
    assert recomputed_nodes(lambda: step(budgeted, inputs)) > 0


@pytest.mark.parametrize("frozen", ["weight", "back"])
def test_frozen_parameters_stay_so_in_a_replay(frozen: str) -> None:
    module = FoldedProduct()
    getattr(module, frozen).requires_grad_(False)
    check_steps(module, (torch.randn(5, 9, 4),))


# ----------------------------------------------------------------------------------------------------------------------
# Switches of backends


class Convolutions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Conv2d(8, 8, 3, padding=1) for _ in range(3)])

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return x


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(16, 48)

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(2):
            q, k, v = torch.tanh(self.qkv(x)).view(4, 16, 4, 12).transpose(1, 2).chunk(3, dim=-1)
            x = torch.sigmoid(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(4, 16, 16))
        return x


class Summed(nn.Module):
    """Sums that several threads share, each a part."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(24, 24) for _ in range(4)])

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            h = torch.tanh(layer(x))
            x = torch.sigmoid(h * h.square().sum() * 1e-4)
        return x


class Made(nn.Module):
    """Makes tensors of the default dtype."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(24, 24)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.layer(x))
        return torch.sigmoid(torch.exp(h * torch.linspace(0.5, 1.0, 576).view(24, 24)))


@contextlib.contextmanager
def deterministic() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


@contextlib.contextmanager
def doubles() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


@contextlib.contextmanager
def threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def no_onednn() -> contextlib.AbstractContextManager[Any]:
    return torch.backends.mkldnn.flags(enabled=False)


def math_attention() -> contextlib.AbstractContextManager[Any]:
    return sdpa_kernel(SDPBackend.MATH)


IMAGES = torch.randn(2, 8, 16, 16, generator=torch.Generator().manual_seed(0))
WORDS = torch.randn(4, 16, 16, generator=torch.Generator().manual_seed(0))

SWITCHES: list[Any] = [
    pytest.param(no_onednn, Convolutions, (IMAGES,), id="oneDNN off"),
    pytest.param(math_attention, Attention, (WORDS,), id="attention: math"),
    pytest.param(deterministic, Convolutions, (IMAGES,), id="deterministic algorithms"),
    pytest.param(doubles, Made, (features(24, 24),), id="default dtype f64"),
]

UNNAMED: list[Any] = [
    pytest.param(lambda: threads(2), Summed, (features(4096, 24),), id="threads"),
]


def under(context: Callable[[], Any], module: nn.Module, inputs: tuple[Tensor, ...]) -> Outcome:
    """A step whose forward alone is in `context`."""
    with contextlib.ExitStack() as forward:
        forward.enter_context(context())
        return step(module, inputs, between=forward.close)


@pytest.mark.parametrize(("context", "kind", "inputs"), SWITCHES + UNNAMED)
def test_a_switch_around_the_forward_only_holds_in_replays(
    context: Callable[[], Any], kind: type[nn.Module], inputs: tuple[Tensor, ...]
) -> None:
    plain = kind()
    with context():
        budgeted = recals.optimize(torch.jit.script(copy.deepcopy(plain)), inputs, "1GiB", pins=everything)
    for one in (plain, budgeted):
        prepare_gradients(one)
    assert_same(under(context, plain, inputs), under(context, budgeted, inputs))
    recals.reset_counters()
    under(context, budgeted, inputs)
    assert recals.counters()["recomputed_nodes"] > 0


@pytest.mark.parametrize(("context", "kind", "inputs"), SWITCHES)
def test_a_plan_made_under_other_switches_is_an_error(
    context: Callable[[], Any], kind: type[nn.Module], inputs: tuple[Tensor, ...], request: pytest.FixtureRequest
) -> None:
    switched = f"with {request.node.callspec.id}"
    module = kind()
    _, budgeted = twins(module, inputs)
    with context(), pytest.raises(RuntimeError, match="recals: the plan was made for") as error:
        budgeted(*inputs)
    assert f"{switched}. With other switches" in str(error.value)
    with context(), torch.no_grad():
        budgeted(*inputs)
    with context():
        _, other = twins(module, inputs)
    with pytest.raises(RuntimeError, match="recals: the plan was made for") as error:
        other(*inputs)
    assert f"{switched}, but this training step got" in str(error.value)


def test_a_number_of_threads_is_no_other_plan() -> None:
    plain, budgeted = twins(Convolutions(), (IMAGES,))
    with threads(2):
        assert_same(step(plain, (IMAGES,)), step(budgeted, (IMAGES,)))


def test_replays_leave_the_switches_as_they_were() -> None:
    with no_onednn():
        _, budgeted = twins(Convolutions(), (IMAGES,))
        loss = scalar(budgeted(IMAGES))
    torch.set_float32_matmul_precision("high")
    try:
        loss.backward()
        assert torch.backends.mkldnn.enabled
        assert torch.get_float32_matmul_precision() == "high"
    finally:
        torch.set_float32_matmul_precision("highest")


# ----------------------------------------------------------------------------------------------------------------------
# Modes of the backward


class Drawing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(24, 24) for _ in range(3)])

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = F.dropout(torch.tanh(layer(x)), 0.4)
            x = torch.sigmoid(x) * torch.rand_like(x)
        return x


class Still(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(24, 24) for _ in range(3)])

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.sigmoid(torch.exp(torch.tanh(layer(x))))
        return x


def drawn_again(op: str, module: str, name: str, size: int) -> str:
    return "must_recompute" if op in ("aten::dropout", "aten::rand_like") else "prefer_recompute"


def drawing_twins(kind: type[nn.Module] = Drawing) -> tuple[nn.Module, nn.Module]:
    module = kind()
    inputs = (features(8, 24).requires_grad_(),)
    return module, recals.optimize(torch.jit.script(copy.deepcopy(module)), inputs, "1GiB", pins=drawn_again)


def batched(module: nn.Module) -> tuple[Tensor, ...]:
    """Gradients of many directions at once."""
    x = features(8, 24).requires_grad_()
    torch.manual_seed(3)
    y = module(x)
    directions = torch.eye(y.numel())[:7].reshape(7, *y.shape)
    return torch.autograd.grad(y, [x, *module.parameters()], directions, is_grads_batched=True)


def in_vmap(module: nn.Module) -> tuple[Tensor, ...]:
    x = features(8, 24).requires_grad_()
    torch.manual_seed(3)
    y = module(x)
    directions = torch.eye(y.numel())[:7].reshape(7, *y.shape)
    parameters = list(module.parameters())

    def gradients(direction: Tensor) -> tuple[Tensor, ...]:
        return torch.autograd.grad(y, [x, *parameters], direction, retain_graph=True)

    return torch.func.vmap(gradients, randomness="error")(directions)


def jacobian(module: nn.Module) -> tuple[Tensor, ...]:
    torch.manual_seed(3)
    return (torch.autograd.functional.jacobian(module, features(8, 24), vectorize=True),)


def in_inference_mode(module: nn.Module) -> tuple[Tensor, ...]:
    x = features(8, 24).requires_grad_()
    torch.manual_seed(3)
    y = module(x).sum()
    with torch.inference_mode():
        return torch.autograd.grad(y, [x, *module.parameters()])


def with_hooks_in_the_backward(module: nn.Module) -> tuple[Tensor, ...]:
    x = features(8, 24).requires_grad_()
    torch.manual_seed(3)
    y = module(x).sum()

    def refuse(tensor: Tensor) -> Tensor:
        raise AssertionError("what a replay saves is nobody's business")

    with torch.autograd.graph.saved_tensors_hooks(refuse, refuse):
        return torch.autograd.grad(y, [x, *module.parameters()])


@pytest.mark.parametrize("how", [batched, in_vmap, jacobian, in_inference_mode, with_hooks_in_the_backward])
def test_a_backward_in_a_mode_of_its_own(how: Callable[[nn.Module], tuple[Tensor, ...]]) -> None:
    plain, budgeted = drawing_twins()
    expected, state = how(plain), torch.get_rng_state()
    recals.reset_counters()
    actual = how(budgeted)
    assert recals.counters()["rng_restores"] > 0
    assert all(map(same_bits, expected, actual))
    assert torch.equal(state, torch.get_rng_state())


@pytest.mark.parametrize("vectorize", [False, True])
def test_forward_mode_through_a_rewritten_module(vectorize: bool) -> None:
    plain, budgeted = drawing_twins(Still)

    def derivative(module: nn.Module) -> Tensor:
        x = features(8, 24)
        return torch.autograd.functional.jacobian(module, x, strategy="forward-mode", vectorize=True)

    if vectorize:
        assert same_bits(derivative(plain), derivative(budgeted))
        return
    outcomes = []
    for module in (plain, budgeted):
        x = features(8, 24).requires_grad_()
        with torch.autograd.forward_ad.dual_level():
            dual = torch.autograd.forward_ad.make_dual(x, features(8, 24, seed=1))
            y, tangent = torch.autograd.forward_ad.unpack_dual(module(dual))
            outcomes.append((tangent, *torch.autograd.grad(y.sum() + tangent.sum(), [x, *module.parameters()])))
    assert all(map(same_bits, *outcomes))


# ----------------------------------------------------------------------------------------------------------------------
# What is held


class Scaled(nn.Module):
    """A constant that the plain backward does not read, and a replay does: sums need no operands."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(24, 24)
        self.register_buffer("shift", torch.linspace(-1, 1, 24))

    def forward(self, x: Tensor) -> Tensor:
        return torch.sigmoid(torch.exp(torch.tanh(self.layer(x) + self.shift)))


def test_a_buffer_written_with_what_it_holds_is_no_error() -> None:
    inputs = (features(),)
    plain, budgeted = twins(Scaled(), inputs)

    def two_forwards(module: nn.Module) -> dict[str, Tensor | None]:
        zero_gradients(module)
        first = module(*inputs)
        with torch.no_grad():
            module.shift.copy_(module.shift.clone())
        second = module(*inputs)
        (first.sum() + second.square().sum()).backward()
        return cloned(named_gradients(module))

    expected, actual = two_forwards(plain), two_forwards(budgeted)
    assert all(same_bits(expected[name], actual[name]) for name in expected)


def test_a_buffer_written_with_something_else_is_an_error() -> None:
    inputs = (features(),)
    budgeted = rewrite(Scaled(), inputs)
    loss = budgeted(*inputs).sum()
    with torch.no_grad():
        budgeted.shift[3] += 1e-6
    with pytest.raises(RuntimeError, match=r"shift was modified in place after the forward.*aten::add at .*py:"):
        loss.backward()


def freed(module: nn.Module) -> None:
    """What sharded training does to a parameter that it has gathered for the forward."""
    module.layer.weight.untyped_storage().resize_(0)


def test_a_parameter_whose_storage_was_freed_is_an_error() -> None:
    inputs = (features(),)
    budgeted = rewrite(Scaled(), inputs)
    loss = budgeted(*inputs).sum()
    freed(budgeted)
    with pytest.raises(RuntimeError, match=r"layer.weight was resized after the forward \(0 bytes, expected"):
        loss.backward()


def test_a_parameter_that_was_gathered_again_is_none() -> None:
    inputs = (features(),)
    plain, budgeted = twins(Scaled(), inputs)

    def gathered_again() -> None:
        weight = budgeted.layer.weight
        values, nbytes = weight.detach().clone(), weight.untyped_storage().nbytes()
        freed(budgeted)
        spare = torch.empty(1 << 20)  # so that the memory is another
        weight.untyped_storage().resize_(nbytes)
        with torch.no_grad(), torch.autograd._unsafe_preserve_version_counter(weight):
            weight.copy_(values)
        del spare

    assert_same(step(plain, inputs), step(budgeted, inputs, between=gathered_again))


# ----------------------------------------------------------------------------------------------------------------------
# Waiting

WAITS = """
    import threading, time
    import recals, torch

    @torch.library.custom_op("waits::slow", mutates_args=())
    def slow(x: torch.Tensor) -> torch.Tensor:
        if replaying.is_set():
            inside.set()
            time.sleep(0.3)
        return x.sin()

    slow.register_fake(lambda x: torch.empty_like(x))
    slow.register_autograd(lambda context, gradient: gradient)
    replaying, inside = threading.Event(), threading.Event()

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(8, 8)

        def forward(self, x):
            return torch.sigmoid(torch.exp(torch.ops.waits.slow(torch.tanh(self.layer(x)))))

    x = torch.randn(4, 8)
    net = recals.optimize(
        torch.jit.script(Net()), (x,), "1GiB", pins=lambda op, module, name, size: "prefer_recompute"
    )
    y = net(x)
    exponential = y.grad_fn.next_functions[0][0]
    replaying.set()
    backward = threading.Thread(target=lambda: y.sum().backward(retain_graph=True))
    backward.start()
    assert inside.wait(30)
    exponential._saved_result  # asks for a slot with Python's lock, while the other thread replays an op that needs it
    backward.join()
    print("both are done")
"""


def test_who_waits_for_a_replay_of_a_python_op_lets_it_run(tmp_path: Any) -> None:
    program = tmp_path / "waits.py"
    program.write_text(textwrap.dedent(WAITS))
    done = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, timeout=60, check=False)
    assert "both are done" in done.stdout, done.stderr
