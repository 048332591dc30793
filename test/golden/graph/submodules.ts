# RUN: %python %S/module_of_layers.py %t.pt
# RUN: %recals-opt %t.pt --input='f32[512,128]' | %FileCheck %s
# Submodules are entered, and their parameters read by path, each module once.

# CHECK: graph(%self : __torch__.
# CHECK: %[[FIRST:.*]] : __torch__.torch.nn.modules.linear.Linear = prim::GetAttr[name="0"](%self)
# CHECK-NEXT: %[[W:.*]] : Tensor = prim::GetAttr[name="weight"](%[[FIRST]])
# CHECK-NEXT: %[[B:.*]] : Tensor = prim::GetAttr[name="bias"](%[[FIRST]])
# CHECK-NEXT: %[[Y:.*]] : Tensor = aten::linear(%{{.*}}, %[[W]], %[[B]])
# CHECK-NEXT: %[[G:.*]] : Tensor = aten::gelu(%[[Y]],
# CHECK-NEXT: %{{.*}} : Tensor = aten::dropout(%[[G]],
# CHECK-NOT: prim::GetAttr[name="0"]
