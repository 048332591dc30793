#pragma once

/// The memory of a step under a set of fates, event by event, in the order of the executor (`runtime/`).
///
/// Note [What the executor does with fates]
///
/// *Dropped* storages: fate Recompute, and fate Pack with loss (of which only a slot can be served). D: the storages with
/// fate Recompute that have a slot. N: the nodes that a replay may run: the producers of D; and with a node the producers
/// of the dropped storages that it reads. A node of N whose recipe's storages are all not dropped goes by its recipe.
///
/// Live. A dropped storage is live while it is in D and one of its slots is not released, or a live node of N reads it.
/// A node of N is live while a dropped storage that it writes is live. Storages that are not dropped are live while one
/// of their slots is not released or a live node of N reads them.
///
/// Forward. Node by node: `transient` is the peak of the node, then its writes stay. Then, for each packed storage that
/// this node is the first to save: `pack_transient` is the peak, and the packed form stays. A storage goes after the last
/// node that reads it (at its producer if none does), unless it is an output, pinned, or has fate Keep and is live. A node
/// of N that draws random numbers (and has no recipe to go by) stores `rng_bytes` before it runs.
/// A kept storage, a packed form and a generator state go when what needs them is no longer live: the storage; the storage
/// (with loss: its last slot); the node.
///
/// Wanted. A slot is *waiting* until it is used or released. A dropped storage of D and one that is packed without loss
/// are wanted while one of their slots waits or a pending node of N reads them; a dropped storage outside D while a
/// pending node of N reads it. A node of N is *pending* while a dropped storage that it writes is wanted and not
/// retained (see below): it may have to run again.
///
/// Backward. `Use` of a slot that the forward node v saved asks for its storage t:
/// - t has fate Keep: it is there.
/// - t is in D. If it is not *at hand*, the nodes that it needs (its producer, and those of the dropped storages that they
///   read and that are not at hand) run in forward order. Before a node runs, the storages that it reads, are packed
///   without loss and are not at hand, are unpacked, in the order in which it reads them. During a replay a node costs
///   `transient` (+ `rng_bytes` while the outer generator state is put aside), then all that it writes is there (with a
///   recipe: what is dropped of it), then second copies of what is not dropped, or at hand already, go at once.
/// - t is packed. If it is not at hand it is unpacked: `unpack_transient`, then its bytes are there.
/// At hand is what is *retained* or *in use*: in use is what a slot has been given until that slot is released.
/// What a demand makes or finds at hand (t, what nodes of the demand write and read) becomes retained iff it is wanted
/// and v <= Choice::cache_from. A retained storage goes when it is no longer wanted, one in use when the slot is
/// released, what is neither when the last node of this demand that reads it has run (at once if none does), but t not
/// before it is in use. A slot that asks counts as waiting until its demand is over.
/// What is packed with loss is never retained for its slots; a copy that a replay makes for its readers is another one,
/// for which all of the above holds.
///
/// With `cache_from` at its default everything is retained, so that every node runs at most once. With smaller values
/// nodes run several times: a chain that is replayed from its begin for a slot at its end caches, on that way, only some
/// checkpoints; and from the nearest of them, for a slot before, the next ones: nested rematerialisation.

#include <climits>
#include <vector>

#include "passes/plan/step_graph.h"

namespace recals::plan {

/// What the plan does with one storage.
struct Choice {
  /// Retained by every replay.
  static constexpr int kAlways = INT_MAX;

  Fate fate = Fate::Keep;
  int pack = 0; ///< Fate::Pack: index into Storage::packs
  /// Recompute and Pack: a replay retains the storage only if it is asked for by the backward of this forward node or of
  /// one before it. -1: never.
  int cache_from = kAlways;

  Choice() = default;
  Choice(Fate fate) : fate(fate) {} // NOLINT(google-explicit-constructor): most choices are just a fate
  bool operator==(const Choice&) const = default;
};

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
  std::vector<int> runs; ///< per node of `replayed`: how often the backward runs it
  std::vector<bool> by_recipe; ///< per node of `replayed`
  double recompute_seconds = 0; ///< of all runs, with their recipes' seconds where they go by one
  int64_t recomputed_bytes = 0; ///< written by all runs
  double pack_seconds = 0; ///< of packing and of all unpacking
  std::vector<CurvePoint> curve; ///< only if asked for

  /// What the plan costs.
  double extra_seconds() const {
    return recompute_seconds + pack_seconds;
  }
};

/// `choices` has one entry per storage. What is not possible counts as Keep: Recompute for a storage that is not
/// recomputable, Pack for one without that option, without a slot, or that is output or pinned, and Pack with loss for
/// one that is not recomputable.
Simulation simulate(const StepGraph& graph, const std::vector<Choice>& choices, bool with_curve = false);

} // namespace recals::plan
