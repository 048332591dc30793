# RUN: %recals-opt %s --parameter='w=f32[128,128]' --input='f32[512,128]' --budget=50% --emit=report > %t.new
# RUN: %recals-opt %s --parameter='w=f32[128,128]' --input='f32[512,128]' --budget=50% -o %t.pt
# RUN: %recals-opt %t.pt --emit=report > %t.file
# RUN: diff %t.new %t.file
# RUN: %FileCheck %s < %t.file
# RUN: %exit %recals-opt %t.pt --emit=report --input='f32[256,128]' | %FileCheck %s --check-prefix=OTHER
# A plan just made and the one in the file have one report; inputs that were not planned for have none.

def forward(self, x):
    for i in range(3):
        x = torch.dropout(torch.gelu(torch.mm(x, self.w)), 0.5, True)
    return torch.mm(x, self.w)

# CHECK: cpu: peak {{.*}} ([[#PEAK:]] bytes)
# CHECK: budget {{.*}} ([[#]] bytes)
# CHECK-NEXT: without a plan the peak is {{.*}} ([[#]] bytes)
# CHECK: recomputing {{.*}} ms
# CHECK: recomputed

# OTHER: the plan of this module was made for (f32[512, 128]@cpu), not for (f32[256, 128]@cpu)
# OTHER-NEXT: exit 1
