"""Scratch memory of convolutions, which depends on whose kernel runs: no step takes more than is predicted."""

from typing import NamedTuple

import pytest
import recals
import torch
from torch import Tensor, nn
from training import measured_peak, prepare_gradients


class Shape(NamedTuple):
    inside: int
    outside: int
    kernel: int
    side: int
    batch: int = 4
    stride: int = 1
    padding: int = 0
    groups: int = 1
    dimensions: int = 2
    dtype: torch.dtype = torch.float32
    channels_last: bool = False


SHAPES = {
    "bias": Shape(32, 1024, 1, 4),
    "one small sample": Shape(72, 24, 3, 14, batch=1, padding=1),
    "one small sample, solid": Shape(72, 1, 3, 8, batch=1, padding=1, dimensions=3),
    "one small sample, channels last": Shape(72, 24, 3, 14, batch=1, padding=1, channels_last=True),
    "one small sample, many weights": Shape(512, 512, 3, 2, batch=1, padding=1),
    "doubles": Shape(16, 32, 3, 14, padding=1, dtype=torch.float64),
    "doubles, 1x1": Shape(64, 32, 1, 14, dtype=torch.float64),
    "doubles, groups": Shape(16, 32, 3, 14, padding=1, groups=2, dtype=torch.float64),
    "doubles, groups, solid": Shape(128, 4, 3, 8, batch=2, groups=2, dimensions=3, dtype=torch.float64),
    "wide border": Shape(8, 64, 7, 2, padding=3),
    "one channel": Shape(1, 32, 3, 16, padding=1),
    "strided, odd": Shape(32, 64, 3, 3, stride=2, padding=1),
    "as large as the input": Shape(128, 64, 7, 7, batch=2),
    "depthwise, solid": Shape(32, 32, 3, 8, padding=1, groups=32, dimensions=3),
    "groups, channels last": Shape(32, 64, 3, 16, padding=1, groups=32, channels_last=True),
    "few channels, solid": Shape(8, 16, 3, 3, padding=1, dimensions=3),
}
EXACT = {"one small sample", "one small sample, many weights", "doubles", "doubles, 1x1"}
"""Predicted to within the numbers that ops wrap on their way."""


class Weighted(nn.Module):
    """Returns a scalar whose gradient is laid out like the convolution's output."""

    weights: Tensor

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        kind = {2: nn.Conv2d, 3: nn.Conv3d}[shape.dimensions]
        self.convolution = kind(
            shape.inside, shape.outside, shape.kernel, stride=shape.stride, padding=shape.padding, groups=shape.groups
        )
        self.register_buffer("weights", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        return (self.convolution(x) * self.weights).sum()


@pytest.mark.parametrize("name", SHAPES)
def test_convolutions(name: str) -> None:
    shape = SHAPES[name]
    module = Weighted(shape).to(shape.dtype)
    x = torch.randn(shape.batch, shape.inside, *[shape.side] * shape.dimensions, dtype=shape.dtype)
    if shape.channels_last:
        module.to(memory_format=torch.channels_last)
        x = x.contiguous(memory_format=torch.channels_last)
    module.weights = torch.randn_like(module.convolution(x)).detach()
    x.requires_grad_()
    x.grad = torch.zeros_like(x)
    predicted = recals.estimate(torch.jit.script(module), (x,)).peak["cpu"]
    prepare_gradients(module)
    measured = measured_peak(lambda: module(x).backward())
    assert measured <= predicted
    if name in EXACT:
        assert predicted - measured <= 256
