# RUN: %recals-opt %s --parameter='w=f32[64,64]' --input='f32[256,64]' --target-device=cuda:0 --workspace-margin=0 --budget='cuda:0=90%' --emit=report 2>%t | %FileCheck %s
# RUN: %FileCheck %s --check-prefix=WARN < %t
# RUN: %recals-opt %s --parameter='w=f32[64,64]' --input='f32[256,64]' --target-device=cuda:0 --workspace-margin=0 --budget='cuda:1=100%' -o %t.json --emit=report-json 2>&1 | %FileCheck %s --check-prefix=NONE --allow-empty
# Two branches from one activation, on two devices: in the backward each hands its gradient back when it is ready.

def forward(self, x):
    x = torch.tanh(torch.mm(x, self.w))
    far = torch.sigmoid(torch.tanh(x.to("cuda:1")))
    near = torch.tanh(torch.sigmoid(torch.tanh(torch.mm(x, self.w))))
    return (near + far.to("cuda:0")).sum()

# CHECK: cuda:0: peak
# CHECK: budget
# CHECK: it may be higher: {{.*}} and ToCopyBackward0 (overlap.ts:8) may run at the same time
# CHECK: cuda:1: peak
# CHECK-NOT: it may be higher

# WARN: recals-opt: warning: cuda:0 may hold more than was planned: {{.*}} and ToCopyBackward0 (overlap.ts:8) may run at the same time, in the backward's threads of two devices. Under torch.autograd.set_multithreading_enabled(False) the plan holds.
# WARN-NOT: {{.}}

# NONE-NOT: {{.}}
