# RUN: %python %s | %FileCheck %s
"""A plan in the graph: regions, what stays, what is made again, and their bytes. Taken out, the graph is as before."""

import recals
import torch
from torch import nn

layers = [layer for _ in range(4) for layer in (nn.Linear(128, 128), nn.GELU(), nn.Dropout(0.5))]
net = torch.jit.script(nn.Sequential(*layers, nn.Linear(128, 2)))
analysis = recals.passes.analyse(net, (torch.ones(512, 128),))
planned = recals.passes.plan(analysis, "55%")
print("PLANNED", planned.graph.str(False))
copy = planned.graph.copy()
print("REMOVED", recals.passes.remove_boundaries(copy), str(copy).count("recals::"))
print("AGAIN", recals.passes.remove_boundaries(copy))
ops = [[node.kind() for node in graph.nodes() if "aten" in node.kind()] for graph in (copy, analysis.graph)]
print("SAME OPS", ops[0] == ops[1])

# Passes of torch leave the boundaries where they are.
count = str(planned.graph).count("recals::")
for run in (torch._C._jit_pass_cse, torch._C._jit_pass_constant_propagation, torch._C._jit_pass_dce):
    run(planned.graph)
print("AFTER TORCH'S PASSES", str(planned.graph).count("recals::") == count)

# CHECK-LABEL: PLANNED
# CHECK: %[[ALWAYS:[0-9]+]] : int = prim::Constant[value=2147483647]()
# CHECK: %[[BYTES:[0-9]+]] : int = prim::Constant[value=262144]()
# CHECK: recals::region(%{{.*}})
# CHECK: %[[Y:[a-z_.0-9]+]] : Tensor = aten::dropout{{.*}}
# CHECK: : Tensor = recals::recompute(%{{.*}}, %[[BYTES]], %[[ALWAYS]])
# CHECK: recals::end_region()
# CHECK-LABEL: REMOVED
# CHECK-SAME: True 0
# CHECK: AGAIN False
# CHECK: SAME OPS True
# CHECK: AFTER TORCH'S PASSES True
