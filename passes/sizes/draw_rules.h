#pragma once

/// Which random nodes must not run again.

#include <optional>
#include <vector>

#include "passes/sizes/dry_run.h"
#include "runtime/program.h"

namespace recals {

/// Where generator states may be stored and set. Elsewhere what draws is not drawn again.
struct RngOptions {
  bool preserve = true;
  std::optional<std::vector<c10::DeviceIndex>> gpus{}; ///< indices of devices that are not the CPU; none given: all

  bool preserves(c10::Device device) const;
};

/// In `sizes`, of `program`: what such a node makes is kept; a node with a recipe keeps what that reads.
void keep_draws(DryRun& sizes, const Program& program, const RngOptions& options);

} // namespace recals
