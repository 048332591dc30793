# RUN: echo '{"aten::rand_like": "prefer_recompute"}' > %t.json
# RUN: %recals-opt %s --parameter='w=f32[128,128]' --input='f32[512,128]' --budget=1GiB --pins=%t.json --explain rand_like | %FileCheck %s
# RUN: %recals-opt %s --parameter='w=f32[128,128]' --input='f32[512,128]' --budget=1GiB --pins=%t.json --explain rand_like --gpu-devices=none | %FileCheck %s
# RUN: %recals-opt %s --parameter='w=f32[128,128]' --input='f32[512,128]' --budget=1GiB --pins=%t.json --explain rand_like --no-preserve-rng-state | %FileCheck %s --check-prefix=KEPT
# RUN: %recals-opt %s --parameter='w=f32[128,128]' --input='f32[512,128]' --budget=1GiB --pins=%t.json --explain rand_like --target-device=cuda:1 --gpu-devices=0,2 | %FileCheck %s --check-prefix=KEPT
# RUN: %recals-opt %s --parameter='w=f32[128,128]' --input='f32[512,128]' --budget=1GiB --pins=%t.json --explain rand_like --target-device=cuda:1 --gpu-devices=0,1 | %FileCheck %s
# RUN: %exit %recals-opt %s --parameter='w=f32[128,128]' --input='f32[512,128]' --budget=1GiB --gpu-devices=0,x | %FileCheck %s --check-prefix=BAD
# What draws is drawn again where its generator's state may be set, and kept elsewhere. The CPU's is not among --gpu-devices.

def forward(self, x):
    x = torch.tanh(torch.mm(x, self.w))
    return torch.mm(torch.tanh(x * torch.rand_like(x)), self.w)

# CHECK: %rand_like: recompute
# KEPT: %rand_like: keep

# BAD: recals-opt: --gpu-devices: '0,x' is not all, none, or indices such as 0,1
# BAD-NEXT: exit 2
