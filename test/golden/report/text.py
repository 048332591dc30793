# RUN: %python %s | %FileCheck %s
"""A report of the plain step, and one of a plan."""

import recals
import torch
from torch import nn

torch.manual_seed(0)
net = torch.jit.script(nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 128), nn.GELU(), nn.Linear(128, 2)))
inputs = (torch.ones(256, 64),)
report = recals.estimate(net, inputs)
print("peak", report.peak["cpu"])
print(report)
try:
    recals.optimize(net, inputs, 1)
except recals.BudgetError as error:
    budget = error.smallest
print("budget", budget["cpu"])
print(recals.estimate(recals.optimize(net, inputs, budget), inputs))

# CHECK: peak [[#PEAK:]]
# CHECK: cpu: peak {{.*}} ([[#PEAK]] bytes)
# CHECK-NEXT: , the derivative of aten::{{.*}} in the backward
# Saved: results of both first linears and of both gelus, 256 x 128 floats each. The output is held.
# CHECK-NEXT: held at the end of the forward {{.*}} ([[#mul(256,2048)+2048]] bytes)
# CHECK-NEXT: estimated: forward {{.*}} ms, backward {{.*}} ms (cost model: built-in cpu)
# CHECK: by use
# CHECK-NEXT: 512.0 KiB {{.*}} saved
# CHECK-NEXT: 2.0 KiB {{.*}} output
# CHECK: in all
# CHECK: by module
# CHECK: in all
# CHECK: by op
# CHECK: aten::gelu
# CHECK: by dtype
# CHECK-NEXT: f32
# CHECK: largest storages of the forward
# CHECK-NEXT: 128.0 KiB {{.*}} f32 {{.*}} of {{[0-3]}} at {{.*}}.py:
# CHECK: budget [[#BUDGET:]]
# CHECK: cpu: peak {{.*}} ([[#]] bytes)
# CHECK: budget {{.*}} ([[#BUDGET]] bytes)
# CHECK-NEXT: without a plan the peak is {{.*}} ([[#PEAK]] bytes)
# CHECK: recomputing {{.*}} ms
