# RUN: %recals-opt %s --parameter='w=f32[128,128]' --input='f32[512,128]' --budget=60% -o %t.pt
# RUN: %recals-opt %t.pt --explain gelu.1 | %FileCheck %s
# RUN: %recals-opt %s --parameter='w=f32[128,128]' --input='f32[512,128]' --budget=60% --explain '%%dropout saved[0]' | %FileCheck %s --check-prefix=MASK
# RUN: %exit %recals-opt %t.pt --explain drop | %FileCheck %s --check-prefix=NONE
# Of a file, or of a plan just made.

def forward(self, x):
    for i in range(3):
        x = torch.dropout(torch.gelu(torch.mm(x, self.w)), 0.5, True)
    return torch.mm(x, self.w)

# CHECK: %gelu.1: {{keep|recompute|pack}}
# CHECK-NEXT: {{[a-z]}}
# CHECK-NEXT: [[#mul(mul(512,128),4)]] bytes on cpu, made by aten::gelu at explain.ts:[[#@LINE-5]]
# CHECK-NEXT: saved by autograd [[#]] time

# MASK: %dropout saved[0]: {{keep|recompute|pack}}
# MASK: made by aten::dropout

# NONE: the plan knows no value 'drop'; there are %dropout.1 saved[0], %dropout.1,
# NONE-NEXT: exit 1
