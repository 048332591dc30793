#pragma once

/// Seconds of a step's nodes, measured instead of estimated.

#include <memory>
#include <vector>

#include <torch/csrc/jit/ir/ir.h>

#include "passes/sizes/dry_run.h"

namespace recals {

/// Runs the nodes of `graph` (straight-line, of the flat form) on copies of `module` and `inputs`, one by one, without
/// gradients, as a replay runs them; a first time to warm up, then a few times. Returns, per node of the program, the
/// least seconds that it took. Parameters, buffers, gradients, inputs and random streams stay as they are. Needs memory
/// for one more copy of the parameters, and for what a forward without gradients holds.
/// Throws c10::Error if `inputs` hold no data (meta tensors), or if an op fails on them.
std::vector<double> measure_nodes(
    const std::shared_ptr<torch::jit::Graph>& graph,
    const c10::IValue& module,
    const std::vector<c10::IValue>& inputs);

/// Puts the measured seconds in place of the estimated ones, in the StepGraph and in the ledger. The backward cannot be
/// measured alone; its estimate is scaled as the forward's was.
void use_measured_seconds(DryRun& sizes, const std::vector<double>& seconds);

} // namespace recals
