# RUN: %exit %recals-opt %s --input='f32[8]+grad' --budget=100% --passes=graph,sizes,lower | %FileCheck %s
# RUN: %exit %recals-opt %s --input='f32[8]+grad' --budget=100% --passes=graph,sizes,plan,lower | %FileCheck %s
# RUN: %exit %recals-opt %s --input='f32[8]+grad' --budget=100% --passes=graph,sizes,torch-cse,plan | %FileCheck %s --check-prefix=CHANGED
# RUN: %exit %recals-opt %s --input='f32[8]+grad' --budget=100% --passes=plan | %FileCheck %s --check-prefix=SIZES
# The negative twins of methods.ts: a pass that lacks what it builds on says what is missing.

def forward(self, x):
    return torch.tanh(x) * torch.tanh(x)

# CHECK: the pass 'lower' needs what 'boundaries' makes; put 'boundaries' before it
# CHECK-NEXT: exit 1
# CHANGED: the graph was changed after 'sizes', so 'plan' cannot tell what the step holds
# CHANGED-NEXT: exit 1
# SIZES: the pass 'plan' needs what 'sizes' makes; put 'sizes' before it
# SIZES-NEXT: exit 1
