#pragma once

/// The training step, run on meta tensors: the real executor, the real autograd engine, no data.
///
/// LibTorch lets the allocator of the meta device be replaced. Recals puts one there that hands out nothing and counts
/// everything, so a step on meta tensors (forward, loss, backward) yields every allocation and every free in the order
/// in which the step on the device makes them. What kernels of the device allocate inside themselves is added from a
/// table (kernel_rules.h). The same run under a plan gives the peak of the plan: what is predicted is what is executed.
///
/// The loss is not part of the module. Unless the module returns a scalar, or the caller gives a loss, a stand-in takes its
/// place (loss.h).

#include <memory>
#include <string>
#include <vector>

#include "passes/plan/step_graph.h"
#include "passes/sizes/backward_order.h"
#include "passes/sizes/cost_model.h"
#include "passes/sizes/kernel_memory.h"
#include "passes/sizes/ledger.h"
#include "passes/sizes/loss.h"
#include "passes/sizes/target.h"
#include "runtime/program.h"
#include "runtime/step_facts.h"

namespace recals {

/// What a storage of the StepGraph is in the program.
struct StorageOrigin {
  int node = -1; ///< index into Program::nodes
  int reg = -1; ///< the register that shows it; -1: internal
  int internal = -1; ///< number among the node's internals (Program's Internal::number)
};

struct DryRun {
  plan::StepGraph step; ///< nodes are those of the program, one to one
  std::vector<StorageOrigin> origins; ///< per storage of `step`
  Ledger ledger; ///< every byte of the run; `peak` and `held` are sums over it
  std::vector<bool> differentiable; ///< per node: some output requires grad
  std::vector<int> register_storage; ///< per register of the program: index into step.storages, -1: external
  std::vector<int64_t> peak; ///< bytes per device: the most that was live at once above the start
  std::vector<int64_t> held; ///< bytes per device, live at the end of the forward
  StepFacts facts; ///< per node of the program: the slots of its autograd nodes
  KernelFacts kernels; ///< how sure their scratch memory is
  std::vector<std::optional<Overlap>> overlaps; ///< per device: why its memory may be other than recorded
};

/// What may run at the same time so that the device holds another amount than `run` says; empty if nothing does.
std::string overlap_in_words(const DryRun& run, size_t device);

/// `program`: compiled for meta; its devices are those of `targets`, one to one. `self`, `inputs`: meta twins (passes/graph/meta_twin.h). Throws c10::Error if an op has
/// no meta kernel, naming the op. `measured`: scratch memory of the CPU's kernels is what was measured, where it was;
/// DryRun::kernels has the calls for which there was nothing yet.
DryRun dry_run(
    const std::shared_ptr<const Program>& program,
    const c10::IValue& self,
    const std::vector<at::Tensor>& inputs,
    const std::vector<Target>& targets,
    const Loss& loss = {},
    bool measured = false);

} // namespace recals
