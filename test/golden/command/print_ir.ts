# RUN: %recals-opt %s --input='f32[8]+grad' --budget=100% --print-ir-before=graph --print-ir-after=sizes 2>&1 >%t.out | %FileCheck %s --check-prefix=NAMED
# RUN: %FileCheck %s --check-prefix=OUT < %t.out
# RUN: %recals-opt %s --input='f32[8]+grad' --budget=100% --print-ir-after=all 2>&1 >/dev/null | %FileCheck %s --check-prefix=ALL
# RUN: %recals-opt %s --input='f32[8]+grad' --passes=graph,torch-cse,torch-cse,torch-dce --print-ir-after-change 2>&1 >/dev/null | %FileCheck %s --check-prefix=CHANGE
# What is asked for is on stdout, what is printed on the way on stderr.

def forward(self, x):
    return torch.tanh(x) * torch.tanh(x)

# NAMED: # before graph
# NAMED-NEXT: # method forward
# NAMED: # after sizes
# NAMED-NEXT: graph(%self : __torch__.Module,
# NAMED-NOT: # after

# OUT-NOT: # before
# OUT: graph(%self
# OUT-NOT: # after

# ALL: # after graph
# ALL: # after sizes
# ALL: # after plan
# ALL: # after boundaries
# ALL-NOT: # after

# CHANGE: # after graph
# CHANGE-COUNT-2: aten::tanh(
# CHANGE: # after torch-cse
# CHANGE: aten::tanh(
# CHANGE-NOT: aten::tanh(
# CHANGE-NOT: # after
