#pragma once

/// The devices that a dry run stands for.

#include <optional>
#include <string>
#include <vector>

#include "passes/sizes/cost_model.h"
#include "runtime/device_table.h"

namespace recals {

/// What the caller says about them.
struct TargetOptions {
  /// In place of the one that the tensors of module and inputs are on.
  std::optional<c10::Device> device;
  /// Bytes; CUDA only. See default_workspace_margin() in cuda_allocator.h.
  std::optional<int64_t> workspace_margin;
};

struct Target {
  c10::Device device = c10::kCPU; ///< with an index, unless it is the CPU
  int64_t workspace_margin = 0; ///< bytes that a library may take within one call; CUDA only
  CostModel cost_model{};

  bool is_cuda() const {
    return device.is_cuda();
  }

  /// As plans and budgets call it: "cpu", "cuda:0".
  std::string name() const {
    return device.str();
  }
};

/// One per device of `devices`. `cost_model`: as `cost_model_for` takes it; a file holds for the devices of its kind, the others have
/// the built-in one. Throws c10::ValueError for a margin that is negative, c10::Error where no device has one and
/// for a file that is for none of them.
std::vector<Target> targets_of(
    const DeviceTable& devices,
    const std::string& cost_model,
    std::optional<int64_t> workspace_margin);

/// What the target's allocator takes for a storage of `bytes`.
int64_t block_bytes(const Target& target, int64_t bytes);

} // namespace recals
