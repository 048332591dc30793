# RUN: %recals-opt %s --parameter='w=f32[128,128]' --input='f32[512,128]' --budget=60% --emit=dot | %FileCheck %s --check-prefix=DOT
# RUN: %recals-opt %s --parameter='w=f32[128,128]' --input='f32[512,128]' --budget=60% --emit=trace -o %t.json
# RUN: %python -m json.tool %t.json | %FileCheck %s --check-prefix=TRACE
# RUN: %recals-opt %s --parameter='w=f32[128,128]' --input='f32[512,128]' --emit=dot | %FileCheck %s --check-prefix=PLAIN
# RUN: %exit %recals-opt %s --parameter='w=f32[128,128]' --emit=dot --passes=verify | %FileCheck %s --check-prefix=NOTHING
# The step for Graphviz, and its memory for Perfetto; without a budget the plain step.

def forward(self, x):
    for i in range(3):
        x = torch.dropout(torch.gelu(torch.mm(x, self.w)), 0.5, True)
    return torch.mm(x, self.w)

# DOT: digraph step {
# DOT: subgraph cluster_region_0 {
# DOT: n[[#N:]] [label="aten::{{.*}}, 256.0 KiB", fillcolor=orange];
# DOT: n0 -> n1;

# TRACE: "name": "plain"
# TRACE: "name": "activation memory on cpu"
# TRACE: "bytes": [[#mul(mul(512,128),4)]]
# TRACE: "name": "aten::mm"
# TRACE: "name": "planned"

# PLAIN: digraph step {
# PLAIN-NOT: cluster
# PLAIN-NOT: orange
# PLAIN: }

# NOTHING: there is nothing to draw before the pass 'sizes'
# NOTHING-NEXT: exit 1
