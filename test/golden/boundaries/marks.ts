# RUN: %recals-opt %s --parameter='w=f32[128,128]' --parameter='v=f32[2,128]' --input='f32[512,128]' --budget=55% | %FileCheck %s
# RUN: %recals-opt %s --parameter='w=f32[128,128]' --parameter='v=f32[2,128]' --input='f32[512,128]' --budget=55% --passes=graph,sizes,plan,boundaries,remove-boundaries | %FileCheck %s --check-prefix=REMOVED
# A plan in the graph: regions, what stays, what is made again, and their bytes. Taken out, the graph is as before.

def forward(self, x):
    for i in range(4):
        x = torch.dropout(torch.gelu(torch.linear(x, self.w)), 0.5, True)
    return torch.linear(x, self.v)

# 512 rows of 128 floats.
# CHECK: %[[BYTES:[0-9]+]] : int = prim::Constant[value=[[#mul(mul(512,128),4)]]]()
# CHECK: recals::region(%{{.*}})
# CHECK: : Tensor = recals::recompute(%{{.*}}, %[[BYTES]], %{{[0-9]+}})
# CHECK: recals::end_region()

# REMOVED-NOT: recals::
# REMOVED-COUNT-5: aten::linear(
# REMOVED-NOT: aten::linear(
# REMOVED: return (
