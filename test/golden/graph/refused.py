# RUN: %python %s | %FileCheck %s
"""What depends on data is refused, with the op and its line."""

import recals
import torch
from torch import Tensor, nn


class Branch(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        if bool(x.sum() > 0):
            x = x * 2
        return x


class Number(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * float(x.max())


for kind in (Branch, Number):
    try:
        recals.passes.analyse(torch.jit.script(kind()), (torch.ones(4, requires_grad=True),))
    except recals.RecalsError as error:
        print(kind.__name__, error)

# CHECK: Branch recals: aten::Bool at refused.py:{{[0-9]+}} depends on the values in a tensor
# CHECK: Number recals: aten::Float at refused.py:{{[0-9]+}} depends on the values in a tensor
