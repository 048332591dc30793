#pragma once

/// Boundaries -> methods that survive torch.jit.save.
///
/// The rewritten module has a type of its own and the very same tensors and submodules. Its method reads
///
///   def forward(self, x):
///     if ops.recals.enter(self, (x,), "(f32[8, 3, 32, 32]@cpu)", ["training=True"], 1):
///       y, = ops.recals.checkpoint(self, "recals_forward_step", [x])
///     else:
///       y = self.recals_forward_plain(x)
///     return y
///
/// recals_forward_step is the flat graph, in which each region is a call of a method recals_forward_region_N.

#include <string>

#include <torch/csrc/jit/api/module.h>

#include "passes/graph/specialise.h"

namespace recals {

/// `flat`: the specialised method with boundaries. `plan`: JSON, stored with the module. `facts`: what its
/// first training step is compared with (runtime/step_facts.h); none if empty. `on_mismatch`: likewise, "warn",
/// "error" or "plain" (runtime/mismatch.h). `module` is not changed.
torch::jit::Module lower(
    const torch::jit::Module& module,
    const std::string& method,
    const FlatGraph& flat,
    const std::string& plan,
    const std::string& facts = "",
    const std::string& on_mismatch = "warn");

/// Was it made by `lower`?
bool is_lowered(const torch::jit::Module& module);

/// The plain module again: its own type, the same tensors.
torch::jit::Module restore(const torch::jit::Module& module);

/// The plan that `lower` stored. Throws if the module is not lowered.
std::string plan_of(const torch::jit::Module& module);

/// What a lowered module runs, and for which calls.
struct LoweredStep {
  std::string method; ///< the method that was rewritten
  std::shared_ptr<torch::jit::Graph> graph; ///< of its step, as Program::compile takes it
  std::string signature; ///< of the step (FlatGraph::signature)
  std::vector<std::string> attributes; ///< FlatGraph::attributes
  int64_t format = 0; ///< that it was written in
};

/// Throws if the module is not lowered.
LoweredStep lowered_step(const torch::jit::Module& module);

} // namespace recals
