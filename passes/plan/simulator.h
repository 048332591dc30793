#pragma once

/// The simulator behind `simulate`, for callers that ask thousands of times.
///
/// A Simulator turns a StepGraph into flat arrays once; every `run` then costs one pass over the nodes and one over the
/// backward events, without an allocation. It is exact: `run` and `simulate` are the same code.

#include <vector>

#include "passes/plan/simulate.h"

namespace recals::plan {

/// A compressed list of lists: the entries of list i are `begin(i)..end(i)`.
struct Lists {
  std::vector<int> offsets{0};
  std::vector<int> entries;

  const int* begin(int i) const {
    return entries.data() + offsets[i];
  }
  const int* end(int i) const {
    return entries.data() + offsets[i + 1];
  }
  int size(int i) const {
    return offsets[i + 1] - offsets[i];
  }
  void close() {
    offsets.push_back(static_cast<int>(entries.size()));
  }
};

/// What never changes while fates do.
struct StepIndex {
  explicit StepIndex(const StepGraph& graph);

  int devices = 0;
  int nodes = 0;
  int storages = 0;

  // Per storage.
  std::vector<int64_t> bytes;
  std::vector<int> device;
  std::vector<int> producer;
  std::vector<int> last_read; ///< the forward node after which nothing of the forward needs it
  std::vector<int> slots; ///< how many
  std::vector<uint8_t> stays; ///< output or pinned: never freed
  std::vector<uint8_t> recomputable;
  Lists readers; ///< nodes, ascending

  // Per node.
  Lists reads; ///< each storage once
  Lists writes;
  Lists dying; ///< storages whose last_read is this node
  std::vector<int64_t> transient; ///< [node * devices + device]
  std::vector<int64_t> rng_bytes;
  std::vector<int> rng_device;
  std::vector<double> seconds;

  struct Event {
    BackwardEvent::Kind kind;
    int target; ///< the storage of the slot, or the device
    int64_t bytes;
  };
  std::vector<Event> backward;
};

class Simulator {
 public:
  explicit Simulator(const StepGraph& graph);

  /// Overwrites what `peak`, ... answer. `fates` has one entry per storage.
  void run(const std::vector<Fate>& fates);
  /// Stops before the memory passes if the recompute time is above `most_seconds`; or as soon as a peak is above its
  /// limit (`limits`: one per device). Returns whether the step ran through, within both.
  bool fits(const std::vector<Fate>& fates, const std::vector<int64_t>& limits, double most_seconds);

  const StepIndex& index() const {
    return index_;
  }
  const std::vector<PeakPoint>& peak() const {
    return peak_;
  }
  const std::vector<int64_t>& held() const {
    return held_;
  }
  double recompute_seconds() const {
    return seconds_;
  }
  bool replays(int node) const {
    return in_n_[node] != 0;
  }
  /// The component of a node of N: any id that the nodes of one component share; -1 for a node that is not in N.
  int component(int node) const {
    return in_n_[node] ? component_[node] : -1;
  }
  /// Some node of N reads the storage.
  bool wanted(int storage) const {
    return n_readers_[storage] > 0;
  }
  /// Nodes of N in forward order.
  void replayed(std::vector<int>& nodes) const;

  /// Filled by the next runs if not null.
  void record_curve(std::vector<CurvePoint>* curve) {
    curve_ = curve;
  }

 private:
  void close_over(const std::vector<Fate>& fates);
  void find_components();
  bool forward();
  bool backward();
  bool replay(int storage, int event);
  void release(int storage);
  void end_component(int root);
  int root_of(int node);
  bool touch(int device, int64_t bytes);
  void mark(bool in_backward, int index);

  StepIndex index_;

  // Of a run.
  std::vector<uint8_t> dropped_; ///< per storage: fate Recompute
  std::vector<int> n_readers_; ///< per storage: nodes of N that read it
  std::vector<int> readers_left_; ///< dropped: those that have not run; kept: those whose component holds it
  std::vector<int> slots_left_;
  std::vector<uint8_t> cached_;
  std::vector<uint8_t> in_n_; ///< per node
  std::vector<int> component_; ///< per node, union-find parent, then root
  std::vector<int> next_in_component_; ///< per node of N, a linked list; -1 ends it
  std::vector<int> first_in_component_; ///< per root
  std::vector<int> component_slots_; ///< per root: slots in D that are not released
  std::vector<int> replayed_at_;
  std::vector<int> todo_;
  std::vector<int64_t> live_;
  std::vector<int64_t> most_;
  std::vector<PeakPoint> peak_;
  std::vector<int64_t> held_;
  const int64_t* limits_ = nullptr; ///< stop at the first moment above one
  double seconds_ = 0;
  bool in_backward_ = false;
  int now_ = 0;
  int replaying_ = -1;
  std::vector<CurvePoint>* curve_ = nullptr;
};

} // namespace recals::plan
