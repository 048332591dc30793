# RUN: %recals-opt %s --parameter='w=f32[8,8]' --input='f32[4,8]' | %FileCheck %s --check-prefixes=CHECK,LARGE
# RUN: %recals-opt %s --parameter='w=f32[8,8]' --input='f32[2,8]' | %FileCheck %s --check-prefixes=CHECK,SMALL
# Calls are entered, loops unrolled, branches that shapes decide taken.

def layer(self, x):
    return torch.mm(x, self.w)

def forward(self, x):
    for i in range(2):
        x = self.layer(x)
        if x.size(0) > 2:
            x = torch.relu(x)
        else:
            x = torch.sigmoid(x)
    return x

# CHECK: graph(%self : __torch__.Module,
# CHECK-NEXT: %[[X:.*]] : Tensor):
# CHECK-NOT: prim::If
# CHECK-NOT: prim::Loop
# CHECK-NOT: prim::CallMethod
# CHECK: %[[W:.*]] : Tensor = prim::GetAttr[name="w"](%self)
# CHECK-NEXT: %[[Y0:.*]] : Tensor = aten::mm(%[[X]], %[[W]])
# LARGE-NEXT: %[[Z0:.*]] : Tensor = aten::relu(%[[Y0]])
# SMALL-NEXT: %[[Z0:.*]] : Tensor = aten::sigmoid(%[[Y0]])
# CHECK-NEXT: %[[Y1:.*]] : Tensor = aten::mm(%[[Z0]], %[[W]])
# LARGE-NEXT: %[[Z1:.*]] : Tensor = aten::relu(%[[Y1]])
# SMALL-NEXT: %[[Z1:.*]] : Tensor = aten::sigmoid(%[[Y1]])
# CHECK-NEXT: return (%[[Z1]])
