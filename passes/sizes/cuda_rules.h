#pragma once

/// Ops as CUDA runs them where that is another way than on meta tensors. Read in torch's sources (each rule says where),
/// never run on a device: what could not be known without one is an upper bound, or left to the margin, and says so.

#include <torch/csrc/jit/ir/ir.h>
#include <torch/csrc/jit/runtime/operator.h>

namespace recals {

/// aten::dropout as accelerators run it: native_dropout, whose mask has a byte per element (ATen/native/Dropout.cpp:
/// is_fused_kernel_acceptable).
torch::jit::Operation fused_dropout(torch::jit::Operation composite);

/// What runs on meta in place of `node`.
torch::jit::Operation on_cuda(const torch::jit::Node& node);

} // namespace recals
