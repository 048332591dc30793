# RUN: %recals-opt %s --parameter='w=f32[64,64]' --input='f32[32,64]' | grep -o ' = .*(' > %t.plain
# RUN: %recals-opt %s --parameter='w=f32[64,64]' --input='f32[32,64]' --budget=1GiB | grep -o ' = .*(' > %t.planned
# RUN: diff %t.plain %t.planned
# RUN: %FileCheck %s < %t.planned
# The negative twin of marks.ts: a budget that does not bind leaves the graph alone.

def forward(self, x):
    return torch.linear(torch.gelu(torch.linear(x, self.w)), self.w)

# CHECK-NOT: recals::
# CHECK-COUNT-2: aten::linear(
# CHECK-NOT: recals::
