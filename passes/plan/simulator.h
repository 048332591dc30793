#pragma once

/// The simulator behind `simulate`, for callers that ask thousands of times.
///
/// A Simulator turns a StepGraph into flat arrays once; every `run` then costs one pass over the nodes and one over the
/// backward events, without an allocation. It is exact: `run` and `simulate` are the same code.

#include <vector>

#include "passes/plan/replays.h"

namespace recals::plan {

class Simulator {
 public:
  explicit Simulator(const StepGraph& graph);
  Simulator(const Simulator&) = delete;
  Simulator& operator=(const Simulator&) = delete;

  /// Overwrites what `peak`, ... answer. `choices` has one entry per storage.
  void run(const std::vector<Choice>& choices);
  /// Stops as soon as a peak is above its limit (`limits`: one per device). Returns whether the step ran through, within
  /// the limits and within `most_seconds` of extra time.
  bool fits(const std::vector<Choice>& choices, const std::vector<int64_t>& limits, double most_seconds);

  const StepIndex& index() const {
    return index_;
  }
  const std::vector<PeakPoint>& peak() const {
    return peak_;
  }
  const std::vector<int64_t>& held() const {
    return held_;
  }
  double recompute_seconds() const;
  double pack_seconds() const {
    return pack_seconds_;
  }
  double extra_seconds() const {
    return recompute_seconds() + pack_seconds_;
  }
  int64_t recomputed_bytes() const;
  bool replays(int node) const {
    return in_n_[node] != 0;
  }
  bool by_recipe(int node) const {
    return replays_.by_recipe(node);
  }
  /// How often the backward ran a node of N.
  int runs(int node) const {
    return runs_[node];
  }
  /// How often the backward unpacked a storage.
  int unpacked(int storage) const {
    return unpacked_[storage];
  }
  /// The producer would have to run again for a replay that reads the storage.
  bool dropped(int storage) const {
    return needs_producer(replays_.mode(storage));
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
  friend class Replays<Simulator>;

  void close_over(const std::vector<Choice>& choices);
  bool forward();
  bool backward();
  void release(int slot);
  bool touch(int device, int64_t bytes);
  void mark(bool in_backward, int index);

  // What Replays tells.
  void node_runs(int node, bool by_recipe);
  void unpack_runs(int storage, int reader);
  void made(int storage);
  void gone(int storage);
  void node_dies(int node);
  void form_goes(int storage);

  StepIndex index_;
  Replays<Simulator> replays_;

  // Of a run.
  std::vector<const Pack*> pack_; ///< per storage: null: not packed
  std::vector<int> n_readers_; ///< per storage: nodes of N that read it
  std::vector<int> holders_; ///< per kept storage: those that are live
  std::vector<int> slots_left_;
  std::vector<uint8_t> in_n_; ///< per node
  std::vector<int> runs_; ///< per node
  std::vector<int> unpacked_; ///< per storage
  std::vector<int64_t> live_;
  std::vector<int64_t> most_;
  std::vector<PeakPoint> peak_;
  std::vector<int64_t> held_;
  const int64_t* limits_ = nullptr; ///< stop at the first moment above one
  bool within_ = true; ///< no limit was exceeded yet
  double pack_seconds_ = 0;
  bool in_backward_ = false;
  int now_ = 0;
  int replaying_ = -1;
  std::vector<CurvePoint>* curve_ = nullptr;
};

} // namespace recals::plan
