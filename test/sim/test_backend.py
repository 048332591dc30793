"""The simulated accelerator itself: what the tests over it take for granted."""

import copy
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import recals
import sim
import torch
import torch.nn.functional as F
from op_cases import CASES, inputs, module_of
from torch import Tensor, nn
from training import differing_gradients, differing_state, same_bits

FAMILIES = [family for family in CASES if family != "random"]

ON_THE_HOST_ONLY = ("scaled_dot_product_attention", "MultiheadAttention", "self.lstm", "self.gru")
RANDOM = ("dropout", "fractional_max_pool")
"""Where the host has a kernel that torch does not ask a device for, and where it draws other numbers."""


def host(value: Tensor) -> Tensor:
    return value.detach().cpu()


def trained(module: nn.Module, batch: tuple[Tensor, ...]) -> list[Tensor] | str:
    """The loss and every gradient; or how it ended."""
    try:
        loss = module(*batch)
        loss.backward()
    except RuntimeError as error:
        return type(error).__name__
    return [host(loss)] + [host(parameter.grad) for parameter in module.parameters() if parameter.grad is not None]


@pytest.mark.parametrize("family", FAMILIES)
def test_kernels_give_the_bits_of_the_host(family: str) -> None:
    wrong = []
    for number, case in enumerate(CASES[family]):
        if any(name in case for name in ON_THE_HOST_ONLY + RANDOM):
            continue
        module = module_of(case, number)
        there = copy.deepcopy(module).to("sim:1")
        plain = trained(module, inputs())
        batch = tuple(value.to("sim:1") for value in inputs())
        with torch.device("sim:1"):  # for what the cases make themselves
            simulated = trained(there, batch)
        if isinstance(plain, str) or isinstance(simulated, str):
            if plain != simulated:
                wrong.append(case)
        elif len(plain) != len(simulated) or len(plain) < 3 or not all(map(same_bits, plain, simulated)):
            wrong.append(case)
    assert wrong == []


@pytest.mark.smoke
def test_training_gives_the_bits_of_the_host() -> None:
    plain = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(72, 10)
    )
    simulated = copy.deepcopy(plain).to("sim:2")
    optimizers = [torch.optim.AdamW(module.parameters(), lr=0.01) for module in (plain, simulated)]
    for _ in range(3):
        images, labels = torch.randn(4, 3, 8, 8), torch.randint(10, (4,))
        for module, optimizer, device in zip((plain, simulated), optimizers, ("cpu", "sim:2"), strict=True):
            optimizer.zero_grad()
            F.cross_entropy(module(images.to(device)), labels.to(device)).backward()
            optimizer.step()
    back = simulated.to("cpu")
    assert differing_state(plain, back) == []
    assert differing_gradients(plain, back) == []


def test_views_show_the_same_memory() -> None:
    x = torch.arange(12.0, device="sim:0").reshape(3, 4)
    before = sim.memory_allocated(0)
    views = [x.t(), x[1], x[:, ::2], x.unsqueeze(1).expand(3, 5, 4), x.as_strided((2,), (5,)), x.detach(), x.diagonal()]
    assert all(view.untyped_storage().data_ptr() == x.untyped_storage().data_ptr() for view in views)
    assert sim.memory_allocated(0) == before == 48
    views[0].mul_(2)
    assert torch.equal(views[1].cpu(), torch.arange(4.0, 8.0) * 2)
    x.t_()
    assert x.shape == (4, 3)
    assert torch.equal(x.cpu(), torch.arange(12.0).reshape(3, 4).t() * 2)


def test_memory_is_counted_to_the_byte() -> None:
    x = torch.ones(100, device="sim:0")
    assert sim.memory_allocated(0) == 400
    y = torch.softmax(x, 0)  # by a kernel that takes scratch memory on the host
    assert sim.memory_allocated(0) == 800
    x.resize_(150)
    assert sim.memory_allocated(0) == 1000
    assert sim.max_memory_allocated(0) == 1400  # both blocks while it grows
    assert torch.equal(x[:100].cpu(), torch.ones(100))
    x.set_(y)
    assert sim.memory_allocated(0) == 400
    torch.add(y, 1, out=x)
    assert torch.equal(x.cpu(), y.cpu())
    empty = torch.empty(0, device="sim:0")
    torch.add(y, y, out=empty)
    assert sim.memory_allocated(0) == 800
    y.untyped_storage().resize_(0)
    assert sim.memory_allocated(0) == 400
    assert sim.memory_allocated(1) == 0


def test_the_host_does_not_count_what_is_on_a_device() -> None:
    host_tensor = torch.randn(64, 64)
    with recals.track_memory() as memory:
        x = host_tensor.to("sim:0")
        for _ in range(3):
            x = torch.log_softmax(x @ x.t(), 1)
        x = x.cpu()
    assert memory.peak == {"cpu": 4 * 64 * 64, "sim:0": 3 * 4 * 64 * 64}
    assert memory.live == {"cpu": 4 * 64 * 64, "sim:0": 0}
    assert sim.max_memory_allocated(0) == memory.peak["sim:0"]


@pytest.mark.smoke
def test_a_full_device_raises() -> None:
    before = sim.out_of_memory(1)
    x = torch.ones(100, device="sim:1")
    with sim.capacities({1: 500}):
        y = x + x
        with pytest.raises(
            torch.OutOfMemoryError, match=r"out of memory on sim:1: asked for 400 bytes, 100 of 900 are free"
        ):
            x + x
        with pytest.raises(torch.OutOfMemoryError):
            torch.empty(26, device="sim:1")
        del y
        x + x
    assert sim.out_of_memory(1) == before + 2
    assert sim.memory_allocated(1) == 400
    torch.empty(1000, device="sim:1")


@pytest.mark.smoke
def test_each_device_has_its_own_numbers() -> None:
    def draws(device: str) -> list[Tensor]:
        x = torch.ones(50, device=device)
        return [
            F.dropout(x, 0.5).cpu(),
            torch.randn(50, device=device).cpu(),
            torch.bernoulli(x / 2).cpu(),
            torch.multinomial(x, 20).cpu(),
            torch.randperm(50, device=device).cpu(),
            torch.rand_like(x).cpu(),
            x.clone().exponential_().cpu(),
        ]

    torch.manual_seed(3)
    host_state = torch.get_rng_state()
    first, second = draws("sim:0"), draws("sim:1")
    assert not any(map(torch.equal, first, second))
    assert torch.equal(torch.get_rng_state(), host_state)
    assert not any(map(torch.equal, first, draws("cpu")))
    torch.manual_seed(3)
    assert all(map(torch.equal, second, draws("sim:1")))  # whether sim:0 draws or not
    state = torch.sim.get_rng_state("sim:1")
    third = draws("sim:1")
    assert not any(map(torch.equal, second, third))
    torch.sim.set_rng_state(state, "sim:1")
    assert all(map(torch.equal, third, draws("sim:1")))
    own = [torch.randn(9, device="sim:1", generator=torch.Generator("sim:1").manual_seed(5)) for _ in range(2)]
    assert torch.equal(*own)
    with pytest.raises(RuntimeError, match="cannot draw from a generator of sim:0"):
        torch.randn(9, device="sim:1", generator=torch.Generator("sim:0"))


def test_a_generator_moves_only_when_it_is_drawn_from() -> None:
    state = torch.sim.get_rng_state("sim:0")
    x = torch.randn(30, device="sim:0")
    after_one = torch.sim.get_rng_state("sim:0")
    assert not torch.equal(after_one, state)
    F.rrelu(x, training=False)
    F.dropout(x, 0.5, training=False)
    assert torch.equal(torch.sim.get_rng_state("sim:0"), after_one)


def test_devices_do_not_mix() -> None:
    x, y = torch.ones(3, device="sim:0"), torch.ones(3, device="sim:1")
    with pytest.raises(RuntimeError, match=r"aten::add.Tensor was called with tensors of sim:0 and of sim:1"):
        x + y
    with pytest.raises(RuntimeError, match=r"of sim:0 and of cpu"):
        x + torch.ones(3)
    assert torch.equal((x + torch.tensor(1.0)).cpu(), torch.full((3,), 2.0))
    assert torch.equal(x[torch.tensor([2, 0])].cpu(), torch.ones(2))
    assert (x.to("sim:1") + y).device == y.device
    with pytest.raises(RuntimeError, match="there is no sim:9"):
        torch.empty(3, device="sim:9")


def test_work_is_counted_on_the_current_stream_of_its_device() -> None:
    x, y = torch.ones(3, device="sim:0"), torch.ones(3, device="sim:1")
    stream = torch.Stream("sim:1")
    stream.wait_stream(torch.accelerator.current_stream("sim:1"))
    default = [sim.launches(0, 0), sim.launches(1, 0)]
    with stream:
        assert torch.accelerator.current_stream("sim:1") == stream
        x + x
        z = y + y
    z.record_stream(stream)
    y.record_stream(stream)
    x + x
    assert sim.launches(1, stream.stream_id) == 1
    assert sim.blocks_recorded_on(1, stream.stream_id) == 2
    assert [sim.launches(0, 0), sim.launches(1, 0)] == [default[0] + 2, default[1]]


def test_uses_that_nothing_orders_are_found() -> None:
    first, second = torch.Stream("sim:0"), torch.Stream("sim:0")

    def found(lines: int, *words: str) -> None:
        hazards = sim.take_hazards()
        assert len(hazards) == lines, hazards
        assert all(word in hazard for hazard in hazards for word in words)

    def made_on_first() -> Tensor:
        with first:
            return torch.ones(5, device="sim:0")

    x = made_on_first()
    with second:
        y = x + x
    found(1, "aten::add.Tensor on stream", "does not wait for aten::fill_.Scalar")
    with first:
        x.mul_(2)
    found(1, "aten::mul_.Tensor on stream", "does not wait for aten::add.Tensor")
    second.wait_stream(first)
    with second:
        z = x[1:].view(2, 2) + 1
        assert float(z.sum()) == 12  # the host waits
    with first:
        x.mul_(2)
    found(0)
    with second:
        y = x.t() * y
    sim.take_hazards()
    del x
    found(1, "is freed, which does not wait for aten::mul.Tensor", "and was not recorded there")
    x = made_on_first()
    second.wait_stream(first)
    with second:
        y = x * y
    x.record_stream(second)
    del x
    found(0)
    x = made_on_first()
    with first:
        there = x.to("sim:1")
    there = there + 1  # copies between devices are ordered on both
    with first:
        x.mul_(2)
    torch.accelerator.synchronize("sim:0")
    x.mul_(2)
    torch.accelerator.synchronize("sim:0")
    del x, there
    found(0)


def test_autograd_orders_a_step_on_side_streams() -> None:
    """torch's own rules, which the tests of replays build on."""
    module = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8)).to("sim:0")
    x = torch.randn(4, 8, device="sim:0")
    stream = torch.Stream("sim:0")
    stream.wait_stream(torch.accelerator.current_stream("sim:0"))
    before = sim.launches(0, 0), sim.launches(0, stream.stream_id)
    with stream:
        loss = module(x).square().sum()
    loss.backward()
    assert sim.launches(0, 0) - before[0] <= 1  # the gradient of the loss
    assert sim.launches(0, stream.stream_id) - before[1] > 10
    torch.accelerator.synchronize("sim:0")


def test_each_device_has_a_thread_for_its_backward() -> None:
    threads: dict[str, set[int]] = {}

    def note(gradient: Tensor) -> None:
        threads.setdefault(str(gradient.device), set()).add(threading.get_ident())

    x = torch.ones(4, requires_grad=True)
    parts = [x * 2]
    for device in sim.DEVICES:
        parts.append(parts[-1].to(device) * 2)
    for part in parts:
        part.register_hook(note)
    parts[-1].sum().backward()
    assert set(threads) == {"cpu", *sim.DEVICES}
    assert all(len(ids) == 1 for ids in threads.values())
    assert len(set.union(*threads.values())) == 1 + len(sim.DEVICES)
    assert torch.equal(x.grad, torch.full((4,), 2.0 ** (1 + len(sim.DEVICES))))


def test_modules_are_copied_and_saved(tmp_path: Path) -> None:
    module = nn.Linear(3, 4).to("sim:3")
    twin = copy.deepcopy(module)
    assert twin.weight.device == module.weight.device
    assert torch.equal(twin.weight.cpu(), module.weight.cpu())
    torch.jit.script(module).save(tmp_path / "module.pt")
    loaded = torch.jit.load(tmp_path / "module.pt")
    assert loaded.weight.device == module.weight.device
    assert torch.equal(loaded.weight.cpu(), module.weight.cpu())


def test_a_process_may_end_right_after_a_backward() -> None:
    """What the process registers first to be done at its end is done last: by then no thread of a device is left."""
    program = """
import atexit, os, sys
sys.path[:0] = sys.argv[1:]
atexit.register(lambda: print(before, sim.backward_threads()))
import sim, torch
x = torch.ones(4, 4, device="sim:0", requires_grad=True)
(x @ x).to("sim:1").exp().sum().backward()
before = len(sim.backward_threads())
"""
    folder = str(Path(sim.__file__).parent)
    command = [sys.executable, "-W", "ignore", "-c", program, folder, *sys.path]
    ended = subprocess.run(command, capture_output=True, text=True)
    assert (ended.returncode, ended.stdout) == (0, f"{sim.device_count()} []\n"), ended.stderr
