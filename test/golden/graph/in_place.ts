# RUN: %recals-opt %s --parameter='weight=f32[8,8]' --buffer='steps=f32[]' --input='f32[4,8]' | %FileCheck %s
# In-place ops on local values become out-of-place ones, unless another view of the storage is read later.

def forward(self, x):
    self.steps.add_(1)
    y = torch.mm(x, self.weight)
    y.relu_()
    y += x
    z = torch.mm(y, self.weight)
    z[:, 0].zero_()
    return z

# A buffer outlives the step: written in place.
# CHECK: %[[STEPS:.*]] : Tensor = prim::GetAttr[name="steps"](%self)
# CHECK: aten::add_(%[[STEPS]],
# CHECK: %[[Y:.*]] : Tensor = aten::mm(
# CHECK: %[[R:.*]] : Tensor = aten::relu(%[[Y]])
# CHECK: %[[S:.*]] : Tensor = aten::add(%[[R]],
# CHECK: %[[Z:.*]] : Tensor = aten::mm(%[[S]],
# The column is a view of what is returned: written in place.
# CHECK: %[[C:.*]] : Tensor = aten::select(
# CHECK: aten::zero_(%[[C]])
# CHECK: return (%[[Z]])
