"""Pictures of memory over time. Needs matplotlib, which is imported only when something is drawn."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

MIB = 2**20
SUFFIXES = (".png", ".svg")


@dataclass(frozen=True)
class Curve:
    """Bytes over the time of a step."""

    label: str
    seconds: list[float]
    """Since the start of the step, ascending."""
    live: list[int]
    """Bytes. `holds` says whether from the time of the same index on, or up to it."""
    holds: Literal["from", "until"]
    forward_seconds: float | None
    """When the forward ends, if that is known."""
    peak: int
    peak_point: int
    """Index of the highest point."""
    peak_text: str
    """What runs there, or ""."""

    def on_the_clock_of(self, other: Curve) -> Curve:
        """The same curve with its times stretched to those of `other`: as a whole, or forward and backward each where
        both curves know the border."""
        whole, others = self.seconds[-1], other.seconds[-1]
        border = self.forward_seconds if other.forward_seconds is not None else None
        if border is None or other.forward_seconds is None or not 0 < border < whole:
            scaled = [_stretched(time, 0, whole, 0, others) for time in self.seconds]
            forward = None
        else:
            forward = other.forward_seconds
            scaled = [
                _stretched(time, 0, border, 0, forward)
                if time <= border
                else _stretched(time, border, whole, forward, others)
                for time in self.seconds
            ]
        return replace(self, seconds=scaled, forward_seconds=forward)


def _stretched(time: float, start: float, end: float, new_start: float, new_end: float) -> float:
    return new_start + (time - start) * (new_end - new_start) / (end - start) if end > start else new_start


def draw(path: str | os.PathLike[str], curves: list[Curve], *, title: str, budget: int | None) -> None:
    """Writes the curves into one picture, the peak of each marked."""
    target = _picture(path)
    figure = _figure()
    axes = figure.add_subplot()
    for number, curve in enumerate(curves):
        color = f"C{number}"
        milliseconds = [0.0, *(time * 1e3 for time in curve.seconds)]
        mebibytes = [0.0, *(size / MIB for size in curve.live)]
        step: Literal["pre", "post"] = "post" if curve.holds == "from" else "pre"
        axes.step(milliseconds, mebibytes, where=step, color=color, linewidth=1, label=curve.label)
        if number == 0:
            axes.fill_between(milliseconds, mebibytes, step=step, color=color, alpha=0.15, linewidth=0)
        at = milliseconds[curve.peak_point + 1]
        if step == "pre":
            at = (milliseconds[curve.peak_point] + at) / 2
        axes.plot(at, curve.peak / MIB, "v", color=color)
        axes.annotate(
            f"{curve.label} peak {curve.peak / MIB:.1f} MiB",
            (at, curve.peak / MIB),
            textcoords="offset points",
            xytext=(0, 8 + 12 * number),
            ha="center",
            fontsize="small",
            color=color,
        )
        if curve.peak_text:
            title += f"\n{curve.label} peak: {curve.peak_text}"
    if curves[0].forward_seconds is not None:
        axes.axvline(curves[0].forward_seconds * 1e3, color="gray", linestyle=":", linewidth=1)
        axes.annotate(
            "end of the forward",
            (curves[0].forward_seconds * 1e3, 0.02),
            xycoords=("data", "axes fraction"),
            rotation=90,
            ha="right",
            va="bottom",
            fontsize="small",
            color="gray",
        )
    if budget is not None:
        axes.axhline(budget / MIB, color="C3", linestyle="--", linewidth=1, label=f"budget {budget / MIB:.1f} MiB")
    top = max([curve.peak for curve in curves] + ([budget] if budget is not None else []))
    axes.set(xlabel="ms", ylabel="MiB above the start", xlim=(0, None), ylim=(0, max(top, 1) / MIB * 1.15))
    axes.set_title(title, fontsize="medium")
    axes.legend(loc="upper right", fontsize="small")
    figure.savefig(target)


def draw_tradeoff(path: str | os.PathLike[str], peaks: list[int], percents: list[float], *, title: str) -> None:
    """Writes plans into one picture: their peaks in bytes, and what they cost in per cent of the step's time."""
    target = _picture(path)
    figure = _figure()
    axes = figure.add_subplot()
    mebibytes = [peak / MIB for peak in peaks]
    # Between two plans the smaller one is what a budget gets.
    axes.step(mebibytes, percents, where="pre", color="C0", linewidth=1)
    axes.plot(mebibytes, percents, ".", color="C0", markersize=4)
    ends = ((0, "plain", "right"), (len(peaks) - 1, "smallest", "left"))
    for index, name, side in ends[: len(peaks)]:
        axes.annotate(
            f"{name}: {mebibytes[index]:.1f} MiB",
            (mebibytes[index], percents[index]),
            textcoords="offset points",
            xytext=(0, 8),
            ha=side,
            fontsize="small",
        )
    axes.set(xlabel="peak, MiB", ylabel="extra time, % of the plain step", xlim=(0, None), ylim=(0, None))
    axes.set_title(title, fontsize="medium")
    figure.savefig(target)


def _picture(path: str | os.PathLike[str]) -> Path:
    target = Path(path)
    if target.suffix.lower() not in SUFFIXES:
        raise ValueError(f"recals: a picture is a .png or an .svg file, not {target.name!r}")
    return target


def _figure() -> Any:
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError(
            "recals: pictures are drawn by matplotlib, which is not installed: pip install matplotlib"
        ) from error
    return Figure(figsize=(9, 5), layout="constrained", dpi=120)
