"""Recals next to the plain step and torch.utils.checkpoint, all in one run on one machine.

    python benchmarks/peers.py [--workloads gpt mlp] [--fractions 0.75 0.5 0.25] [--pairs 9] [--size full]

For each workload: the plain eager step; torch.utils.checkpoint around every second block and around every block; Recals
at fractions of the plain peak; and Recals at the very peak that each use of checkpoint reached. Prints one markdown
table. Times are medians over neighbouring pairs with a plain step, so a busy machine disturbs them little.
"""

import argparse
import copy
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples"))

import models
import recals
import torch
import training
from checkpointing import checkpoint_blocks
from models import Workload

WORKLOADS: dict[str, dict[str, float]] = {
    "mlp": {},
    "resnet18": {},
    "resnet50": {},
    "gpt": {"vocabulary": 1000},
    "encoder": {},
    "unet": {"dropout": 0.0},
    "uneven": {},
}
"""What to build, and where it differs from the examples."""


def checkpointed(name: str, workload: Workload, every: int) -> training.Trainee:
    """A copy of the module with checkpoint around every `every`-th block."""
    return training.Trainee(workload, checkpoint_blocks(name, copy.deepcopy(workload.module), every))


@dataclass
class Result:
    """A row of the table."""

    workload: str
    contender: str
    budget: int | None
    held: int
    peak: int
    plain_peak: int
    ratio: float
    same_gradients: bool
    planning: float | None = None
    note: str = ""

    def cells(self) -> list[str]:
        if not self.peak:
            return [self.workload, self.contender, *[""] * 7, self.note]
        return [
            self.workload,
            self.contender,
            "" if self.budget is None else f"{self.budget / 1e6:.1f}",
            f"{self.held / 1e6:.1f}",
            f"{self.peak / 1e6:.1f}",
            f"{self.peak / self.plain_peak:.2f}",
            f"{self.ratio:.2f}",
            "yes" if self.same_gradients else "NO",
            "" if self.planning is None else f"{self.planning:.1f}",
            self.note,
        ]


HEAD = ["workload", "contender", "budget MB", "held MB", "peak MB", "of plain", "time", "same bits", "plan s", ""]


def held_after_forward(trainee: training.Trainee) -> int:
    inputs, _ = trainee.workload.make_batch(0)
    with recals.track_memory() as memory:
        output = trainee.module(*inputs)
        held = memory.live.get("cpu", 0)
        del output
    return held


def same_gradients(plain: training.Trainee, other: training.Trainee) -> bool:
    """Whether one step of each, from the same parameters, gives the same bits; names may differ, the order may not."""
    plain.gradients(0)()
    other.gradients(0)()
    pairs = zip(plain.module.parameters(), other.module.parameters(), strict=True)
    return all(training.same_bits(mine.grad, theirs.grad) for mine, theirs in pairs)


def compare(
    name: str, contender: str, plain: training.Trainee, plain_peak: int, other: training.Trainee, pairs: int
) -> Result:
    same = same_gradients(plain, other)
    peak = training.measured_peak(other.gradients(1))
    ratio = training.paired_ratio(plain.gradients, other.gradients, pairs)
    return Result(name, contender, None, held_after_forward(other), peak, plain_peak, ratio, same)


def within(name: str, contender: str, plain: training.Trainee, plain_peak: int, budget: int, pairs: int) -> Result:
    start = time.perf_counter()
    try:
        agreed = training.budgeted(plain.workload, budget)
    except recals.RecalsError as error:
        failed = Result(name, contender, budget, 0, 0, plain_peak, float("nan"), False)
        failed.note = f"FAILED: {error}".split(";")[0]
        return failed
    planning = time.perf_counter() - start
    result = compare(name, contender, plain, plain_peak, agreed.trainee, pairs)
    result.budget = agreed.granted
    result.planning = planning
    if not agreed.feasible:
        result.note = f"smallest; asked for {budget / 1e6:.1f}"
    if result.peak > agreed.granted:
        result.note = "OVER BUDGET"
    return result


def run(name: str, size: str, fractions: Iterable[float], pairs: int, report: Callable[[Result], None]) -> None:
    workload = models.build(name, size, **(WORKLOADS[name] if size == "full" else {}))
    plain = training.plain(workload)
    plain.gradients(0)()
    plain_peak = training.measured_peak(plain.gradients(1))
    seconds = statistics.median(training.seconds(plain.gradients(number)) for number in range(pairs))
    row = Result(name, "plain", None, held_after_forward(plain), plain_peak, plain_peak, 1.0, True)
    row.note = f"{seconds * 1e3:.0f} ms a step"
    report(row)

    for every, contender in ((2, "checkpoint every 2nd block"), (1, "checkpoint all blocks")):
        theirs = compare(name, contender, plain, plain_peak, checkpointed(name, workload, every), pairs)
        report(theirs)
        report(within(name, f"Recals at the peak of {contender}", plain, plain_peak, theirs.peak, pairs))
    for fraction in fractions:
        report(within(name, f"Recals at {fraction:.0%}", plain, plain_peak, int(plain_peak * fraction), pairs))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workloads", nargs="+", default=list(WORKLOADS), choices=list(WORKLOADS))
    parser.add_argument("--fractions", nargs="+", type=float, default=[0.75, 0.50, 0.25])
    parser.add_argument("--pairs", type=int, default=9, help="pairs of steps for each time ratio")
    parser.add_argument("--size", default="full", choices=["full", "small"])
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()

    warnings.filterwarnings("ignore", category=FutureWarning, module="torch.jit")
    torch.set_num_threads(options.threads)
    broken = False

    def report(result: Result) -> None:
        nonlocal broken
        broken = broken or (
            result.contender.startswith("Recals") and (not result.same_gradients or "OVER" in result.note)
        )
        print(f"| {' | '.join(result.cells())} |", flush=True)

    print(f"torch {torch.__version__}, {options.threads} thread(s), {options.size} size\n")
    print(f"| {' | '.join(HEAD)} |")
    print(f"|{'|'.join('-' if number < 2 else '-:' for number in range(len(HEAD)))}|")
    for name in options.workloads:
        run(name, options.size, options.fractions, options.pairs, report)
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
