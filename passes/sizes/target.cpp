#include "passes/sizes/target.h"

#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include "passes/sizes/cuda_allocator.h"

namespace recals {

std::vector<Target> targets_of(
    const DeviceTable& devices,
    const std::string& cost_model,
    std::optional<int64_t> workspace_margin) {
  const auto cost_models = cost_models_for(cost_model, devices.all());
  std::vector<Target> targets;
  bool cuda = false;
  for (size_t d = 0; d < devices.all().size(); ++d) {
    Target target{devices.all()[d], 0, cost_models[d]};
    if (target.is_cuda()) {
      cuda = true;
      target.workspace_margin = workspace_margin ? *workspace_margin : default_workspace_margin();
    }
    targets.push_back(std::move(target));
  }
  if (workspace_margin) {
    TORCH_CHECK(
        cuda,
        "recals: workspace_margin is for CUDA devices, but the step is planned for ",
        c10::Join(", ", devices.all()),
        ", whose workspaces are known");
    TORCH_CHECK_VALUE(*workspace_margin >= 0, "recals: workspace_margin is negative: ", *workspace_margin, " bytes");
  }
  return targets;
}

int64_t block_bytes(const Target& target, int64_t bytes) {
  return target.is_cuda() ? cuda_block_bytes(bytes) : bytes;
}

} // namespace recals
