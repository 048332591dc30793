# RUN: %recals-opt %s --parameter='w=f32[128,128]' --input='f32[512,128]' --budget=60% -o %t.small.pt
# RUN: %recals-opt %t.small.pt --restore -o %t.pt
# RUN: %recals-opt %s --parameter='w=f32[128,128]' --emit=code > %t.before
# RUN: %recals-opt %t.pt --emit=code > %t.after
# RUN: diff %t.before %t.after
# RUN: %FileCheck %s < %t.after
# RUN: %exit %recals-opt %t.pt --restore -o %t.none.pt > %t.out
# RUN: %exit ls %t.none.pt >> %t.out
# RUN: %FileCheck %s --check-prefix=NOTHING < %t.out
# The plain module again; what was never rewritten is refused, and nothing is written.

def forward(self, x):
    for i in range(3):
        x = torch.dropout(torch.gelu(torch.mm(x, self.w)), 0.5, True)
    return torch.mm(x, self.w)

# CHECK: def forward(self,
# CHECK-NOT: recals

# NOTHING: this module was not made by recals.optimize, there is nothing to restore
# NOTHING-NEXT: exit 1
# NOTHING-NEXT: No such file
