#pragma once

/// Whether what the devices hold in the backward depends on how the threads of the autograd engine are scheduled.
///
/// Note [Order between devices]
/// The engine runs the backward of each device in a thread of its own. A dry run sees one order of all autograd nodes; in
/// the step, those of two devices that do not wait for each other run at the same time. What thread e does to the memory of
/// another device d (a gradient is copied there, a tensor from there is let go), or to the queue of d's thread (a node has
/// all its gradients now), then comes earlier or later among what thread d does than was recorded.
///
/// It does not if thread d has to wait for it. Node a *precedes* b if b needs, perhaps through others, a gradient that a
/// makes, or if their thread runs a before b. So, for each node b of thread e that touches device d: the last node of
/// thread d before b must precede it, it must precede the next one of thread d, and all others that touch d between these
/// must be in a row with it. If this holds for all nodes, every thread meets the same queue each time it looks, and the
/// memory of every device is as recorded, by induction over the recorded order.
///
/// The relation is kept as vector clocks: per node and thread, how many nodes of the thread precede it or are itself.

#include <optional>
#include <unordered_map>
#include <vector>

#include <torch/csrc/autograd/function.h>

#include "runtime/device_table.h"

namespace recals {

/// Two autograd nodes that may run at the same time, where the memory of a device depends on which is first.
struct Overlap {
  int one = 0; ///< index into StepGraph::backward_ops
  int other = 0;
};

class BackwardOrder {
 public:
  /// `devices`: of the dry run.
  explicit BackwardOrder(const DeviceTable& devices);

  /// The next autograd node of the recorded order. `label`: its index into StepGraph::backward_ops.
  void begins(const torch::autograd::Node& node, int label);
  /// The node that runs changes what a device holds.
  void touches(int device);
  /// The first of each device, if there is one.
  std::vector<std::optional<Overlap>> finish();

 private:
  using Clock = std::vector<int>; ///< per thread; the thread of device d has the number d
  struct Run {
    int label = -1;
    int thread = 0;
    Clock clock;
  };

  int thread_of(const torch::autograd::Node& node) const;
  bool precedes(const Run& one, const Run& other) const;
  void must_precede(const Run& one, const Run& other, int device);
  void ends();

  const DeviceTable& devices_;
  std::optional<Run> now_;
  std::vector<bool> touched_; ///< devices, by the node that runs
  std::vector<std::optional<Run>> last_; ///< per thread: the last node that it ran
  std::vector<std::vector<Run>> visits_; ///< per device: since then, nodes of other threads that touched it
  std::unordered_map<const torch::autograd::Node*, Clock>
      awaited_; ///< of nodes that have not run: of what they wait for
  std::vector<std::optional<Overlap>> overlaps_;
};

} // namespace recals
