# RUN: %recals-opt %s --parameter='w=f32[256,256]' --parameter='v=f32[2,256]' --input='f32[512,256]' --budget=80% --emit=plan | %FileCheck %s
# RUN: %recals-opt %s --parameter='w=f32[256,256]' --parameter='v=f32[2,256]' --input='f32[512,256]' --budget=100% --emit=plan | %FileCheck %s --check-prefix=LOOSE
# RUN: %exit %recals-opt %s --parameter='w=f32[256,256]' --parameter='v=f32[2,256]' --input='f32[512,256]' --budget=1000 | %FileCheck %s --check-prefix=TIGHT
# Fates and reasons: a tight budget drops what is cheap to make again, one that does not bind changes nothing, and one
# that cannot be met names the smallest.

def forward(self, x):
    for i in range(6):
        x = torch.relu(torch.linear(x, self.w))
    return torch.linear(x, self.v)

# CHECK: "format": 1
# CHECK: "name": "cpu"
# CHECK: "regions": [
# CHECK-NEXT: {
# CHECK: "bytes": [[#mul(mul(512,256),4)]]
# CHECK: "op": "aten::relu"
# CHECK: "where": "fates.ts:[[#@LINE-9]]"
# CHECK: "fate": "recompute"
# CHECK: "reason": "recomputed: 512.0 KiB
# CHECK: "nodes_replayed": [
# CHECK-NEXT: {

# LOOSE: "recompute_seconds": 0.0
# LOOSE: "regions": []
# LOOSE-NOT: "fate": "recompute"
# LOOSE: "nodes_replayed": []

# TIGHT: no plan fits into 1000 B (1000 bytes) on cpu. The smallest budget that works is {{.*}} bytes); what sets it is {{.+}}.
# TIGHT-NEXT: exit 3
