# RUN: %recals-opt %s --parameter='w=f32[128,64]' --parameter='v=f32[2,128]' --input='f32[256,64]' --emit=report | %FileCheck %s
# RUN: %recals-opt %s --parameter='w=f32[128,64]' --parameter='v=f32[2,128]' --input='f32[256,64]' --emit=report-json -o %t.json
# RUN: %python -m json.tool %t.json | %FileCheck %s --check-prefix=JSON
# RUN: %exit %recals-opt %s --parameter='w=f32[128,64]' --parameter='v=f32[2,128]' --emit=report --passes=verify | %FileCheck %s --check-prefix=NOTHING
# Bytes of the plain step, by hand: 4 bytes an element of 256 rows.

def forward(self, x):
    return torch.linear(torch.dropout(torch.relu(torch.linear(x, self.w)), 0.5, True), self.v)

# Saved: the result of relu, the mask of dropout, and dropout's result (the last linear's input). The output is held.
# CHECK: cpu: peak {{.*}} ([[#PEAK:]] bytes)
# CHECK: held at the end of the forward {{.*}} ([[#mul(256,mul(3,512))+mul(256,8)]] bytes)
# CHECK: by use
# CHECK-NEXT: 384.0 KiB {{.*}} saved
# CHECK-NEXT: 2.0 KiB {{.*}} output
# CHECK: by op
# CHECK-NEXT: 256.0 KiB {{.*}} aten::dropout
# CHECK: 128.0 KiB {{.*}} aten::relu
# CHECK: largest storages of the forward
# CHECK: 128.0 KiB * {{.*}} f32 saved aten::relu at report.ts:[[#@LINE-12]]

# JSON: "held": [[#mul(256,mul(3,512))+mul(256,8)]]

# NOTHING: there is nothing to report before the pass 'sizes'
# NOTHING-NEXT: exit 1
