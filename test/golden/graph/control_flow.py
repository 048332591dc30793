# RUN: %python %s | %FileCheck %s
"""Calls are entered, loops over modules unrolled, branches that shapes decide taken."""

import recals
import torch
from torch import Tensor, nn


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(8, 8), nn.Linear(8, 8)])

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
            x = torch.relu(x) if x.size(0) > 2 else torch.sigmoid(x)
        return x


net = torch.jit.script(Net())
print("LARGE", recals.passes.analyse(net, (torch.ones(4, 8),)).graph.str(False))
print("SMALL", recals.passes.analyse(net, (torch.ones(2, 8),)).graph.str(False))

# CHECK-LABEL: LARGE
# CHECK: graph(%self : {{.*}}Net,
# CHECK-NEXT: %[[X:.*]] : Tensor):
# CHECK-NOT: prim::If
# CHECK-NOT: prim::Loop
# CHECK: %[[Y0:.*]] : Tensor = aten::linear(%[[X]],
# CHECK: %[[Z0:.*]] : Tensor = aten::relu(%[[Y0]])
# CHECK: %[[Y1:.*]] : Tensor = aten::linear(%[[Z0]],
# CHECK: %[[Z1:.*]] : Tensor = aten::relu(%[[Y1]])
# CHECK-NEXT: return (%[[Z1]])

# CHECK-LABEL: SMALL
# CHECK-NOT: aten::relu
# CHECK: aten::sigmoid
# CHECK: aten::sigmoid
