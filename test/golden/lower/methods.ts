# RUN: %python %S/../graph/module_of_layers.py %t.pt
# RUN: %recals-opt %t.pt --input='f32[512,128]' --budget=55% --emit=code | %FileCheck %s
# RUN: %recals-opt %t.pt --input='f32[512,128]' --budget=55% -o %t.small.pt
# RUN: %recals-opt %t.small.pt --emit=code | %FileCheck %s
# Boundaries as methods: readable, saved as code, and the plain method beside them.

# CHECK-LABEL: def recals_forward_plain(
# CHECK-NOT: ops.recals
# CHECK-LABEL: def recals_forward_region_0(
# CHECK: ops.recals.recompute({{.*}}, [[#mul(512,512)]])
# CHECK-LABEL: def recals_forward_step(
# CHECK: ops.recals.checkpoint(self, "recals_forward_region_0", [{{.*}}])
# CHECK-LABEL: def forward(
# CHECK: ["2.training=True"{{.*}}]
# CHECK: [[ALL:_[0-9]+]] = (input,)
# CHECK: [[PLANNED:_[0-9]+]] = ops.recals.enter(self, [[ALL]], "(f32[512, 128]@cpu)", {{.*}}, {{[0-9]+}})
# CHECK: if [[PLANNED]]:
# CHECK: ops.recals.checkpoint(self, "recals_forward_step", [input])
# CHECK: else:
# CHECK: ops.recals.plain(self, "recals_forward_plain", [[ALL]])
