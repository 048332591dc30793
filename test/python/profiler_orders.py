"""Every order of torch's profiler and of what Recals measures with, each in a process of its own.

    profiler_orders.py        prints a line for each order: its name, "ok" or what went wrong

The processes are forked from one that has imported everything and run nothing, so that a crash is one order's.
"""

import gc
import os
import signal
import sys
import traceback
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import recals
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

MIB = 2**20
PROFILERS: dict[str, dict[str, bool]] = {
    "times": {},
    "memory": {"profile_memory": True},
    "all": {"profile_memory": True, "record_shapes": True, "with_stack": True},
}


def profiler(kind: str) -> Any:
    return profile(activities=[ProfilerActivity.CPU], **PROFILERS[kind])


def events(profiler: Any) -> list[Any]:
    return list(profiler.profiler.kineto_results.events())


def profiled_peak(profiler: Any) -> int:
    live = peak = 0
    for event in sorted(events(profiler), key=lambda event: event.start_ns()):
        live += event.nbytes() if event.name() == "[memory]" else 0
        peak = max(peak, live)
    return peak


class Model:
    def __init__(self) -> None:
        torch.manual_seed(0)
        self.inputs = (torch.randn(64, 32),)
        self.scripted = torch.jit.script(nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 64), nn.Tanh()))
        self.module = recals.optimize(self.scripted, self.inputs, "100%")
        for parameter in self.module.parameters():
            parameter.grad = torch.zeros_like(parameter)
        self.step()
        with recals.track_memory() as memory:
            self.step()
        self.peak = memory.peak["cpu"]
        self.estimated = recals.estimate(self.scripted, self.inputs).peak["cpu"]
        gc.collect()

    def step(self) -> None:
        self.module(*self.inputs).sum().backward()


Ours = Callable[[Model], AbstractContextManager[Any] | None]


class Tracking:
    """Peaks are those of the step alone, wherever the block begins and ends."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.memory = recals.track_memory(model.module)

    def __enter__(self) -> None:
        self.memory.__enter__()

    def __exit__(self, *error: Any) -> None:
        self.memory.__exit__(*error)

    def check(self) -> None:
        assert self.memory.peak["cpu"] == self.model.peak, (self.memory.peak, self.model.peak)


class Estimating:
    def __init__(self, model: Model) -> None:
        self.model = model

    def __enter__(self) -> None:
        self.peak = recals.estimate(self.model.scripted, self.model.inputs).peak["cpu"]

    def __exit__(self, *error: Any) -> None:
        assert recals.estimate(self.model.scripted, self.model.inputs).peak["cpu"] == self.peak

    def check(self) -> None:
        assert self.peak == self.model.estimated


class Optimizing(Estimating):
    def __enter__(self) -> None:
        self.peak = recals.estimate(self.model.scripted, self.model.inputs).peak["cpu"]
        self.rewritten = recals.optimize(self.model.scripted, self.model.inputs, "min")

    def __exit__(self, *error: Any) -> None:
        again = recals.optimize(self.model.scripted, self.model.inputs, "min")
        assert recals.plan_of(again) == recals.plan_of(self.rewritten)


OURS = {"track": Tracking, "estimate": Estimating, "optimize": Optimizing}


class OnPurpose(Exception):
    pass


def inside(ours: Any, theirs: Any, model: Model) -> None:
    with theirs, ours:
        model.step()


def around(ours: Any, theirs: Any, model: Model) -> None:
    with ours, theirs:
        model.step()


def before(ours: Any, theirs: Any, model: Model) -> None:
    ours.__enter__()
    theirs.__enter__()
    model.step()
    ours.__exit__(None, None, None)
    theirs.__exit__(None, None, None)


def after(ours: Any, theirs: Any, model: Model) -> None:
    theirs.__enter__()
    ours.__enter__()
    model.step()
    theirs.__exit__(None, None, None)
    ours.__exit__(None, None, None)


ORDERS = {"inside": inside, "around": around, "before": before, "after": after}


def run(ours: str, theirs: str, order: str, error: bool) -> None:
    model = Model()
    hooks = len(torch.nn.modules.module._global_forward_hooks)
    measured, profiling = OURS[ours](model), profiler(theirs)
    if error:
        try:
            with profiling, measured:
                model.step()
                raise OnPurpose
        except OnPurpose:
            pass
        try:
            with OURS[ours](model), profiler(theirs):
                model.step()
                raise OnPurpose
        except OnPurpose:
            pass
    else:
        ORDERS[order](measured, profiling, model)
    measured.check()
    assert len(torch.nn.modules.module._global_forward_hooks) == hooks
    assert any(event.name() == "aten::addmm" for event in events(profiling))
    if ours == "track" and theirs != "times" and not error:
        assert profiled_peak(profiling) == model.peak, (profiled_peak(profiling), model.peak)
    # And all of it works afterwards.
    for measured_again, profiling_again in (
        (OURS[ours](model), profiler("memory")),
        (Tracking(model), profiler("all")),
    ):
        with profiling_again, measured_again:
            model.step()
        measured_again.check()


def nested(model: Model) -> None:
    """Trackers in trackers, ended in any order."""
    outer, middle, inner = Tracking(model), Tracking(model), Tracking(model)
    outer.__enter__()
    first = torch.empty(MIB, dtype=torch.uint8)
    del first
    middle.__enter__()
    with inner:
        model.step()
    inner.check()
    outer.__exit__(None, None, None)
    assert outer.memory.peak["cpu"] == max(MIB, model.peak)
    middle.check()
    middle.__exit__(None, None, None)
    assert outer.memory.live == middle.memory.live == {"cpu": 0}


def in_child(action: Callable[[], None]) -> str:
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            signal.alarm(120)
            action()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return "ok" if status == 0 else f"ended with {status}"


def main() -> None:
    torch.set_num_threads(1)
    for ours in OURS:
        for theirs in PROFILERS:
            for order in (*ORDERS, "error"):
                outcome = in_child(
                    lambda ours=ours, theirs=theirs, order=order: run(ours, theirs, order, order == "error")
                )
                print(ours, theirs, order, outcome)
    print("nested", in_child(lambda: nested(Model())))


if __name__ == "__main__":
    main()
