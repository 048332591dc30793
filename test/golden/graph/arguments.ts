# RUN: %recals-opt %s --parameter='w=f32[8]' --input='xs=[f32[4,8], f32[8]]' --input='by={"a": (f32[4,8], 3)}' --input='bias=None' | %FileCheck %s
# RUN: %recals-opt %s --parameter='w=f32[8]' --input='xs=[f32[4,8], f32[8]]' --input='by={"a": (f32[4,8], 3)}' --input='bias=f32[8]' --input='scale=0.5' | %FileCheck %s --check-prefix=BIAS
# The tensors in nested arguments are the inputs, in order; everything else becomes a constant.

def forward(self, xs: List[Tensor], by: Dict[str, Tuple[Tensor, int]], bias: Optional[Tensor], scale: float = 2.0):
    y = xs[0] * xs[1] * self.w
    z, times = by["a"]
    for i in range(times):
        y = y + z
    if bias is not None:
        y = y + bias
    return y * scale

# CHECK: graph(%self : __torch__.Module,
# CHECK-NEXT: %[[A:.*]] : Tensor,
# CHECK-NEXT: %[[B:.*]] : Tensor,
# CHECK-NEXT: %[[Z:.*]] : Tensor):
# CHECK-DAG: %[[SCALE:.*]] : float = prim::Constant[value=2.]()
# CHECK: %[[AB:.*]] : Tensor = aten::mul(%[[A]], %[[B]])
# CHECK: %[[Y0:.*]] : Tensor = aten::mul(%[[AB]],
# CHECK-NEXT: %[[Y1:.*]] : Tensor = aten::add(%[[Y0]], %[[Z]],
# CHECK-NEXT: %[[Y2:.*]] : Tensor = aten::add(%[[Y1]], %[[Z]],
# CHECK-NEXT: %[[Y3:.*]] : Tensor = aten::add(%[[Y2]], %[[Z]],
# CHECK-NEXT: %{{.*}} : Tensor = aten::mul(%[[Y3]], %[[SCALE]])

# BIAS: %[[BIAS:bias.*]] : Tensor):
# BIAS: prim::Constant[value=0.5]
# BIAS: aten::add(%{{.*}}, %[[BIAS]],
