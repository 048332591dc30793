# RUN: %python %s | %FileCheck %s
"""Boundaries as methods: readable, saved as code, and the plain method beside them."""

import recals
import torch
from torch import nn

layers = [layer for _ in range(4) for layer in (nn.Linear(128, 128), nn.GELU(), nn.Dropout(0.5))]
net = torch.jit.script(nn.Sequential(*layers, nn.Linear(128, 2)))
rewritten = recals.optimize(net, (torch.ones(512, 128),), "55%")
print("FORWARD", rewritten.code)
print("STEP", rewritten.recals_forward_step.code)
print("REGION", rewritten.recals_forward_region_0.code)
print("PLAIN", rewritten.recals_forward_plain.code)
print("RESTORED", recals.restore(rewritten).code == net.code, hasattr(recals.restore(rewritten), "recals_plan"))

# CHECK-LABEL: FORWARD
# CHECK: ["2.training=True"{{.*}}]
# CHECK: [[PLANNED:_[0-9]+]] = ops.recals.enter(self, (input,), "(f32[512, 128]@cpu)", {{.*}}, 2)
# CHECK: if [[PLANNED]]:
# CHECK: ops.recals.checkpoint(self, "recals_forward_step", [input])
# CHECK: else:
# CHECK: (self).recals_forward_plain(input, )
# CHECK-LABEL: STEP
# CHECK: ops.recals.checkpoint(self, "recals_forward_region_0", [{{.*}}])
# CHECK-LABEL: REGION
# CHECK: [[PACKED:dropout[0-9]+]] = ops.recals.pack_internal(dropout, [0], "two values", [[#mul(512,512)]], [[#add(16,div(mul(512,128),8))]])
# CHECK: ops.recals.recompute({{.*}}, [[#mul(512,512)]])
# CHECK-LABEL: PLAIN
# CHECK-NOT: ops.recals
# CHECK-LABEL: RESTORED
# CHECK-SAME: True False
