# RUN: %recals-opt %s --parameter='v=f32[64,64]@cuda:14' --parameter='w=f32[64,64]@cuda:15' --input='f32[256,64]@cuda:14' --workspace-margin=0 --budget='cuda:14=90%' --emit=report 2>%t | %FileCheck %s
# RUN: %FileCheck %s --check-prefix=WARN < %t
# RUN: %recals-opt %s --parameter='v=f32[64,64]@cuda:14' --parameter='w=f32[64,64]@cuda:15' --input='f32[256,64]@cuda:14' --workspace-margin=0 --budget='cuda:15=100%' -o %t.json --emit=report-json 2>&1 | %FileCheck %s --check-prefix=NONE --allow-empty
# RUN: not %recals-opt %s --parameter='v=f32[64,64]@cuda:14' --parameter='w=f32[64,64]@cuda:15' --input='f32[256,64]@cuda:14' --budget='cuda:14=100%' -o %t.pt 2>&1 | %FileCheck %s --check-prefix=DATA
# Two branches from one activation, on two devices: in the backward each hands its gradient back when it is ready.

def forward(self, x):
    x = torch.tanh(torch.mm(x, self.v))
    far = torch.sigmoid(torch.mm(x.to("cuda:15"), self.w))
    near = torch.tanh(torch.sigmoid(torch.tanh(torch.mm(x, self.v))))
    return (near + far.to("cuda:14")).sum()

# CHECK: cuda:14: peak
# CHECK: budget
# CHECK: it may be higher: {{.*}} and ToCopyBackward0 (overlap.ts:9) may run at the same time
# CHECK: cuda:15: peak
# CHECK-NOT: it may be higher

# WARN: recals-opt: warning: cuda:14 may hold more than was planned: {{.*}} and ToCopyBackward0 (overlap.ts:9) may run at the same time, in the backward's threads of two devices. Under torch.autograd.set_multithreading_enabled(False) the plan holds.
# WARN-NOT: {{.}}

# DATA: a module with tensors on cuda:14, which is not here, has no data to write

# NONE-NOT: {{.}}
