# RUN: %recals-opt %s --parameter='w=f32[128,64]' --parameter='v=f32[2,128]' --input='f32[256,64]' --emit=trace -o %t.json
# RUN: %python -m json.tool %t.json | %FileCheck %s
# Bytes of a step, by hand: 4 bytes an element.

def forward(self, x):
    return torch.linear(torch.dropout(torch.relu(torch.linear(x, self.w)), 0.5, True), self.v)

# CHECK: "name": "aten::linear"
