#pragma once

/// What a caller asks for beside the module and its inputs. An option that is added here reaches every pass; the command
/// line and Python fill it in.

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "passes/plan/budget.h"
#include "passes/sizes/draw_rules.h"
#include "passes/sizes/kernel_memory.h"
#include "passes/sizes/loss.h"
#include "passes/sizes/target.h"

namespace recals {

struct StepOptions {
  /// What a training step does that its plan cannot hold within the budget: "warn", "error" or "plain"
  /// (runtime/mismatch.h).
  std::string on_mismatch = "warn";
  /// Per device name ("cpu", "cuda:0"); the name "" stands for every accelerator of the step, and for
  /// the CPU where it has none.
  std::map<std::string, plan::Limit> limits{};
  /// Where times come from (passes/sizes/cost_model.h), or "profile" to measure the nodes on the inputs; "" for what
  /// RECALS_COST_MODEL says.
  std::string cost_model{};
  /// The device to plan for, where that is not the one that module and inputs are on; they may be on the CPU or on meta
  /// then, and must be on one.
  TargetOptions target{};
  /// Where the scratch memory of the CPU's kernels comes from. By default it is measured if the tensors of module and
  /// inputs are here, and by rules if they are on meta.
  std::optional<ScratchSource> scratch{};
  RngOptions rng{};
  /// What the caller computes of the method's result and runs the backward of; null: not known, so a stand-in is counted.
  LossFunction loss{};
  /// What must or should be kept or recomputed (passes/plan/pins.h), in the order in which they count.
  std::vector<plan::Pin> pins{};
};

} // namespace recals
