"""Several threads at once: training, one module, one autograd graph, analysis beside training.

The generator of the CPU is one for all threads, so which thread gets which numbers is chance. What is compared bit by
bit here draws nothing; what draws is compared with itself.
"""

import copy
import gc
import random
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from queue import Queue
from typing import Any

import pytest
import recals
import recals.passes
import torch
import torch.nn.functional as F
from support import features, recomputed_nodes, resident, rewrite, scalar, twins
from torch import Tensor, nn
from training import cloned, differing, differing_gradients, named_gradients, prepare_gradients, zero_gradients

THREADS = 8
STEPS = 200


def in_threads(tasks: list[Callable[[], Any]]) -> list[Any]:
    """What the tasks return, each run in a thread of its own, all begun at once."""
    together = threading.Barrier(len(tasks))

    def begin(task: Callable[[], Any]) -> Any:
        together.wait(60)
        return task()

    with ThreadPoolExecutor(len(tasks)) as pool:
        return [done.result(300) for done in [pool.submit(begin, task) for task in tasks]]


class Chain(nn.Module):
    """Nothing random: tanh, gelu, relu and a layer norm, of which some is packed and the rest is recomputed."""

    def __init__(self, inside: int = 24, width: int = 48) -> None:
        super().__init__()
        self.first = nn.Linear(inside, width)
        self.layers = nn.ModuleList([nn.Linear(width, width) for _ in range(2)])
        self.norm = nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.first(x))
        for layer in self.layers:
            x = x + F.gelu(self.norm(torch.relu(layer(x))))
        return x.sum(1)


class Images(nn.Module):
    """Convolutions, batch norm, pooling."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.second = nn.Conv2d(8, 8, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.sigmoid(torch.relu(self.norm(self.first(x))))
        return F.max_pool2d(F.silu(self.second(x)), 2).flatten(1).sum(1)


class Attention(nn.Module):
    """Softmax over products."""

    def __init__(self, width: int = 24) -> None:
        super().__init__()
        self.qkv = nn.Linear(width, 3 * width)
        self.last = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        return torch.sigmoid(self.last(torch.softmax(q @ k.transpose(0, 1), -1) @ v)).sum(1)


KINDS: list[tuple[type[nn.Module], tuple[int, ...]]] = [
    (Chain, (64, 24)),
    (Images, (4, 3, 16, 16)),
    (Attention, (48, 24)),
]


def batch(shape: tuple[int, ...], seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


# ----------------------------------------------------------------------------------------------------------------------
# Threads with modules of their own


def test_eight_threads_train_under_random_budgets() -> None:
    """Each plans anew every hundred steps, at a random budget, while the others train: the plain bits, no byte left."""
    batches = 4

    def expected(module: nn.Module, shape: tuple[int, ...]) -> list[dict[str, Tensor | None]]:
        module = copy.deepcopy(module)
        gradients = []
        for seed in range(batches):
            prepare_gradients(module)
            scalar(module(batch(shape, seed))).backward()
            gradients.append(cloned(named_gradients(module)))
        return gradients

    def trainer(number: int, steps: int) -> Callable[[], tuple[int, int]]:
        kind, shape = KINDS[number % len(KINDS)]
        module = kind()
        reference = expected(module, shape)
        scripted = torch.jit.script(module)  # which torch does not do in several threads at once
        choice = random.Random(number)
        inputs = [batch(shape, seed) for seed in range(batches)]

        def train() -> tuple[int, int]:
            wrong, left = 0, 0
            with recals.track_memory() as memory:
                for start in range(0, steps, 100):
                    budgeted = rewrite(scripted, (inputs[0],), f"{choice.randint(60, 100)}%")
                    prepare_gradients(budgeted)
                    budgeted(inputs[0])
                    gc.collect()
                    before = memory.live.get("cpu", 0)
                    for step in range(start, min(start + 100, steps)):
                        zero_gradients(budgeted)
                        scalar(budgeted(inputs[step % batches])).backward()
                        found = differing(dict(named_gradients(budgeted)), reference[step % batches])
                        wrong += len(found)
                    left += abs(memory.live.get("cpu", 0) - before)
            return wrong, left

        return train

    in_threads([trainer(number, 20) for number in range(THREADS)])
    gc.collect()
    before = resident()
    recals.reset_counters()
    assert in_threads([trainer(number, STEPS) for number in range(THREADS)]) == [(0, 0)] * THREADS
    counted = recals.counters()
    assert counted["calls"] == THREADS * (STEPS + STEPS // 100)
    assert counted["recomputed_nodes"] > THREADS * STEPS
    assert counted["packs"] > STEPS
    gc.collect()
    assert resident() - before < 32 * 2**20


def test_threads_count_what_one_thread_counts() -> None:
    modules = [rewrite(kind(), (batch(shape, 0),)) for kind, shape in KINDS]

    def steps(module: nn.Module, shape: tuple[int, ...]) -> Callable[[], None]:
        def run() -> None:
            for seed in range(20):
                scalar(module(batch(shape, seed))).backward()

        return run

    tasks = [steps(module, shape) for module, (_, shape) in zip(modules, KINDS, strict=True)]
    counts = []
    for way in (lambda: [task() for task in tasks], lambda: in_threads(tasks)):
        recals.reset_counters()
        way()
        counts.append({name: count for name, count in recals.counters().items() if name != "recompute_seconds"})
    assert counts[0] == counts[1]
    assert counts[0]["recomputed_nodes"] > 0


# ----------------------------------------------------------------------------------------------------------------------
# Analysis


def test_plans_made_at_once_are_those_made_one_by_one() -> None:
    """While another thread trains and one scripts modules."""
    tasks = []
    for kind, shape in KINDS:
        scripted, x = torch.jit.script(kind()), batch(shape, 0)
        for budget in ("40%", "70%"):
            tasks.append(lambda scripted=scripted, x=x, budget=budget: rewrite(scripted, (x,), budget).recals_plan)
    expected = [task() for task in tasks]
    inputs = (batch((64, 24), 0),)
    plain, trainee = twins(Chain(), inputs, "50%")
    scalar(plain(*inputs)).backward()
    over = threading.Event()
    wrong: list[str] = []

    def train() -> None:
        while not over.is_set():
            zero_gradients(trainee)
            scalar(trainee(*inputs)).backward()
            wrong.extend(differing_gradients(plain, trainee))

    def script() -> None:
        while not over.is_set():
            torch.jit.script(nn.Sequential(nn.Linear(24, 8), nn.Tanh()))(*inputs)

    others = [threading.Thread(target=work) for work in (train, script)]
    for other in others:
        other.start()
    try:
        assert in_threads(tasks) == expected
    finally:
        over.set()
        for other in others:
            other.join()
    assert wrong == []


def test_modules_are_rewritten_in_several_threads() -> None:
    """From one module and one plan; each rewrite is whole, and goes when it is let go of."""
    x = batch((64, 24), 0)
    plain = Chain()
    module = torch.jit.script(plain)
    planned = recals.passes.plan(recals.passes.analyse(module, (x,)), "60%")
    expected = gradients_of(plain, x)

    def rewrite_often() -> bool:
        made = [recals.passes.lower(module, planned) for _ in range(30)]
        return all(all(map(torch.equal, gradients_of(one, x), expected)) for one in made)

    assert in_threads([rewrite_often] * 6) == [True] * 6


# ----------------------------------------------------------------------------------------------------------------------
# One module in several threads


def gradients_of(module: nn.Module, x: Tensor) -> list[Tensor]:
    return list(torch.autograd.grad(scalar(module(x)), list(module.parameters())))


def test_one_module_in_several_threads() -> None:
    inputs = [batch((64, 24), seed) for seed in range(THREADS)]
    plain, budgeted = twins(Chain(), (inputs[0],))
    expected = [gradients_of(plain, x) for x in inputs]

    def often(number: int) -> Callable[[], bool]:
        def run() -> bool:
            return all(
                all(map(torch.equal, gradients_of(budgeted, inputs[number]), expected[number])) for _ in range(20)
            )

        return run

    assert in_threads([often(number) for number in range(THREADS)]) == [True] * THREADS


def replicas(module: nn.Module, count: int) -> tuple[list[nn.Module], list[list[Tensor]]]:
    """What torch.nn.parallel.replicate makes, without devices: modules whose parameters are computed from those of
    `module`, and those parameters, which keep their gradients."""
    made, parameters = [], []
    for _ in range(count):
        copies: list[Tensor] = []
        replica_of = {original: original._replicate_for_data_parallel() for original in module.modules()}
        for original, replica in replica_of.items():
            for name, child in original._modules.items():
                setattr(replica, name, replica_of[child])
            for name, parameter in original._parameters.items():
                own = parameter.clone()
                own.retain_grad()
                copies.append(own)
                setattr(replica, name, own)
            for name, buffer in original._buffers.items():
                setattr(replica, name, buffer.clone())
        made.append(replica_of[module])
        parameters.append(copies)
    return made, parameters


@pytest.mark.parametrize("kind", [Chain, Images])
def test_replicas_of_one_module_in_threads(kind: type[nn.Module]) -> None:
    """As in DataParallel: the forwards run in threads, one backward goes through all of them."""
    shape = dict(KINDS)[kind]
    inputs = [batch(shape, seed) for seed in range(4)]
    plain, budgeted = twins(kind(), (inputs[0],))
    gradients = []
    for original in (plain, budgeted):
        copies, parameters = replicas(original, len(inputs))
        forwards = [lambda copy=copy, x=x: copy(x) for copy, x in zip(copies, inputs, strict=True)]
        run = in_threads if original is budgeted else lambda tasks: [task() for task in tasks]
        recals.reset_counters()
        scalar(run(forwards)).backward()
        gradients.append([parameter.grad for own in parameters for parameter in own])
    assert recals.counters()["recomputed_nodes"] > 0
    assert len(gradients[0]) == 4 * len(list(plain.parameters()))
    assert all(map(torch.equal, *gradients))


def test_a_pipeline_of_forwards_and_backwards() -> None:
    """One thread runs forwards ahead, another their backwards; and both in one thread, a step ahead."""
    inputs = [batch((64, 24), seed) for seed in range(12)]
    plain, budgeted = twins(Chain(), (inputs[0],))
    for x in inputs:
        scalar(plain(x)).backward()

    queue: Queue[Tensor | None] = Queue(3)

    def forwards() -> None:
        for x in inputs:
            queue.put(scalar(budgeted(x)))
        queue.put(None)

    def backwards() -> None:
        while (loss := queue.get()) is not None:
            loss.backward()

    in_threads([forwards, backwards])
    assert differing_gradients(plain, budgeted) == []

    zero_gradients(budgeted)
    ahead = scalar(budgeted(inputs[0]))
    for x in [*inputs[1:], None]:
        loss = ahead
        ahead = None if x is None else scalar(budgeted(x))
        loss.backward()
    assert differing_gradients(plain, budgeted) == []


# ----------------------------------------------------------------------------------------------------------------------
# One autograd graph


def test_two_retained_graphs_in_turns() -> None:
    inputs = [batch((64, 24), seed) for seed in range(2)]
    plain, budgeted = twins(Chain(), (inputs[0],))
    for module in (plain, budgeted):
        first, second = (scalar(module(x)) for x in inputs)
        for loss, retain in ((first, True), (second, True), (first, True), (second, False), (first, False)):
            loss.backward(retain_graph=retain)
    assert differing_gradients(plain, budgeted) == []


def test_several_threads_walk_one_graph() -> None:
    """Threads take turns in replays; none sees what another has left half done."""
    x = batch((64, 24), 0)
    plain, budgeted = twins(Chain(), (x,))
    expected = gradients_of(plain, x)
    with recals.track_memory() as memory:
        losses = [scalar(budgeted(x))]

        def walk() -> bool:
            for _ in range(20):
                found = torch.autograd.grad(losses[0], list(budgeted.parameters()), retain_graph=True)
                if not all(map(torch.equal, found, expected)):
                    return False
            return True

        assert in_threads([walk] * 4) == [True] * 4
        losses.clear()
        gc.collect()
        # What others have allocated is not counted here; what this thread lets go of is.
        assert memory.live["cpu"] <= 0


@pytest.fixture(scope="module")  # graphs must not outlive their ops
def slow_op() -> Iterator[dict[str, Any]]:
    """An op written in Python, recals_test::slow, its wait in seconds, and who waits for it to begin."""
    control: dict[str, Any] = {"seconds": 0.0, "begun": threading.Event()}

    with torch.library._scoped_library("recals_test", "FRAGMENT"):

        @torch.library.custom_op("recals_test::slow", mutates_args=())
        def slow(x: Tensor) -> Tensor:
            if control["seconds"]:
                control["begun"].set()
                time.sleep(control["seconds"])
            return x.sin()

        def backward(ctx: Any, gradient: Tensor) -> Tensor:
            assert ctx.saved_tensors[0].shape == gradient.shape
            return gradient * ctx.saved_tensors[0].cos()  # asked for a second time

        slow.register_fake(torch.empty_like)
        slow.register_autograd(
            backward,
            setup_context=lambda ctx, inputs, output: ctx.save_for_backward(inputs[0]),
        )
        yield control


class TwoEnds(nn.Module):
    """Two outputs over one op of Python's."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(24, 48)
        self.left = nn.Linear(48, 48)
        self.right = nn.Linear(48, 48)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = torch.ops.recals_test.slow(torch.sigmoid(self.first(x)))
        y, z = x * x, x + 1.0
        for _ in range(4):
            y, z = torch.sigmoid(self.left(y)), torch.sigmoid(self.right(z))
        return y.sum(), z.sum()


def test_letting_go_of_an_output_does_not_wait_for_a_replay(slow_op: dict[str, Any]) -> None:
    """A replay of an op that needs Python's lock, and a thread that has the lock and drops slots of the same graph."""
    inputs = (features(),)
    plain, budgeted = twins(TwoEnds(), inputs)
    plain(*inputs)[0].backward()
    live = []

    losses = []

    def walk() -> None:
        with recals.track_memory() as memory:
            losses.pop().backward()
            live.append(memory.live["cpu"])

    with recals.track_memory() as memory:
        loss, other = budgeted(*inputs)
        losses.append(loss)
        del loss
        slow_op["seconds"] = 0.5
        walker = threading.Thread(target=walk, daemon=True)
        walker.start()
        assert slow_op["begun"].wait(60)
        slow_op["seconds"] = 0.0
        del other
        walker.join(60)
        assert not walker.is_alive(), "the two wait for each other"
        live.append(memory.live["cpu"])
    assert differing_gradients(plain, budgeted) == []
    assert sum(live) == 0, "what one thread makes the other lets go of"


def test_an_op_of_python_is_recomputed(slow_op: dict[str, Any]) -> None:
    inputs = (features(),)
    plain, budgeted = twins(TwoEnds(), inputs)
    scalar(plain(*inputs)).backward()
    assert recomputed_nodes(lambda: scalar(budgeted(*inputs)).backward()) > 0
    assert differing_gradients(plain, budgeted) == []
    slow = next(s for s in recals.plan_of(budgeted)["storages"] if s["name"].startswith("%slow"))
    assert slow["fate"] == "recompute"
