# RUN: %recals-opt %s --parameter='w=f32[128,128]' --input='f32[512,128]' --target-device=cuda --workspace-margin=0 --budget=1GiB --emit=plan | %FileCheck %s
# RUN: %recals-opt %s --parameter='w=f32[128,128]' --input='f32[512,128]' --budget=1GiB --emit=plan | %FileCheck %s --check-prefix=CPU
# RUN: not %recals-opt %s --parameter='w=f32[128,128]' --input='f32[512,128]' --target-device=quark 2>&1 | %FileCheck %s --check-prefix=BAD
# A plan for a device that this machine need not have: there, a dropout keeps a byte of its mask for an element; here, a
# float of its noise.

def forward(self, x):
    return torch.dropout(torch.linear(x, self.w), 0.5, True).sum()

# CHECK: "name": "cuda:0"
# CHECK: "plain_held": [[#add(mul(512,128),512)]]
# CHECK: "name": "built-in cuda"

# CPU: "name": "cpu"
# CPU: "plain_held": [[#add(mul(512,mul(128,4)),4)]]

# BAD: recals-opt: --target-device: 'quark' is no device; cpu, cuda or cuda:1, say
