"""What the plain step holds, before it is run."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import torch

from recals._load import _C
from recals.arguments import example_tuple, script_module


@dataclass(frozen=True)
class LargestStorage:
    """One allocation of the forward."""

    name: str
    bytes: int
    op: str
    module: str
    where: str


@dataclass(frozen=True)
class Estimate:
    """The memory of one plain training step above parameters, their gradients, and inputs. All sizes are bytes."""

    peak: dict[str, int]
    """Device -> the most that is live at once over forward, loss and backward."""
    held: dict[str, int]
    """Device -> live at the end of the forward."""
    peak_at: dict[str, str]
    """Device -> the node that runs at the peak."""
    largest_storage: LargestStorage
    per_module: dict[str, int]
    """Path of the module -> bytes that its ops keep for the backward; "" is the module itself."""

    def __str__(self) -> str:
        lines = []
        for device, peak in self.peak.items():
            lines.append(f"{device}: peak {_mib(peak)} (at {self.peak_at[device]}), held {_mib(self.held[device])}")
        largest = self.largest_storage
        place = " ".join(part for part in (largest.module, largest.where) if part)
        lines.append(f"largest storage: {largest.name} {_mib(largest.bytes)} by {largest.op} {place}".rstrip())
        lines.append("kept for the backward, by module:")
        for path, size in sorted(self.per_module.items(), key=lambda item: -item[1]):
            lines.append(f"  {_mib(size):>12}  {path or '(the module itself)'}")
        return "\n".join(lines)


def _mib(size: int) -> str:
    return f"{size / 2**20:.2f} MiB"


def estimate(module: torch.jit.ScriptModule, example_inputs: Any, *, method: str = "forward") -> Estimate:
    """Runs the plain step on meta tensors (no data, no memory) and reports what it would hold.

    Arguments and errors are those of `optimize`.
    """
    module = script_module(module, "estimate")
    report = json.loads(_C.analyse(module._c, method, example_tuple(example_inputs)).estimate())
    largest = max(report["storages"], key=lambda storage: storage["bytes"])
    devices = report["devices"]
    return Estimate(
        peak={device["name"]: device["peak"] for device in devices},
        held={device["name"]: device["held"] for device in devices},
        peak_at={device["name"]: device["peak_at"] for device in devices},
        largest_storage=LargestStorage(**{key: largest[key] for key in ("name", "bytes", "op", "module", "where")}),
        per_module=report["saved_per_module"],
    )
