"""Points that others reach on the workloads of peers.py: peak and time of the step as shares of the plain step's.

Measured with torch 2.11.0 on one thread of another machine of this kind; noise of the times is about five per cent.
Points with wrong gradients (torch.compile's budgets below 1 with dropout) and points without a time are left out.

The networks are the same but for `uneven`, of which only a description is known. On the one here no plan can be below
half of the peak, and plans of whole blocks not below .83 (peers.py measures them), so its points say little.
"""

from __future__ import annotations

from typing import NamedTuple


class Point(NamedTuple):
    who: str
    peak: float
    time: float


def _buildz(*points: tuple[float, float]) -> list[Point]:
    return [Point("buildz-gpu 0.1.5", *point) for point in points]


def _checkpoint(second: tuple[float, float], every: tuple[float, float]) -> list[Point]:
    return [Point("checkpoint, every 2nd block", *second), Point("checkpoint, all blocks", *every)]


def _blocks(*points: tuple[float, float]) -> list[Point]:
    return [Point("best plan of whole blocks", *point) for point in points]


POINTS: dict[str, list[Point]] = {
    "mlp": [
        *_buildz((0.54, 1.34), (0.31, 1.96), (0.21, 3.12)),
        *_checkpoint((0.69, 1.26), (0.41, 1.44)),
        *_blocks((0.75, 1.12), (0.5, 1.28), (0.25, 1.56)),
    ],
    "resnet18": [
        *_buildz((0.71, 1.23), (0.48, 1.60)),
        *_checkpoint((0.54, 1.27), (0.48, 1.41)),
        *_blocks((0.75, 1.07)),
    ],
    "resnet50": [
        *_buildz((0.64, 1.21), (0.38, 1.58), (0.29, 2.41)),
        *_checkpoint((0.65, 1.23), (0.35, 1.39)),
        *_blocks((0.75, 1.07), (0.5, 1.16), (0.25, 1.50)),
    ],
    "gpt": [
        *_buildz((0.54, 1.21), (0.35, 1.96), (0.24, 3.08)),
        *_checkpoint((0.55, 1.23), (0.21, 1.41)),
        Point("ckptplan 0.1.0rc1", 0.54, 1.23),
        Point("ckptplan 0.1.0rc1", 0.24, 1.40),
        *_blocks((0.75, 1.13), (0.5, 1.30), (0.25, 1.45)),
    ],
    "encoder": [
        *_buildz((0.53, 1.30), (0.31, 1.88), (0.20, 3.15)),
        *_checkpoint((0.52, 1.24), (0.21, 1.50)),
        *_blocks((0.75, 1.13), (0.5, 1.35), (0.25, 1.47)),
    ],
    "unet": [
        *_buildz((0.64, 1.23), (0.55, 1.74), (0.43, 2.66)),
        *_checkpoint((0.75, 1.20), (0.64, 1.37)),
    ],
    "uneven": [
        *_buildz((0.62, 1.29), (0.47, 1.98), (0.40, 3.42)),
        *_checkpoint((0.69, 1.10), (0.56, 1.28)),
        *_blocks((0.75, 1.07), (0.5, 1.19)),
    ],
}
"""By the names of peers.WORKLOADS; `encoder` is six layers of torch's TransformerEncoderLayer."""
