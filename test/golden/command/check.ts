# RUN: %recals-opt %s --parameter='w=f32[128,128]' --input='f32[512,128]' --budget=60% -o %t.pt
# RUN: %exit %recals-opt %t.pt --check > %t.out
# RUN: %exit %recals-opt %t.pt --check --budget=1KiB >> %t.out
# RUN: %exit %recals-opt %s --parameter='w=f32[128,128]' --input='f32[512,128]' --check --budget=99%% >> %t.out
# RUN: %exit %recals-opt %s --parameter='w=f32[128,128]' --check >> %t.out
# RUN: %FileCheck %s < %t.out
# The exit code tells whether a file, as it is, meets its own budget, or another.

def forward(self, x):
    for i in range(3):
        x = torch.dropout(torch.gelu(torch.mm(x, self.w)), 0.5, True)
    return torch.mm(x, self.w)

# CHECK: cpu: the step peaks at [[#PEAK:]] bytes ({{.*}}), within the budget of [[#]] bytes
# CHECK-NEXT: exit 0
# CHECK-NEXT: cpu: the step peaks at [[#PEAK]] bytes ({{.*}}), above the budget of [[#mul(1,1024)]] bytes (1.0 KiB)
# CHECK-NEXT: exit 3
# CHECK-NEXT: above the budget
# CHECK-NEXT: exit 3
# CHECK-NEXT: it is a plain module without a budget of its own; give one with --budget
# CHECK-NEXT: exit 1
