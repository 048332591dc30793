# RUN: %recals-opt %s --parameter='w=f32[128,128]' --input='f32[512,128]' --budget=60% > %t.before
# RUN: %recals-opt %s --parameter='w=f32[128,128]' --input='f32[512,128]' --budget=60% --passes=graph,sizes,plan,boundaries,torch-cse,torch-dce,torch-constant-propagation,torch-inline,verify > %t.after
# RUN: grep -c recals:: %t.before > %t.counts
# RUN: grep -c recals:: %t.after >> %t.counts
# RUN: %FileCheck %s --check-prefix=COUNT < %t.counts
# RUN: %FileCheck %s < %t.after
# RUN: %recals-opt %s --parameter='w=f32[128,128]' --input='f32[512,128]' --budget=60% --passes=graph,sizes,plan,boundaries,torch-cse,torch-dce,torch-constant-propagation,torch-inline,lower --emit=code | %FileCheck %s --check-prefix=LOWER
# Passes of torch leave the boundaries where they are, and what they leave can be lowered. The two equal constants
# below are merged, so the passes did run.

def forward(self, x):
    for i in range(4):
        x = torch.dropout(torch.gelu(torch.mm(x, self.w)), 0.5, True)
    return torch.mm(x, self.w)

# COUNT: [[#MARKS:]]
# COUNT-NEXT: {{^}}[[#MARKS]]{{$}}

# CHECK-COUNT-1: = prim::Constant[value=[0]]()
# CHECK: recals::region(
# CHECK: recals::pack_internal(
# CHECK: recals::end_region()

# LOWER: def recals_forward_region_0(
# LOWER: ops.recals.recompute(
