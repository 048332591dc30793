#pragma once

/// What torch's own pass manager can do for rewritten modules.
///
/// Note [Passes that torch runs]
/// TorchScript calls registered passes on graphs that it runs without gradients, and on the subgraphs that it has
/// differentiated itself. A training step is therefore never shown to them as a whole: what is not differentiated by
/// TorchScript (every recals:: op, to begin with) is not seen, and what is seen has its backward already. So the plan is
/// made and written ahead of time (passes/), and what is registered here is for inference: regions that nobody will
/// replay become ordinary code again, which TorchScript can optimise across.
///
/// A graph that was optimised without gradients may be run with them later, so calls of regions are inlined behind a
/// question for the grad mode. `recals::enter` stays as it is: it asks that first anyway, and takes no measurable time.

#include <memory>

#include <torch/csrc/jit/ir/ir.h>

#include "recals/export.h"

namespace recals {

/// Takes the marks out of the graph (they do nothing when TorchScript runs them), and puts beside every
/// `recals::checkpoint` whose method is known the method's own code, for when gradients are off. Returns whether the
/// graph changed. Registered with torch when the library is loaded.
RECALS_API bool inline_for_inference(const std::shared_ptr<torch::jit::Graph>& graph);

} // namespace recals
