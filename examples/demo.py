"""Trains three models plain and within 75, 50 and 33 % of their own peak, and shows what that costs.

    python examples/demo.py [--models resnet18 gpt unet] [--steps 12] [--threads 1] [--out demo-out]

Prints one table, writes a picture of the memory over one step for each model, and exits with 1 if a promise is
broken: a measured peak above its budget, a prediction below the measured peak or more than 10 % above it, a gradient,
parameter or buffer that differs in a bit, or memory that a step leaves behind.
"""

import argparse
import statistics
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import models
import torch
import training

FRACTIONS = (0.75, 0.50, 0.33)
PREDICTION_MARGIN = 1.10


@dataclass
class Row:
    """A line of the table: one model at one budget, next to its plain twin."""

    model: str
    fraction: float
    budget: int
    feasible: bool
    predicted: int
    measured: int
    plain_peak: int
    ratio: float
    plain_seconds: float
    difference: float
    plain_loss: float
    loss: float
    curve: list[tuple[float, int]]
    broken: list[str] = field(default_factory=list)


def progress(text: str) -> None:
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)


def recorded(step: Callable[[], torch.Tensor], losses: list[float]) -> Callable[[], None]:
    return lambda: losses.append(float(step()))


def run(name: str, fraction: float, plain_peak: int, steps: int) -> Row:
    """Trains the plain and the budgeted copy of a model side by side for `steps` steps."""
    workload = models.build(name)
    plain = training.plain(workload)
    agreed = training.budgeted(workload, int(plain_peak * fraction))
    budgeted = agreed.trainee

    first = training.measure(budgeted.gradients(0), curve=True)
    plain.gradients(0)()
    difference = training.largest_gradient_difference(plain.module, budgeted.module)

    ratios, plain_times = [], []
    for number in range(1, steps + 1):
        times: dict[str, float] = {}
        for side in ("plain", "budgeted") if number % 2 else ("budgeted", "plain"):
            step = (plain if side == "plain" else budgeted).gradients(number)
            times[side] = training.seconds(step)
        ratios.append(times["budgeted"] / times["plain"])
        plain_times.append(times["plain"])
        difference = max(difference, training.largest_gradient_difference(plain.module, budgeted.module))
        plain.optimizer.step()
        budgeted.optimizer.step()

    losses: list[float] = []
    for trainee in (plain, budgeted):
        last = training.measure(recorded(trainee.gradients(steps + 1), losses), curve=True)
    plain_loss, loss = losses

    row = Row(
        model=name,
        fraction=fraction,
        budget=agreed.granted,
        feasible=agreed.feasible,
        predicted=agreed.predicted,
        measured=max(first.peak, last.peak),
        plain_peak=plain_peak,
        ratio=statistics.median(ratios),
        plain_seconds=statistics.median(plain_times),
        difference=difference,
        plain_loss=plain_loss,
        loss=loss,
        curve=last.curve,
    )
    if row.measured > row.budget:
        row.broken.append(f"measured peak is {row.measured - row.budget} bytes above the budget")
    if row.predicted < row.measured:
        row.broken.append(f"predicted peak is {row.measured - row.predicted} bytes below the measured one")
    if row.predicted > PREDICTION_MARGIN * row.measured:
        row.broken.append(f"predicted peak is {row.predicted / row.measured - 1:.1%} above the measured one")
    if row.difference != 0:
        row.broken.append(f"gradients differ by up to {row.difference:g}")
    if row.loss != row.plain_loss:
        row.broken.append(f"losses differ: {row.plain_loss!r} and {row.loss!r}")
    if differing := training.differing_state(plain.module, budgeted.module):
        row.broken.append(f"after {steps} steps these differ: {', '.join(differing[:3])} (of {len(differing)})")
    if last.left:
        row.broken.append(f"{last.left} bytes are left after the step")
    return row


def mebibytes(count: int) -> str:
    return f"{count / 2**20:.1f}"


def table(rows: list[Row], steps: int) -> str:
    head = ["model", "budget", "", "predicted", "measured", "plain peak", "time", "gradient", f"loss after {steps}", ""]
    units = ["", "MiB", "", "MiB", "MiB", "MiB", "ratio", "difference", "plain", "budgeted"]
    lines = [head, units]
    for row in rows:
        share = row.budget / row.plain_peak
        lines.append(
            [
                row.model,
                mebibytes(row.budget),
                f"{row.fraction:.0%}" if row.feasible else f"{share:.0%}*",
                mebibytes(row.predicted),
                mebibytes(row.measured),
                mebibytes(row.plain_peak),
                f"{row.ratio:.2f}",
                f"{row.difference:g}",
                f"{row.plain_loss:.6f}",
                f"{row.loss:.6f}",
            ]
        )
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    texts = []
    for number, line in enumerate(lines):
        cells = [line[0].ljust(widths[0])] + [
            cell.rjust(width) for cell, width in zip(line[1:], widths[1:], strict=True)
        ]
        texts.append("  ".join(cells).rstrip())
        if number == 1:
            texts.append("-" * (sum(widths) + 2 * len(widths) - 2))
    if any(not row.feasible for row in rows):
        texts.append("* the smallest feasible budget, which is above what was asked for")
    return "\n".join(texts)


def draw(path: Path, model: str, plain_curve: list[tuple[float, int]], rows: list[Row]) -> None:
    """The bytes held over one step, plain and budgeted, with the budgets as dashed lines."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(9, 4.5))
    curves: list[tuple[str, list[tuple[float, int]], int | None]] = [("plain", plain_curve, None)]
    curves += [(f"{row.budget / row.plain_peak:.0%} of the plain peak", row.curve, row.budget) for row in rows]
    for label, curve, budget in curves:
        times = [1e3 * moment for moment, _ in curve]
        held = [count / 2**20 for _, count in curve]
        (line,) = axes.step(times, held, where="post", linewidth=1.1, label=label)
        if budget is not None:
            axes.axhline(budget / 2**20, color=line.get_color(), linestyle="--", linewidth=0.8)
    axes.set(xlabel="milliseconds since the step began", ylabel="MiB above the baseline", title=model)
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False)
    figure.tight_layout()
    figure.savefig(path, dpi=130)
    plt.close(figure)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", default=["resnet18", "gpt", "unet"], choices=sorted(models.BUILDERS))
    parser.add_argument("--steps", type=int, default=12, help="optimizer steps of each run")
    parser.add_argument("--threads", type=int, default=1, help="more only pay on an idle machine")
    parser.add_argument("--out", type=Path, default=Path("demo-out"), help="folder of the pictures")
    options = parser.parse_args()

    warnings.filterwarnings("ignore", category=FutureWarning, module="torch.jit")
    torch.set_num_threads(options.threads)
    options.out.mkdir(parents=True, exist_ok=True)
    rows: list[Row] = []
    pictures: list[Path] = []
    for name in options.models:
        progress(f"{name}: plain")
        plain = training.plain(models.build(name))
        plain.gradients(0)()
        memory = training.measure(plain.gradients(1), curve=True)
        of_model = []
        for fraction in FRACTIONS:
            progress(f"{name}: {fraction:.0%} of {mebibytes(memory.peak)} MiB")
            of_model.append(run(name, fraction, memory.peak, options.steps))
        pictures.append(options.out / f"{name}.png")
        draw(pictures[-1], name, memory.curve, of_model)
        rows += of_model
    progress("")

    print(table(rows, options.steps))
    print(f"\nMemory over one step: {', '.join(map(str, pictures))}")
    broken = [f"{row.model} at {row.fraction:.0%}: {text}" for row in rows for text in row.broken]
    for text in broken:
        print(f"BROKEN  {text}", file=sys.stderr)
    if not broken:
        print("Every peak is within its budget, and every gradient, parameter and buffer is the same bit for bit.")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
