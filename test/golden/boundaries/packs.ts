# RUN: %recals-opt %s --parameter='w=f32[128,128]' --input='f32[512,128]' --budget=50% | %FileCheck %s
# Packs in the graph: the form, the bytes before and after.

def forward(self, x):
    for i in range(4):
        x = torch.dropout(torch.relu(torch.linear(x, self.w)), 0.5, True)
    return torch.linear(x, self.w)

# CHECK-DAG: %[[SIGNS:[0-9]+]] : str = prim::Constant[value="where positive"]()
# CHECK-DAG: %[[NOISE:[0-9]+]] : str = prim::Constant[value="two values"]()
# CHECK-DAG: %[[BYTES:[0-9]+]] : int = prim::Constant[value=[[#mul(mul(512,128),4)]]]()
# CHECK-DAG: %[[BITS:[0-9]+]] : int = prim::Constant[value=[[#div(mul(512,128),8)]]]()
# CHECK-DAG: %[[HEAD:[0-9]+]] : int = prim::Constant[value=[[#add(16,div(mul(512,128),8))]]]()
# CHECK: recals::region(
# CHECK-DAG: : Tensor = recals::pack(%{{.*}}, %[[SIGNS]], %[[BYTES]], %[[BITS]], %{{[0-9]+}})
# CHECK-DAG: : Tensor = recals::pack_internal(%{{.*}}, %{{[0-9]+}}, %[[NOISE]], %[[BYTES]], %[[HEAD]], %{{[0-9]+}})
# CHECK: recals::end_region()
