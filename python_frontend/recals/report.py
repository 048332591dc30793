"""What a training step holds, when, and for whom."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from typing import Any

from recals.comparison import Comparison, Prediction, compare
from recals.memory import MemoryUse
from recals.plotting import Curve, draw


@dataclass(frozen=True)
class Place:
    """What runs at a moment of the step."""

    phase: str
    """"forward", "loss", "backward", or "replay": a node that runs again, inside the backward."""
    op: str
    """"aten::relu", in the backward the autograd node's name, or "(loss)"."""
    forward_op: str
    """Of an autograd node: the op whose derivative it is."""
    module: str
    """Its path, "" for the module itself, "(outside the module)" for the loss."""
    where: str
    """"model.py:12", or ""."""

    def __str__(self) -> str:
        text = self.op + (f", the derivative of {self.forward_op}" if self.forward_op else "")
        text += f" of {self.module}" if self.module and not self.module.startswith("(") else ""
        return text + (f" at {self.where}" if self.where else "")


@dataclass(frozen=True)
class Share:
    """Bytes of one group at two moments."""

    held: int
    """At the end of the forward."""
    peak: int
    """At the peak."""


@dataclass(frozen=True)
class Point:
    """One moment of the step: a node, an autograd node, or a node that runs again."""

    place: Place
    seconds: float
    """Estimated, from the start of the step to the end of this moment."""
    live: int
    """Bytes at its end."""
    most: int
    """The most bytes within it."""


@dataclass(frozen=True)
class Storage:
    """One allocation of the forward that outlived its op."""

    name: str
    """As in the plan: "%relu.1", or "%dropout.1 saved[0]" for what the op saved unseen."""
    device: str
    bytes: int
    dtype: str
    """"f32", ..., or "other" where no op returned it as a tensor."""
    op: str
    module: str
    where: str
    use: str
    """A key of `DeviceReport.by_use`."""
    slots: int
    """How many autograd nodes saved it."""
    at_peak: bool
    """Whether it is live at the peak of its device."""


@dataclass(frozen=True)
class DeviceReport:
    """The bytes of a step on one device, above parameters, their gradients, and inputs. Each of the four groupings adds
    up to `held` and `peak`, and the highest point of `curve` is `peak`."""

    name: str
    peak: int
    """The most that is live at once over forward, loss and backward."""
    held: int
    """Live at the end of the forward."""
    budget: int | None
    """What the plan was made for; None without one."""
    plain_peak: int | None
    """The peak without the plan; None if there is no plan."""
    overlap: str | None
    """What may run at the same time, in the backward's threads of two devices, so that this one may hold more than is
    said here (docs/memory-model.md); None: nothing, the order of the backward is given."""
    peak_at: Place
    peak_point: int
    """Index into `curve`."""
    by_use: dict[str, Share]
    """Keys: saved, output, temporary, workspace, gradient, recomputed, loss (docs/reports.md)."""
    by_module: dict[str, Share]
    by_op: dict[str, Share]
    by_dtype: dict[str, Share]
    curve: list[Point] = field(repr=False)


@dataclass(frozen=True)
class Report:
    """The memory of one training step, as `recals.estimate` predicts it. `str()` is a text for people.

    All sizes are bytes.
    """

    devices: dict[str, DeviceReport]
    storages: list[Storage] = field(repr=False)
    """Largest first."""
    seconds: dict[str, float]
    """Estimated: "forward", "backward" (loss included), "recompute"."""
    cost_model: dict[str, str | None]
    """What the seconds come from: "name", and "hash" of its numbers."""
    _text: str = field(repr=False)
    _json: str = field(repr=False)

    @property
    def peak(self) -> dict[str, int]:
        """Device -> the most that is live at once."""
        return {name: device.peak for name, device in self.devices.items()}

    @property
    def held(self) -> dict[str, int]:
        """Device -> live at the end of the forward."""
        return {name: device.held for name, device in self.devices.items()}

    def __str__(self) -> str:
        return self._text

    def to_json(self) -> str:
        """All of it, in the format of docs/reports.md."""
        return self._json

    def plot(self, path: str | os.PathLike[str], *, device: str | None = None, budget: int | None = None) -> None:
        """Draws the bytes over the estimated time of the step into a .png or .svg file, with the peak marked.

        Args:
            path: the file; its suffix decides what it becomes.
            device: the device to draw; the first one by default.
            budget: bytes at which a line is drawn; by default the plan's budget, if there is one.

        Raises ImportError without matplotlib, ValueError for another suffix or device.
        """
        chosen = self.device(device)
        limit = chosen.budget if budget is None else budget
        draw(path, [predicted_curve(chosen)], title=f"one training step on {chosen.name}", budget=limit)

    def compare(self, tracked: MemoryUse) -> Comparison:
        """This prediction next to what `recals.track_memory` measured of one step. `str()` of the result says how far
        apart they are; its `plot(path)` draws both, if the curve was recorded."""
        predictions = {
            name: Prediction(
                predicted_curve(device), device.held, {use: share.peak for use, share in device.by_use.items()}
            )
            for name, device in self.devices.items()
        }
        return compare(predictions, tracked)

    def device(self, name: str | None = None) -> DeviceReport:
        """The report of a device; of the first one by default."""
        if name is None:
            return next(iter(self.devices.values()))
        if name not in self.devices:
            raise ValueError(f"recals: the step does not run on {name!r}, but on {', '.join(self.devices)}")
        return self.devices[name]


def predicted_curve(device: DeviceReport) -> Curve:
    """The curve of a report as a picture needs it."""
    forward = [point.seconds for point in device.curve if point.place.phase == "forward"]
    return Curve(
        label="predicted",
        seconds=[point.seconds for point in device.curve],
        live=[point.most for point in device.curve],
        holds="until",
        forward_seconds=forward[-1] if forward else None,
        peak=device.peak,
        peak_point=device.peak_point,
        peak_text=str(device.peak_at),
    )


def report_from(handle: Any) -> Report:
    """The extension's report as a `Report`."""
    text: str = handle.json()
    document: dict[str, Any] = json.loads(text)
    devices = [_device(entry) for entry in document["devices"]]
    return Report(
        devices={device.name: device for device in devices},
        storages=[Storage(**entry) for entry in document["storages"]],
        seconds=document["seconds"],
        cost_model=document["cost_model"],
        _text=handle.text(10).rstrip("\n"),
        _json=text,
    )


def _device(entry: dict[str, Any]) -> DeviceReport:
    return DeviceReport(
        name=entry["name"],
        peak=entry["peak"],
        held=entry["held"],
        budget=entry["budget"],
        plain_peak=entry["plain_peak"],
        overlap=entry["overlap"],
        peak_at=Place(**entry["peak_at"]),
        peak_point=entry["peak_point"],
        by_use=_shares(entry["by_use"]),
        by_module=_shares(entry["by_module"]),
        by_op=_shares(entry["by_op"]),
        by_dtype=_shares(entry["by_dtype"]),
        curve=[_point(point) for point in entry["curve"]],
    )


def _shares(entries: list[dict[str, Any]]) -> dict[str, Share]:
    return {entry["name"]: Share(entry["held"], entry["peak"]) for entry in entries}


def _point(entry: dict[str, Any]) -> Point:
    numbers = {key: entry.pop(key) for key in ("seconds", "live", "most")}
    return Point(place=Place(**entry), **numbers)
