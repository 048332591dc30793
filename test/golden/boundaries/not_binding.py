# RUN: %python %s | %FileCheck %s
"""The negative twin of marks.py: a budget that does not bind leaves the graph alone."""

import recals
import torch
from torch import nn

net = torch.jit.script(nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 2)))
analysis = recals.passes.analyse(net, (torch.ones(32, 64),))
planned = recals.passes.plan(analysis, "1GiB")
print(planned.graph.str(False))
kinds = [[node.kind() for node in graph.nodes()] for graph in (planned.graph, analysis.graph)]
print("unchanged", kinds[0] == kinds[1])

# CHECK-NOT: recals::
# CHECK: unchanged True
