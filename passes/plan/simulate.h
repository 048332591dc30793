#pragma once

/// The memory of a step under a set of fates, event by event, in the order of the executor (`runtime/`).
///
/// Note [What the executor does with fates]
///
/// Let D be the storages with fate Recompute that have a slot. A storage s of D needs its producer to run again; that
/// node reads storages: those with fate Recompute are needed in turn (slot or no slot), those with fate Keep are
/// *held*. N is the set of nodes that are needed by some s in D. Two nodes of N are of one *component* if one reads
/// a recomputed storage that the other writes (transitively).
///
/// Forward. Node by node: `transient` is the peak of the node, then its writes stay. A storage goes after the last
/// node that reads it (at its producer if none does), unless it is an output, pinned, or has fate Keep and (a slot
/// that is not yet released, or a component that holds it). A node of N that draws random numbers stores `rng_bytes`
/// before it runs.
///
/// Backward. `Use` of a slot whose storage is in D and not cached runs the nodes that it needs and that are not
/// cached, in forward order. During a replay a node costs `transient` (+ `rng_bytes` while the outer generator state
/// is put aside); after it, a written storage stays cached while somebody of N that has not yet run reads it, or it
/// is in D and has a slot that is not yet released; the rest goes at once, so does the second copy of a storage that is
/// kept. Reading and releasing count down. A component lets go of what it holds, of its generator states and of what it
/// has cached for nodes that nobody will ask for any more, when all its slots in D are released.
/// So every node is replayed at most once, and what is recomputed lives no longer than its last use.

#include <optional>

#include "passes/plan/step_graph.h"

namespace recals::plan {

struct PeakPoint {
  int64_t bytes = 0;
  bool in_backward = false;
  int index = -1; ///< forward node, or index into StepGraph::backward
  int replayed_node = -1; ///< the node of a replay that was running at the peak; -1 none
};

struct CurvePoint {
  bool in_backward = false;
  int index = 0; ///< forward node, or index into StepGraph::backward
  std::vector<int64_t> live; ///< per device, after the event
  std::vector<int64_t> most; ///< per device, the most during the event
};

struct Simulation {
  std::vector<PeakPoint> peak; ///< per device
  std::vector<int64_t> held; ///< per device: live bytes at the end of the forward
  std::vector<int> replayed; ///< N, in forward order
  double recompute_seconds = 0; ///< sum of `seconds` over N
  int64_t recomputed_bytes = 0; ///< bytes written by N
  std::vector<CurvePoint> curve; ///< only if asked for
};

/// `fates` has one entry per storage; non-recomputable storages are Keep whatever it says.
Simulation simulate(const StepGraph& graph, const std::vector<Fate>& fates, bool with_curve = false);

} // namespace recals::plan
