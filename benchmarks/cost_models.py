"""How well each cost model foretells what a plan costs.

    python benchmarks/cost_models.py [--workloads gpt resnet18 ...] [--fraction 0.5] [--steps 7]

For every workload and cost model, on the plan that is made with it:

- the estimated and the measured time of the forward,
- how much of the forward's time the model puts on the wrong ops, next to what torch's profiler sees in a training step:
  half the sum of the differences of the ops' shares,
- the estimated and the measured time of a step under the plan, relative to the plain step.

Times are those of the thread, which stand still while others have the processor; so there is one thread. Prints a
table in Markdown.
"""

import argparse
import statistics
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples"))

import models
import recals
import training


def forward_seconds(trainee: training.Trainee, steps: int) -> float:
    """Median time of the forward in a training step."""
    times = []
    for number in range(steps):
        inputs, targets = trainee.workload.make_batch(number)
        start = time.thread_time()
        output = trainee.module(*inputs)
        times.append(time.thread_time() - start)
        trainee.workload.loss(output, targets).backward()
    return statistics.median(times)


def op_shares(seconds: Mapping[str, float]) -> dict[str, float]:
    whole = sum(seconds.values())
    return {op: part / whole for op, part in seconds.items()}


def measured_ops(trainee: training.Trainee, steps: int) -> dict[str, float]:
    """Seconds by op in the forward of a training step, the least of some."""
    least: dict[str, float] = {}
    for number in range(steps):
        inputs, targets = trainee.workload.make_batch(number)
        with torch.autograd.profiler.profile() as profile:
            output = trainee.module(*inputs)
        trainee.workload.loss(output, targets).backward()
        once: Counter[str] = Counter()
        for event in profile.function_events:
            if event.cpu_parent is None:
                once[plain_name(event.name)] += event.cpu_time_total * 1e-6
        for op, seconds in once.items():
            least[op] = min(least.get(op, seconds), seconds)
    return least


def estimated_ops(report: recals.Report) -> dict[str, float]:
    """Seconds by op in the forward."""
    ops: Counter[str] = Counter()
    start = 0.0
    for point in report.device().curve:
        if point.place.phase == "forward":
            ops[plain_name(point.place.op)] += point.seconds - start
        start = point.seconds
    return ops


def plain_name(op: str) -> str:
    """In-place ops cost what their twins cost, and the passes may have put one in place of the other."""
    return op.rstrip("_")


def misplaced(estimated: Mapping[str, float], measured: Mapping[str, float]) -> float:
    shares, real = op_shares(estimated), op_shares(measured)
    return sum(abs(shares.get(op, 0) - real.get(op, 0)) for op in {*shares, *real}) / 2


def thread_seconds(step: Callable[[], Any]) -> float:
    start = time.thread_time()
    step()
    return time.thread_time() - start


def relative_time(plain: training.Trainee, budgeted: training.Trainee, pairs: int) -> float:
    """Median over neighbouring pairs of steps."""
    ratios = []
    for number in range(pairs + 1):
        before = thread_seconds(plain.gradients(number))
        ratios.append(thread_seconds(budgeted.gradients(number)) / before)
    return statistics.median(ratios[1:])


def rows(name: str, fraction: float, steps: int, calibrated: Path) -> list[str]:
    workload = models.build(name)
    inputs, _ = workload.make_batch(0)
    plain = training.plain(workload)
    measured_forward = forward_seconds(plain, steps)
    ops = measured_ops(plain, steps)
    scripted = torch.jit.script(workload.module)
    peak = recals.estimate(scripted, inputs).peak["cpu"]
    lines = []
    for label, cost_model in (("built-in", "built-in"), ("calibrated", str(calibrated)), ("profile", "profile")):
        agreed = training.budgeted(workload, int(peak * fraction), cost_model)
        plan = recals.plan_of(agreed.trainee.module)
        step = plan["plain_forward_seconds"] + plan["plain_backward_seconds"]
        wrong = misplaced(estimated_ops(recals.estimate(scripted, inputs, cost_model=cost_model)), ops)
        estimated = 1 + plan["recompute_seconds"] / step
        measured = relative_time(plain, agreed.trainee, steps)
        lines.append(
            f"| {name} | {label} | {plan['plain_forward_seconds'] * 1e3:.0f} | {measured_forward * 1e3:.0f} "
            f"| {plan['plain_forward_seconds'] / measured_forward:.2f} | {wrong:.0%} "
            f"| {estimated:.2f} | {measured:.2f} | {estimated / measured:.2f} |"
        )
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workloads", nargs="+", choices=models.BUILDERS, default=list(models.BUILDERS))
    parser.add_argument("--fraction", type=float, default=0.5, help="budget as a fraction of the plain peak")
    parser.add_argument("--steps", type=int, default=7)
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore", category=DeprecationWarning, message=".*torch.jit.*")
    warnings.filterwarnings("ignore", category=FutureWarning, message=".*torch.jit.*")
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        calibrated = recals.calibrate(path=Path(folder) / "cpu.json")
        print("| workload | cost model | forward ms | measured | ratio | on wrong ops | step | measured | ratio |")
        print("|-|-|-:|-:|-:|-:|-:|-:|-:|")
        for name in arguments.workloads:
            for line in rows(name, arguments.fraction, arguments.steps, calibrated):
                print(line, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
