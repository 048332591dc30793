# RUN: %python %s | %FileCheck %s
"""Packs in the graph: the form, the bytes before and after. What nobody reads again needs none."""

import recals
import torch
from torch import nn

layers = [layer for _ in range(4) for layer in (nn.Linear(128, 128), nn.ReLU(), nn.Dropout(0.5))]
net = torch.jit.script(nn.Sequential(*layers, nn.Linear(128, 2)))
analysis = recals.passes.analyse(net, (torch.ones(512, 128),))
planned = recals.passes.plan(analysis, "50%")
print("PLANNED", planned.graph.str(False))
fates = {storage["fate"] for storage in planned.plan["storages"] if storage["op"] == "aten::relu"}
print("RELUS", *fates)

# CHECK-LABEL: PLANNED
# CHECK-DAG: %[[SIGNS:[0-9]+]] : str = prim::Constant[value="where positive"]()
# CHECK-DAG: %[[NOISE:[0-9]+]] : str = prim::Constant[value="two values"]()
# CHECK-DAG: %[[BYTES:[0-9]+]] : int = prim::Constant[value=262144]()
# CHECK-DAG: %[[BITS:[0-9]+]] : int = prim::Constant[value=8192]()
# CHECK-DAG: %[[HEAD:[0-9]+]] : int = prim::Constant[value=8208]()
# CHECK: recals::region(
# CHECK: %[[Y:[a-z_.0-9]+]] : Tensor = aten::relu(
# CHECK-NEXT: %[[R:[a-z_.0-9]+]] : Tensor = recals::pack(%[[Y]], %[[SIGNS]], %[[BYTES]], %[[BITS]], %{{[0-9]+}})
# CHECK: %[[D:[a-z_.0-9]+]] : Tensor = aten::dropout(%[[R]], {{.*}}
# CHECK-NEXT: : Tensor = recals::pack_internal(%[[D]], %{{[0-9]+}}, %[[NOISE]], %[[BYTES]], %[[HEAD]], %{{[0-9]+}})
# CHECK: recals::end_region()
# CHECK-LABEL: RELUS
# CHECK-SAME: pack
# CHECK-NOT: recompute
