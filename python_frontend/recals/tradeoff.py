"""What less memory costs, over the whole range."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from recals._load import _C
from recals.arguments import (
    CostModel,
    Device,
    GpuDevices,
    Pins,
    Scratch,
    device_name,
    pin_texts,
    step_options,
)
from recals.loss import Loss
from recals.modules import step_of
from recals.plotting import draw_tradeoff


@dataclass(frozen=True)
class ParetoPoint:
    """One plan."""

    peak: int
    """Bytes: the most that the step holds on the device."""
    held: int
    """Bytes held at the end of the forward."""
    extra_seconds: float
    """Estimated: for recomputing, packing and unpacking."""
    fraction: float
    """`peak`, of the plain step's."""


@dataclass(frozen=True)
class ParetoCurve:
    """Plans of one device from the plain step down: peaks fall and times grow. `str()` is a table."""

    device: str
    points: list[ParetoPoint] = field(repr=False)
    """The first is the plain step (as far as pins allow it), the last about what "min" is as a budget."""
    plain_peak: int
    """Bytes."""
    plain_seconds: float
    """Estimated: forward, loss and backward of the plain step."""
    cost_model: dict[str, str | None]
    """What the seconds come from: "name", and "hash" of its numbers."""
    _text: str = field(repr=False)
    _json: str = field(repr=False)

    def __str__(self) -> str:
        return self._text

    def table(self) -> str:
        """At most twenty of the points, evenly spread over the peaks, as text."""
        return self._text

    def to_json(self) -> str:
        """All points, in the format of docs/budgets.md."""
        return self._json

    def save(self, path: str | os.PathLike[str]) -> None:
        """Draws peak against extra time into a .png or .svg file.

        Raises ImportError without matplotlib, ValueError for another suffix.
        """
        share = 100 / self.plain_seconds if self.plain_seconds else 0
        draw_tradeoff(
            path,
            [point.peak for point in self.points],
            [point.extra_seconds * share for point in self.points],
            title=f"what less memory costs on {self.device}",
        )


def pareto(
    module: nn.Module,
    example_inputs: Any = None,
    *,
    example_kwargs: dict[str, Any] | None = None,
    device: Device | None = None,
    pins: Pins | None = None,
    method: str = "forward",
    cost_model: CostModel | None = None,
    target_device: Device | None = None,
    workspace_margin: int | None = None,
    scratch: Scratch | None = None,
    loss: Loss | None = None,
    preserve_rng_state: bool = True,
    gpu_devices: GpuDevices = "all",
) -> ParetoCurve:
    """Plans for every peak that there are plans for, and what they cost: one search, about what one tight budget takes.

    `optimize` with the peak of a point as its budget finds a plan within it that is predicted to be as fast or faster,
    because it spends more on its one budget. Nothing is rewritten.

    Args:
        device: the device whose bytes count, the first one of the step by default; others have no limit.

    The other arguments and errors are those of `optimize`. Raises ValueError for a device that the step does not use.
    """
    step, inputs, loss = step_of(module, "pareto", example_inputs, example_kwargs, method, loss, under_its_plan=False)
    options = step_options(
        cost_model=cost_model,
        target_device=target_device,
        workspace_margin=workspace_margin,
        scratch=scratch,
        loss=loss,
        preserve_rng_state=preserve_rng_state,
        gpu_devices=gpu_devices,
    )
    analysed = _C.analyse(step, method, inputs, options)
    options.pins = pin_texts(pins, analysed)
    handle = _C.pareto(analysed, options, "" if device is None else device_name(device))
    text: str = handle.json()
    document: dict[str, Any] = json.loads(text)
    return ParetoCurve(
        device=document["device"],
        points=[ParetoPoint(**point) for point in document["points"]],
        plain_peak=document["plain_peak"],
        plain_seconds=document["plain_seconds"],
        cost_model=document["cost_model"],
        _text=handle.text().rstrip("\n"),
        _json=text,
    )
