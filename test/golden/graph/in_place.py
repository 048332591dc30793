# RUN: %python %s | %FileCheck %s
"""In-place ops on local values become out-of-place ones, unless another view of the storage is read later."""

import recals
import torch
from torch import Tensor, nn


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(8, 8))
        self.register_buffer("steps", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.steps.add_(1)
        y = torch.mm(x, self.weight)
        y.relu_()
        y += x
        z = torch.mm(y, self.weight)
        z[:, 0].zero_()
        return z


print(recals.passes.analyse(torch.jit.script(Net()), (torch.ones(4, 8),)).graph.str(False))

# A buffer outlives the step: written in place.
# CHECK: %[[STEPS:.*]] : Tensor = prim::GetAttr[name="steps"](%self)
# CHECK: aten::add_(%[[STEPS]],
# CHECK: %[[Y:.*]] : Tensor = aten::mm(
# CHECK: %[[R:.*]] : Tensor = aten::relu(%[[Y]])
# CHECK: %[[S:.*]] : Tensor = aten::add(%[[R]],
# CHECK: %[[Z:.*]] : Tensor = aten::mm(%[[S]],
# The column is a view of what is returned: written in place.
# CHECK: %[[C:.*]] : Tensor = aten::select(
# CHECK: aten::zero_(%[[C]])
# CHECK: return (%[[Z]])
