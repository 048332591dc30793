#pragma once

/// The training step as the planner sees it: plain numbers, no LibTorch.
///
/// `passes/sizes` fills a StepGraph by running the step on meta tensors; `simulate` replays it under a set of
/// fates; `choose` picks the fates. All sizes are bytes as the device's allocator hands them out.

#include <cstdint>
#include <string>
#include <vector>

namespace recals::plan {

/// What happens to a storage between its last use in the forward and its use in the backward.
enum class Fate : uint8_t {
  Keep, ///< stays allocated as long as a slot or a replay needs it
  Recompute, ///< freed at its last use in the forward; its producer runs again when the backward asks
  Pack, ///< freed at its last use in the forward; a smaller form of it stays, and is unpacked when the backward asks
};

/// What the user says about a storage, in the words of torch's CheckpointPolicy. MUST is never overridden.
enum class Policy : uint8_t {
  None,
  MustSave, ///< its fate is Keep
  PreferSave, ///< Keep, unless nothing else fits
  PreferRecompute, ///< Recompute, unless nothing else fits
  MustRecompute, ///< its fate is Recompute; says nothing about storages that cannot be recomputed
};

/// A policy for all storages that a pattern names (passes/plan/pins.h).
struct Pin {
  std::string pattern;
  Policy policy = Policy::None;
};

/// A smaller form in which the slots of a storage can be kept.
struct Pack {
  std::string kind; ///< what a person reads, "two-valued float -> bits"
  int64_t bytes = 0; ///< of the packed form, as the device's allocator hands them out
  /// Unpacking gives the original bits, so replays may read it. False: it serves the slots only (the sign, where the
  /// backward reads no more); a replay that reads the storage needs its producer to run again.
  bool lossless = true;
  double pack_seconds = 0;
  double unpack_seconds = 0;
  /// The most bytes that are live while it is packed above those before, `bytes` included.
  int64_t pack_transient = 0;
  /// The most bytes that are live while it is unpacked above those before, the storage's own bytes included.
  int64_t unpack_transient = 0;
};

/// One allocation of the forward that outlives the node that made it. Parameters, buffers and inputs of the step are
/// no storages here: they are the baseline and cost nothing.
struct Storage {
  std::string name; ///< what a person reads, "%relu.3" or "%dropout.1 saved[0]"
  int64_t bytes = 0;
  int device = 0; ///< index into StepGraph::devices
  int producer = 0; ///< the forward node that allocates it
  bool internal = false; ///< no graph value shows it (mask, statistics, indices)
  bool output = false; ///< the caller holds it until the end of the backward
  /// False: the producer must not run again, or the storage is written after it was produced, or something that
  /// Recals cannot see holds it. Its fate is always Keep.
  bool recomputable = true;
  /// Held until the end of the step by something that is no slot (an unknown autograd node, say).
  bool pinned = false;
  /// Held until the forward ends, whatever its fate: a cast of a weight, which is in autocast's cache.
  bool held_in_forward = false;
  Policy policy = Policy::None;
  int pin = -1; ///< index into StepGraph::pins, the one that `policy` comes from; -1 none
  /// Forms that Fate::Pack can choose from. They count only for a storage that has a slot and is neither output nor
  /// pinned; without loss it need not be recomputable.
  std::vector<Pack> packs;
};

/// A cheaper way to run a node again, with the same bits, from what it has made and what was not dropped: a dropout
/// from its mask. A replay goes this way iff each storage in `reads` has fate Keep, or Pack without loss. It then reads
/// them, too, makes only those writes of the node that are dropped, and needs no generator state.
struct Recipe {
  std::vector<int> reads; ///< storages, in addition to those of the node; empty: there is no recipe
  double seconds = 0;
  std::vector<int64_t> transient; ///< per device, as Node::transient
};

/// One node of the straight-line forward, in execution order. Pure views have no writes and cost nothing.
struct Node {
  std::string op; ///< "aten::convolution"
  std::string where; ///< "model.py:12", or empty
  std::string module; ///< "layer1.0.conv1", or empty
  std::vector<int> reads; ///< storages read, each once; what a view shows counts as the storage below it
  std::vector<int> writes; ///< storages allocated here that outlive the node
  /// Per device: the most bytes that are live during the node above those at its start (`writes` included).
  std::vector<int64_t> transient;
  /// Bytes of generator state that a replay of this node needs; 0 for a node that draws nothing.
  int64_t rng_bytes = 0;
  int rng_device = 0; ///< the device that stores them (ATen hands generator states out in host memory); -1: not counted
  double seconds = 0; ///< estimated time of one run
  Recipe recipe;
};

/// One tensor that one autograd node saved. Several slots may share a storage.
struct Slot {
  int storage = 0;
  int node = 0; ///< the forward node whose autograd node saved it
};

/// What the backward does, in the order of the autograd engine. Releases of activations are not listed: they follow
/// from the slots and the fates.
struct BackwardEvent {
  enum class Kind : uint8_t {
    Use, ///< slot `index` is read: if its storage was dropped or packed, it is made again now
    Release, ///< slot `index` is gone (its autograd node has finished)
    Change, ///< gradient or temporary memory of `device` changes by `bytes` (negative: freed)
    Peak, ///< for a moment `device` holds `bytes` more (a kernel's workspace)
  };
  Kind kind = Kind::Change;
  int index = 0;
  int device = 0;
  int64_t bytes = 0;
  int label = -1; ///< index into StepGraph::backward_ops, the autograd node that runs; -1 none
};

/// What `seconds` come from.
struct CostSource {
  std::string name; ///< of the cost model; "profile": measured on the nodes themselves
  std::string hash; ///< of the model's numbers; empty for "profile"
};

/// How sure the step's scratch memory is: calls of kernels that allocate, by where the number of bytes comes from.
struct ScratchFacts {
  int measured = 0; ///< the kernel ran with these sizes on this machine
  int derived = 0; ///< from torch's sources
  int bounded = 0; ///< a rule that is meant to be above what is taken
  std::vector<std::string> bounded_ops{}; ///< of those that were to be measured and could not be, each once
};

struct StepGraph {
  std::vector<std::string> devices; ///< "cpu", "cuda:0", ...
  std::vector<Storage> storages;
  std::vector<Node> nodes;
  std::vector<Slot> slots;
  std::vector<BackwardEvent> backward;
  std::vector<std::string> backward_ops; ///< names of autograd nodes, for reports
  double backward_seconds = 0; ///< estimated, of the plain step's loss and backward
  CostSource cost_model{};
  std::vector<Pin> pins{};
  ScratchFacts scratch{};
};

} // namespace recals::plan
