#pragma once

/// The device that a dry run stands for.

#include <optional>
#include <string>

#include <c10/core/Device.h>

namespace recals {

/// What the caller says about it; by default it is where the module's tensors are.
struct TargetOptions {
  std::optional<c10::Device> device;
  /// Bytes; CUDA only. See default_workspace_margin() in cuda_allocator.h.
  std::optional<int64_t> workspace_margin;
};

struct Target {
  c10::Device device = c10::kCPU; ///< with an index, unless it is the CPU
  int64_t workspace_margin = 0; ///< bytes that a library may take within one call, 0 on the CPU

  bool is_cuda() const {
    return device.is_cuda();
  }

  /// As plans and budgets call it: "cpu", "cuda:0".
  std::string name() const {
    return device.str();
  }
};

/// `own`: where the module's tensors are. Throws c10::ValueError for a margin that is negative, c10::Error for one of a
/// device without.
Target target_of(c10::Device own, const TargetOptions& options);

/// What the target's allocator takes for a storage of `bytes`.
int64_t block_bytes(const Target& target, int64_t bytes);

} // namespace recals
