"""One model over three devices and the host: a budget for each device, held by the device itself, and the same bits."""

import contextlib
import copy
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import recals
import sim
import torch
from pipeline import DEVICES, assert_same, pipeline, planned, random_states, rewritten, smallest_budgets, step, tokens
from torch import Tensor, nn
from training import cloned, differing, named_gradients, prepare_gradients

INPUTS = (tokens(),)

BUDGETS = {
    "all": dict.fromkeys(DEVICES, "60%"),
    "one": {"sim:1": "45%"},
    "unlike": {"sim:0": "75%", "sim:1": "50%", "sim:2": "60%", "cpu": "90%"},
}


@pytest.fixture(scope="module")
def tightest() -> dict[str, int]:
    return smallest_budgets(torch.jit.script(pipeline()), INPUTS, DEVICES)


def budgets_of(name: str, tightest: dict[str, int]) -> dict[str, int | str]:
    return dict(tightest) if name == "tightest" else dict(BUDGETS[name])


def test_prediction_is_what_the_devices_count() -> None:
    module = pipeline()
    prepare_gradients(module)
    predicted = recals.estimate(torch.jit.script(module), INPUTS).peak
    measured = step(module, *INPUTS, seed=0).peak
    assert set(predicted) == set(measured) == set(DEVICES)
    assert {device: predicted[device] for device in DEVICES[1:]} == {device: measured[device] for device in DEVICES[1:]}
    assert 0 <= predicted["cpu"] - measured["cpu"] <= 1024


@pytest.mark.smoke
@pytest.mark.parametrize("name", [*BUDGETS, "tightest"])
def test_trains_to_the_same_bits_within_every_budget(name: str, tightest: dict[str, int]) -> None:
    plain = pipeline()
    budgeted = rewritten(plain, INPUTS, budgets_of(name, tightest))
    prepare_gradients(plain)
    optimizers = [torch.optim.AdamW(module.parameters(), lr=1e-3) for module in (plain, budgeted)]
    lines = planned(budgeted)
    recals.reset_counters()
    for number in range(3):
        for optimizer in optimizers:
            optimizer.zero_grad(set_to_none=False)
        first, second = step(plain, tokens(number), seed=number), step(budgeted, tokens(number), seed=number)
        assert_same(first, second)
        for device, line in lines.items():
            assert second.peak[device] <= line["peak"], device
            if line["budget"] is not None:
                assert line["peak"] <= line["budget"], device
                assert first.peak[device] > line["budget"], device
        for optimizer in optimizers:
            optimizer.step()
    assert recals.counters()["recomputed_nodes"] > 0


def test_budgets_are_bytes_of_their_device(tightest: dict[str, int]) -> None:
    kib = {device: -(-tightest[device] // 1024) for device in ("sim:0", "sim:2")}
    budgeted = rewritten(pipeline(), INPUTS, {device: f"{number}KiB" for device, number in kib.items()})
    lines = planned(budgeted)
    assert {device: line["budget"] for device, line in lines.items() if line["budget"] is not None} == {
        device: number * 1024 for device, number in kib.items()
    }


def test_fits_where_the_plain_model_runs_out_of_memory(tightest: dict[str, int]) -> None:
    plain = pipeline()
    prepare_gradients(plain)
    budgeted = rewritten(plain, INPUTS, tightest)
    room = {index: tightest[f"sim:{index}"] for index in range(3)}
    unlimited = step(budgeted, tokens(), seed=4)
    for parameter in budgeted.parameters():
        parameter.grad.zero_()
    for index in room:
        with sim.capacities({index: room[index]}), pytest.raises(torch.OutOfMemoryError, match=f"on sim:{index}"):
            plain(tokens()).backward()
    with sim.capacities(room):
        assert_same(unlimited, step(budgeted, tokens(), seed=4))


def test_the_smallest_budgets_are_needed(tightest: dict[str, int]) -> None:
    """A device with a byte less than the plan's peak is too small for the step: the prediction has no slack."""
    budgeted = rewritten(pipeline(), INPUTS, tightest)
    peaks = {index: planned(budgeted)[f"sim:{index}"]["peak"] for index in range(3)}
    for index, peak in peaks.items():
        with sim.capacities({index: peak - 1}), pytest.raises(torch.OutOfMemoryError):
            budgeted(tokens()).backward()
    with sim.capacities(peaks):
        budgeted(tokens()).backward()


def wait_until(condition: Callable[[], bool]) -> None:
    """The thread of a device may still be leaving the backward when the caller already has its error."""
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_replay_that_runs_out_of_memory_leaves_no_trace(tightest: dict[str, int]) -> None:
    budgeted = rewritten(pipeline(), INPUTS, tightest)
    expected = step(budgeted, *INPUTS, seed=6)
    held = [sim.memory_allocated(index) for index in range(3)]
    for index in range(3):
        loss = budgeted(*INPUTS)
        after_forward = random_states()
        with sim.capacities({index: 0}), pytest.raises(torch.OutOfMemoryError):
            loss.backward()
        assert differing(after_forward, random_states()) == []
        del loss
        wait_until(lambda: [sim.memory_allocated(index) for index in range(3)] == held)
    for parameter in budgeted.parameters():
        parameter.grad.zero_()
    assert_same(expected, step(budgeted, *INPUTS, seed=6))


def test_a_saved_module_trains_on_where_it_was(tightest: dict[str, int], tmp_path: Path) -> None:
    budgeted = rewritten(pipeline(), INPUTS, tightest)
    budgeted.save(tmp_path / "pipeline.pt")
    loaded = torch.jit.load(tmp_path / "pipeline.pt")
    prepare_gradients(loaded)
    assert_same(step(budgeted, *INPUTS, seed=8), step(loaded, *INPUTS, seed=8))
    assert planned(loaded) == planned(budgeted)


def test_draws_between_forward_and_backward_are_undisturbed(tightest: dict[str, int]) -> None:
    plain = pipeline()
    prepare_gradients(plain)
    budgeted = rewritten(plain, INPUTS, tightest)
    drawn: list[list[Tensor]] = []

    def draw() -> None:
        drawn.append([torch.rand(5, device=device).cpu() for device in ("cpu", *sim.DEVICES)])

    first, second = (step(module, *INPUTS, seed=3, between=draw) for module in (plain, budgeted))
    assert_same(first, second)
    assert all(map(torch.equal, *drawn))
    draw()
    draw()
    assert not any(map(torch.equal, drawn[-1], drawn[-2]))


def test_a_budget_for_a_device_that_the_step_does_not_use() -> None:
    with pytest.raises(ValueError, match=r"budget for 'sim:3', but the step runs on .*sim:0, sim:1, sim:2"):
        recals.optimize(torch.jit.script(pipeline()), INPUTS, {"sim:3": "1MiB"})


def test_a_budget_too_small_names_its_device(tightest: dict[str, int]) -> None:
    budgets = tightest | {"sim:1": tightest["sim:1"] // 2}
    with pytest.raises(recals.BudgetError, match=r"no plan fits into .* on sim:1\.") as error:
        recals.optimize(torch.jit.script(pipeline()), INPUTS, budgets)
    assert error.value.smallest == tightest


def test_the_backward_of_each_device_has_its_own_thread(tightest: dict[str, int]) -> None:
    threads: dict[str, set[int]] = {}

    def note(gradient: Tensor) -> None:
        threads.setdefault(str(gradient.device), set()).add(threading.get_ident())

    budgeted = rewritten(pipeline(), INPUTS, tightest)
    for parameter in budgeted.parameters():
        parameter.register_hook(note)
    step(budgeted, *INPUTS, seed=0)
    assert set(threads) == set(DEVICES)
    assert len(set.union(*threads.values())) == len(DEVICES)


def test_replays_run_on_the_streams_of_the_forward(tightest: dict[str, int]) -> None:
    """Forward on side streams, backward called on the default ones. Whatever is not ordered the fixture finds."""
    plain = pipeline()
    prepare_gradients(plain)
    budgeted = rewritten(plain, INPUTS, tightest)
    streams = [torch.Stream(device) for device in DEVICES[1:]]

    def launches(module: nn.Module) -> tuple[list[int], list[int]]:
        """By the step, on the default and on the side stream of each device."""
        for index, stream in enumerate(streams):
            torch.accelerator.synchronize(index)
            stream.wait_stream(torch.accelerator.current_stream(index))
        before = [
            (sim.launches(index, 0), sim.launches(index, stream.stream_id)) for index, stream in enumerate(streams)
        ]
        torch.manual_seed(2)
        with contextlib.ExitStack() as side:
            for stream in streams:
                side.enter_context(stream)
            loss = module(*INPUTS)
        loss.backward()
        for index in range(len(streams)):
            torch.accelerator.synchronize(index)
        after = [
            (sim.launches(index, 0), sim.launches(index, stream.stream_id)) for index, stream in enumerate(streams)
        ]
        rows = [(b - a, d - c) for (a, c), (b, d) in zip(before, after, strict=True)]
        return [row[0] for row in rows], [row[1] for row in rows]

    on_default, on_side = launches(plain)
    replayed_on_default, replayed_on_side = launches(budgeted)
    assert replayed_on_default == on_default
    assert all(more > less for more, less in zip(replayed_on_side, on_side, strict=True))
    assert differing(*(cloned(named_gradients(module)) for module in (plain, budgeted))) == []


class Copies(nn.Module):
    """Saves copies between devices for its backward, half a dozen on each."""

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(6):
            x = torch.tanh(x).to("sim:0")
            y = (x * x).to("sim:1")
            x = x.to("sim:1") + y * y
        return x.sum()


def test_copies_are_made_again_on_their_device() -> None:
    x = torch.rand(64, 64, device="sim:1").requires_grad_()
    module = Copies()
    smallest = smallest_budgets(torch.jit.script(module), (x,), ["sim:0", "sim:1"])
    budgeted = rewritten(module, (x,), smallest)
    steps, gradients = [], []
    for one in (module, budgeted):
        x.grad = torch.zeros_like(x)
        steps.append(step(one, x, seed=0))
        gradients.append(x.grad.cpu())
    assert_same(*steps)
    assert torch.equal(*gradients)
    for device, budget in smallest.items():
        assert steps[1].peak[device] <= budget < steps[0].peak[device]
    again = {
        (line["device"], line["op"]) for line in recals.plan_of(budgeted)["storages"] if line["fate"] == "recompute"
    }
    assert {("sim:0", "aten::to"), ("sim:1", "aten::to")} <= again


def test_replicas_on_their_own_devices_train_as_plain_ones() -> None:
    """As data-parallel training does it: one thread and one device for each replica, gradients summed."""
    source = nn.Sequential(*pipeline().first).to("cpu")
    batches = [torch.randn(4, 16, 48) for _ in range(3)]

    def replicas(budget: str | None) -> list[nn.Module]:
        made: list[nn.Module] = []
        for index, batch in enumerate(batches):
            module = copy.deepcopy(source).to(sim.DEVICES[index])
            example = batch.to(sim.DEVICES[index])
            if budget is not None:
                module = recals.optimize(torch.jit.script(module), (example,), budget)
            prepare_gradients(module)
            made.append(module)
        return made

    def gradients(modules: list[nn.Module]) -> list[Tensor]:
        def train(index: int) -> None:
            for _ in range(3):
                modules[index](batches[index].to(sim.DEVICES[index])).square().mean().backward()

        torch.manual_seed(5)
        threads = [threading.Thread(target=train, args=(index,)) for index in range(len(modules))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        parameters = zip(*(module.parameters() for module in modules), strict=True)
        return [torch.stack([one.grad.cpu() for one in replicas]).sum(0) for replicas in parameters]

    assert all(map(torch.equal, gradients(replicas(None)), gradients(replicas("60%"))))
