"""Exact measurement of what torch's allocators hand out."""

from __future__ import annotations

import warnings
from types import TracebackType
from typing import Any

import torch

from recals._load import _C


class MemoryUse:
    """Bytes above the start, per device, seen by the allocators of torch in this thread and those that work for it.

    Use it as a context manager; the figures can be read inside the block and after it. Blocks of several, and of
    torch's profiler, may lie inside one another or overlap, and each sees all of its bytes. Accelerators are the
    exception: what is allocated there is not seen where a profiler is active already, and a `UserWarning` says so.
    """

    def __init__(self, model: torch.nn.Module | None = None, *, curve: bool = False) -> None:
        self._model = model
        self._with_curve = curve
        self._tracker: Any = None
        self._hook: Any = None
        self._last: dict[str, dict[str, Any]] = {}
        self._held: dict[str, int] = {}
        self._forward_seconds: float | None = None

    def __enter__(self) -> MemoryUse:
        if self._tracker is not None:
            raise RuntimeError("recals: this track_memory() is active already; make another one for a block inside it")
        self._held = {}
        self._forward_seconds = None
        self._tracker = _C.MemoryTracker.start(self._with_curve)
        if self._model is not None:
            # Scripted modules take no hooks of their own.
            self._hook = torch.nn.modules.module.register_module_forward_hook(self._forward_ended)
        if not self._tracker.hears_accelerators:
            warnings.warn(
                "recals: one of torch's profilers is active, so track_memory() sees the CPU's bytes but not those of "
                "accelerators; enter it before the profiler, or outside of it",
                stacklevel=2,
            )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._hook is not None:
            self._hook.remove()
            self._hook = None
        tracker, self._tracker = self._tracker, None
        tracker.stop()
        self._last = tracker.devices()

    def _forward_ended(self, module: torch.nn.Module, inputs: Any, output: Any) -> None:
        if module is self._model and self._tracker is not None:
            self._held = self._tracker.live()
            self._forward_seconds = self._tracker.seconds()

    def _devices(self) -> dict[str, dict[str, Any]]:
        return self._tracker.devices() if self._tracker is not None else self._last

    @property
    def has_curve(self) -> bool:
        return self._with_curve

    @property
    def has_model(self) -> bool:
        return self._model is not None

    @property
    def peak(self) -> dict[str, int]:
        """Device -> the most bytes above the start so far."""
        return {name: device["peak"] for name, device in self._devices().items()}

    @property
    def live(self) -> dict[str, int]:
        """Device -> bytes above the start now (at the end of the block, after it)."""
        return {name: device["live"] for name, device in self._devices().items()}

    @property
    def held(self) -> dict[str, int]:
        """Device -> bytes above the start when the model's forward ended, the last one in the block; empty before one
        has. Needs ``track_memory(model)``."""
        if self._model is None:
            raise ValueError("recals: the end of the forward is seen by track_memory(model)")
        return dict(self._held)

    @property
    def forward_seconds(self) -> float | None:
        """When that was, in seconds since the start; None if no forward ended, or without a model."""
        return self._forward_seconds

    def curve(self, device: str = "cpu") -> list[tuple[float, int]]:
        """(seconds since the start, bytes above it) after every allocation and free; needs ``curve=True``. At most
        65536 points: of a longer run the largest of every 2, 4, 8, ... neighbours."""
        if not self._with_curve:
            raise ValueError("recals: the curve is recorded by track_memory(curve=True)")
        entry = self._devices().get(device)
        return list(entry["curve"]) if entry is not None else []

    def reset_peak(self) -> None:
        """Let peaks count from here (inside the block)."""
        self._tracker.reset_peak()


def track_memory(model: torch.nn.Module | None = None, *, curve: bool = False) -> MemoryUse:
    """A context manager that gives the exact peak of bytes above its start, per device.

    Args:
        model: notes also what is held when a forward of this module ends.
        curve: keeps the bytes over time.
    """
    return MemoryUse(model, curve=curve)
