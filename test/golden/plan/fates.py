# RUN: %python %s | %FileCheck %s
"""Fates and reasons. A budget that does not bind changes nothing; a tight one drops what is cheap to make again."""

import recals
import torch
from torch import nn

layers = [layer for _ in range(6) for layer in (nn.Linear(256, 256), nn.ReLU())]
net = torch.jit.script(nn.Sequential(*layers, nn.Linear(256, 2)))
analysis = recals.passes.analyse(net, (torch.ones(512, 256),))
for budget in ("100%", "80%"):
    plan = recals.passes.plan(analysis, budget).plan
    device = plan["devices"][0]
    print("budget", budget, "fits", device["peak"] <= device["budget"])
    print("regions", len(plan["regions"]), "replayed", len(plan["nodes_replayed"]))
    for storage in plan["storages"]:
        if storage["slots"]:
            print(storage["fate"], storage["op"], storage["reason"])
try:
    recals.passes.plan(analysis, 1000)
except recals.BudgetError as error:
    print(error)

# CHECK: budget 100% fits True
# CHECK-NEXT: regions 0 replayed 0
# CHECK-NOT: recompute aten
# CHECK: budget 80% fits True
# CHECK-NEXT: regions {{[1-9]}}
# CHECK: recompute aten::relu recomputed: 512.0 KiB
# CHECK: recals: no plan fits into 1000 B (1000 bytes) on cpu. The smallest budget that works is {{.*}} bytes); what sets it is {{.+}}.
