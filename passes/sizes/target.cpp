#include "passes/sizes/target.h"

#include <c10/util/Exception.h>

#include "passes/sizes/cuda_allocator.h"

namespace recals {

Target target_of(c10::Device own, const TargetOptions& options) {
  Target target{options.device.value_or(own)};
  if (target.is_cuda() && !target.device.has_index()) {
    target.device.set_index(0);
  }
  if (options.workspace_margin) {
    TORCH_CHECK(
        target.is_cuda(),
        "recals: workspace_margin is for CUDA devices, but the step is planned for ",
        target.name(),
        ", whose workspaces are known");
    TORCH_CHECK_VALUE(
        *options.workspace_margin >= 0, "recals: workspace_margin is negative: ", *options.workspace_margin, " bytes");
  }
  if (target.is_cuda()) {
    target.workspace_margin = options.workspace_margin ? *options.workspace_margin : default_workspace_margin();
  }
  return target;
}

int64_t block_bytes(const Target& target, int64_t bytes) {
  return target.is_cuda() ? cuda_block_bytes(bytes) : bytes;
}

} // namespace recals
