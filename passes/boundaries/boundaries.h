#pragma once

/// A plan, written into the graph: `recals::region` ... `recals::end_region` around what is recomputed together, and a
/// mark on every value whose fate a replay depends on.
///
///   %h : Tensor = aten::linear(%x, %w, %b)
///   %h1 : Tensor = recals::keep(%h, 4194304)           # stays: a replay starts from it
///   %g : Tensor = aten::gelu(%h1, "none")
///   %g1 : Tensor = recals::recompute(%g, 4194304)      # freed after the forward, made again in the backward
///   %d : Tensor = aten::dropout(%g1, 0.1, True)
///   %d1 : Tensor = recals::recompute_internal(%d, [0], 4194304)   # so is the mask that dropout saved
///
/// Values without a mark are kept if autograd saves them, and recomputed if only a replay needs them.

#include <memory>

#include <torch/csrc/jit/ir/ir.h>

#include "passes/plan/planner.h"
#include "passes/sizes/dry_run.h"
#include "runtime/program.h"

namespace recals {

/// `graph`: the flat graph that `program` was compiled from; changed in place. Returns whether it changed.
bool insert_boundaries(
    const std::shared_ptr<torch::jit::Graph>& graph,
    const Program& program,
    const DryRun& sizes,
    const plan::Plan& plan);

/// Takes every boundary and mark out again. Returns whether the graph changed.
bool remove_boundaries(torch::jit::Graph& graph);

} // namespace recals
