#pragma once

#include "passes/sizes/kernel_rules.h"

namespace recals {

/// Bytes that the CUDA kernel allocates and frees within the call besides its outputs. `margin`: bytes, what is counted
/// for workspaces that only cuBLAS and cuDNN know.
int64_t cuda_scratch_bytes(const KernelCall& call, int64_t margin);

} // namespace recals
