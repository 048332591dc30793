"""A prediction next to a measurement."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field

from recals.memory import MemoryUse
from recals.plotting import Curve, draw


@dataclass(frozen=True)
class DeviceComparison:
    """Bytes on one device, predicted and measured."""

    predicted_peak: int
    measured_peak: int
    predicted_held: int
    measured_held: int | None
    """None where the tracker was given no model, and so did not see the forward end."""
    predicted_uses: dict[str, int]
    """What the predicted peak consists of, as `DeviceReport.by_use`."""
    predicted: Curve = field(repr=False)
    measured: Curve | None = field(repr=False)
    """None if no curve was recorded. Times are seconds; those of `predicted` are estimates."""

    @property
    def difference(self) -> int:
        """Bytes by which the prediction of the peak is above the measurement."""
        return self.predicted_peak - self.measured_peak


@dataclass(frozen=True)
class Comparison:
    """What `Report.compare` found, by device. `str()` is a text for people."""

    devices: dict[str, DeviceComparison]

    def __str__(self) -> str:
        return "\n".join(line for name, device in self.devices.items() for line in _lines(name, device))

    def plot(self, path: str | os.PathLike[str], *, device: str | None = None) -> None:
        """Draws both curves into a .png or .svg file; the predicted times are stretched to the measured ones, forward
        and backward each if the tracker was given the model. Raises ValueError if no curve was recorded."""
        name = next(iter(self.devices)) if device is None else device
        if name not in self.devices:
            raise ValueError(f"recals: there is nothing about {name!r}, but about {', '.join(self.devices)}")
        chosen = self.devices[name]
        if chosen.measured is None:
            raise ValueError("recals: no curve was measured; record it with track_memory(curve=True)")
        predicted = chosen.predicted.on_the_clock_of(chosen.measured)
        draw(path, [chosen.measured, predicted], title=f"one training step on {name}", budget=None)


@dataclass(frozen=True)
class Prediction:
    """What a report says of one device."""

    curve: Curve
    held: int
    uses: dict[str, int]
    """Bytes at the peak."""


def compare(predicted: Mapping[str, Prediction], tracked: MemoryUse) -> Comparison:
    """`predicted`: by device."""
    held = tracked.held if tracked.has_model else {}
    devices = {}
    for name, prediction in predicted.items():
        devices[name] = DeviceComparison(
            predicted_peak=prediction.curve.peak,
            measured_peak=tracked.peak.get(name, 0),
            predicted_held=prediction.held,
            measured_held=held.get(name, 0) if held else None,
            predicted_uses=prediction.uses,
            predicted=prediction.curve,
            measured=_measured_curve(tracked, name),
        )
    return Comparison(devices)


def _measured_curve(tracked: MemoryUse, device: str) -> Curve | None:
    points = tracked.curve(device) if tracked.has_curve else []
    if not points:
        return None
    live = [size for _, size in points]
    return Curve(
        label="measured",
        seconds=[time for time, _ in points],
        live=live,
        holds="from",
        forward_seconds=tracked.forward_seconds,
        peak=max(live),
        peak_point=live.index(max(live)),
        peak_text="",
    )


def _lines(name: str, device: DeviceComparison) -> list[str]:
    rows = [("", "predicted", "measured", "difference")]
    rows.append(_row(f"{name} peak", device.predicted_peak, device.measured_peak))
    if device.measured_held is not None:
        rows.append(_row(f"{name} at the forward's end", device.predicted_held, device.measured_held))
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    lines = [
        "  ".join([row[0].ljust(widths[0]), *(row[column].rjust(widths[column]) for column in (1, 2, 3))]).rstrip()
        for row in rows
    ]
    lines.append(f"predicted: {_when(device.predicted)}, at {device.predicted.peak_text}")
    uses = ", ".join(f"{size:,} B {use}" for use, size in device.predicted_uses.items() if size)
    lines.append(f"           {uses}")
    if device.measured is not None:
        lines.append(f"measured:  {_when(device.measured)}")
    return lines


def _when(curve: Curve) -> str:
    """When the peak is."""
    start, end, part = 0.0, curve.seconds[-1], "the step"
    if curve.forward_seconds is not None:
        after = curve.seconds[curve.peak_point] > curve.forward_seconds
        start, end = (curve.forward_seconds, end) if after else (start, curve.forward_seconds)
        part = "the backward" if after else "the forward"
    share = (curve.seconds[curve.peak_point] - start) / (end - start) if end > start else 0.0
    return f"{share:.0%} of the way through {part}"


def _row(what: str, predicted: int, measured: int) -> tuple[str, str, str, str]:
    share = f" ({(predicted - measured) / measured:+.1%})" if measured > 0 else ""
    return what, f"{predicted:,} B", f"{measured:,} B", f"{predicted - measured:+,} B{share}"
