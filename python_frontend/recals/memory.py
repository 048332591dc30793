"""Exact measurement of what torch's allocators hand out."""

from __future__ import annotations

from types import TracebackType
from typing import Any

from recals._load import _C


class MemoryUse:
    """Bytes above the start, per device, seen by the allocators of torch in this thread and those that work for it.

    Use it as a context manager; the figures can be read inside the block and after it.
    """

    def __init__(self, curve: bool = False) -> None:
        self._with_curve = curve
        self._tracker: Any = None
        self._last: dict[str, dict[str, Any]] = {}

    def __enter__(self) -> MemoryUse:
        self._tracker = _C.MemoryTracker.start(self._with_curve)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._last = self._tracker.devices()
        self._tracker.stop()
        self._tracker = None

    def _devices(self) -> dict[str, dict[str, Any]]:
        return self._tracker.devices() if self._tracker is not None else self._last

    @property
    def peak(self) -> dict[str, int]:
        """Device -> the most bytes above the start so far."""
        return {name: device["peak"] for name, device in self._devices().items()}

    @property
    def live(self) -> dict[str, int]:
        """Device -> bytes above the start now (at the end of the block, after it)."""
        return {name: device["live"] for name, device in self._devices().items()}

    def curve(self, device: str = "cpu") -> list[tuple[float, int]]:
        """(seconds since the start, bytes above it) after every allocation and free; needs ``curve=True``."""
        if not self._with_curve:
            raise ValueError("recals: the curve is recorded by track_memory(curve=True)")
        entry = self._devices().get(device)
        return list(entry["curve"]) if entry is not None else []

    def reset_peak(self) -> None:
        """Let peaks count from here (inside the block)."""
        self._tracker.reset_peak()


def track_memory(curve: bool = False) -> MemoryUse:
    """A context manager that gives the exact peak of bytes above its start, per device."""
    return MemoryUse(curve)
