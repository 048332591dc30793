# RUN: %python %s | %FileCheck %s
"""Bytes of a step, by hand: 4 bytes an element."""

import recals
import torch
from torch import nn

net = torch.jit.script(nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Dropout(0.5), nn.Linear(128, 2)))
report = recals.estimate(net, (torch.ones(256, 64),))
print("rows 256")
print("held", report.held["cpu"])
for path, share in sorted(report.devices["cpu"].by_module.items()):
    print("module", path, share.held)
print("largest", report.storages[0].bytes)

# CHECK: rows [[#ROWS:]]
# Saved: the result of relu, the mask of dropout, and dropout's result (the last linear's input). The output is held.
# CHECK: held [[#add(mul(ROWS,1536),mul(ROWS,8))]]
# CHECK: module 1 [[#mul(ROWS,512)]]
# CHECK: module 2 [[#mul(ROWS,1024)]]
# CHECK: module 3 [[#mul(ROWS,8)]]
# CHECK: largest [[#mul(ROWS,512)]]
