# RUN: echo '{"aten::gelu": "must_save", "%%mm.3": "must_recompute"}' > %t.json
# RUN: %recals-opt %s --parameter='w=f32[128,128]' --input='f32[512,128]' --budget=100% --pins=%t.json -o %t.pt
# RUN: %recals-opt %t.pt --explain gelu.1 | %FileCheck %s
# RUN: %recals-opt %t.pt --explain mm.3 | %FileCheck %s --check-prefix=MM
# RUN: %recals-opt %t.pt --emit=plan | %FileCheck %s --check-prefix=PLAN
# RUN: echo '{"gelu": "must_save"}' > %t.all.json
# RUN: %exit %recals-opt %s --parameter='w=f32[128,128]' --input='f32[512,128]' --budget=10% --pins=%t.all.json | %FileCheck %s --check-prefix=TIGHT
# RUN: echo '{"aten::gelo": "must_save"}' > %t.bad.json
# RUN: %exit %recals-opt %s --parameter='w=f32[128,128]' --input='f32[512,128]' --budget=50% --pins=%t.bad.json | %FileCheck %s --check-prefix=BAD
# RUN: echo '{"gelu": "keep"}' > %t.word.json
# RUN: %exit %recals-opt %s --parameter='w=f32[128,128]' --input='f32[512,128]' --budget=50% --pins=%t.word.json | %FileCheck %s --check-prefix=WORD
# RUN: %exit %recals-opt %s --parameter='w=f32[128,128]' --input='f32[512,128]' --pins=%t.json | %FileCheck %s --check-prefix=USAGE
# Pins are followed where the whole plain step would fit, stand in the file, and make budgets infeasible.

def forward(self, x):
    for i in range(3):
        x = torch.gelu(torch.mm(x, self.w))
    return torch.mm(x, self.w)

# CHECK: %gelu.1: keep
# CHECK-NEXT: , as the pin 'aten::gelu' (must_save) asks
# MM: %mm.3: recompute
# MM-NEXT: , as the pin '%mm.3' (must_recompute) asks

# PLAN: "pins": {
# PLAN-NEXT: "aten::gelu": "must_save",
# PLAN-NEXT: "%mm.3": "must_recompute"
# PLAN-NEXT: },
# PLAN: "name": "%gelu.1"
# PLAN: "policy": "must_save",
# PLAN-NEXT: "pin": "aten::gelu",

# TIGHT: no plan fits into {{.*}} The smallest budget that works is {{.*}} Without the pins it would be
# TIGHT-NEXT: exit 3
# BAD: the pin 'aten::gelo' names nothing in this step; near names are 'aten::gelu'
# BAD-NEXT: exit 1
# WORD: word.json: the pin 'gelu': 'keep' is no policy; there are must_save, prefer_save, prefer_recompute and must_recompute
# WORD-NEXT: exit 1
# USAGE: --pins says what a plan must do, so it needs a --budget, or --emit=pareto
# USAGE-NEXT: exit 2
