#pragma once

/// The simulator for a search that changes a few fates at a time.
///
/// Simulator costs a pass over the step for every question. IncrementalSimulator keeps the memory curve of one set of
/// fates and, when some of them flip, replays only the components that they touch; everything else is a few additions
/// to ranges of the curve. Both answer the same to the byte (test/core/incremental_test.cpp).
///
/// Note [Moments]
/// The curve is an array of moments: one per forward node, one per Use that may replay, one per run of Change and Peak
/// events that no other event interrupts. Its value is the most that the device holds during the moment. A storage that
/// is live from moment a until before moment b adds its bytes to [a, b). A Release needs no moment of its own, because
/// memory only falls there; it lies on a boundary: b is the number of moments before it.

#include <vector>

#include "passes/plan/step_index.h"

namespace recals::plan {

/// An array of memory per moment with range additions, its maximum, and how far it is above a limit in sum.
class MemoryCurve {
 public:
  MemoryCurve(std::vector<double> values, int64_t limit);

  void add(int begin, int end, double bytes);
  void set_limit(int64_t limit);
  int64_t limit() const {
    return limit_;
  }
  /// Sum over the moments of the bytes above the limit.
  int64_t above();
  int64_t peak();

 private:
  static constexpr int kBlock = 64;

  void refresh();
  void mark(int block) {
    if (!dirty_[block]) {
      dirty_[block] = 1;
      todo_.push_back(block);
    }
  }

  int64_t limit_;
  std::vector<double> values_; ///< without their block's `added_`; bytes are exact in a double up to 2^53
  std::vector<double> added_; ///< per block
  std::vector<double> most_; ///< per block, `added_` included
  std::vector<int64_t> above_of_; ///< per block
  std::vector<uint8_t> dirty_; ///< per block: `above_of_` is out of date
  std::vector<uint8_t> stale_; ///< per block: `most_` is, too
  std::vector<int> todo_;
  int64_t above_ = 0;
};

class IncrementalSimulator {
 public:
  /// Starts from the plain step. Devices without a limit (kNoBudget) are not looked at.
  IncrementalSimulator(const StepIndex& index, const std::vector<int64_t>& limits);

  /// Flips the fates of these storages (recomputable, each once). The last flip can be undone until the next one.
  void flip(const std::vector<int>& storages);
  void undo();

  void set_fates(const std::vector<Fate>& fates);
  void set_limits(const std::vector<int64_t>& limits);

  Fate fate(int storage) const {
    return dropped_[storage] ? Fate::Recompute : Fate::Keep;
  }
  std::vector<Fate> fates() const;
  /// Seconds of N, in units that add up without rounding; see `seconds_per_tick`.
  int64_t ticks() const {
    return ticks_;
  }
  double seconds() const {
    return static_cast<double>(ticks_) * seconds_per_tick_;
  }
  double seconds_per_tick() const {
    return seconds_per_tick_;
  }
  int64_t ticks_of(int node) const {
    return ticks_of_[node];
  }
  /// The sum over moments and devices of the share by which a moment is above the device's limit; 0 if all fits.
  double violation();
  int64_t peak(int device);

  bool replays(int node) const {
    return component_of_[node] >= 0;
  }
  int moments() const {
    return moments_;
  }
  /// Grows by about what a flip costs, 20 to 40 ns a unit; unlike a clock it is the same every time.
  int64_t work() const {
    return work_;
  }
  const StepIndex& index() const {
    return index_;
  }

 private:
  struct Component {
    std::vector<int> nodes; ///< ascending
    int end = 0; ///< the boundary at which it lets go
  };
  struct Change {
    enum class What : uint8_t { ForwardEnd, Cache, Rng, Bump, ReplayedAt } what;
    int index;
    int a;
    int b;
    double bytes;
  };

  void build_moments();
  int new_component();
  void gather(int component);
  void need(int node);
  void replay_component(Component& component);
  void run_nodes(int storage, int moment);
  int forward_begin(int storage) const {
    return index_.producer[storage] + 1;
  }
  int forward_end(int storage) const;

  void add(int device, int begin, int end, double bytes);
  void put_forward_end(int storage, int end);
  void put_cache(int storage, int begin, int end);
  void put_rng(int node, int end);
  void put_bump(int slot, double bytes);
  void set_forward_end(int storage, int end);
  void set_cache(int storage, int begin, int end);
  void set_rng(int node, int end);
  void set_bump(int slot, double bytes);
  void set_replayed_at(int node, int moment);

  const StepIndex& index_;
  int moments_ = 0;
  std::vector<int> position_; ///< per backward event: Use: its moment; Release: its boundary
  Lists events_of_; ///< per storage: its Use and Release events, ascending
  std::vector<int> release_end_; ///< per storage: the boundary at which its last slot goes; 0 without slots
  std::vector<std::vector<double>> base_; ///< per device: the curve of everything that no fate changes
  std::vector<int64_t> ticks_of_; ///< per node
  double seconds_per_tick_ = 1;
  std::vector<int> curve_of_; ///< per device; -1: no limit
  std::vector<MemoryCurve> curves_;
  std::vector<int> device_of_curve_;

  // The state. What is live from moment a until before moment b is written as [a, b).
  std::vector<uint8_t> dropped_;
  std::vector<int> forward_end_; ///< per storage: the forward's copy is live in [forward_begin, this)
  std::vector<int> cache_begin_; ///< per storage; begin == end: not cached
  std::vector<int> cache_end_;
  std::vector<int> rng_end_; ///< per node; 0: nothing stored
  std::vector<double> bump_; ///< [moment * devices + device]: what a replay adds within its moment
  std::vector<int> replayed_at_; ///< per node: moment, -1
  std::vector<int> component_of_; ///< per node, -1
  std::vector<Component> components_;
  std::vector<int> free_components_;
  int64_t ticks_ = 0;
  int64_t work_ = 0;

  // The last flip.
  std::vector<int> flipped_;
  std::vector<Change> log_;
  std::vector<int> old_components_;
  std::vector<int> new_components_;
  int64_t old_ticks_ = 0;

  // Scratch.
  int stamp_ = 0;
  std::vector<int> pool_; ///< nodes of the components that are touched
  std::vector<int> members_; ///< nodes of N among those that are touched
  std::vector<int> member_stamp_; ///< per node
  std::vector<int> parent_; ///< per node, union-find
  std::vector<int> gathered_; ///< per component, stamp
  std::vector<int> storage_stamp_;
  std::vector<int> touched_storages_;
  std::vector<int> moment_stamp_;
  std::vector<int> touched_moments_;
  std::vector<double> new_bump_; ///< [moment * devices + device]
  std::vector<int> readers_left_;
  std::vector<int> slots_left_;
  std::vector<int> new_begin_;
  std::vector<int> new_end_;
  std::vector<uint8_t> cached_;
  std::vector<uint8_t> ran_; ///< per node
  std::vector<int> todo_;
  std::vector<int> events_;
  std::vector<double> now_; ///< per device: within a moment, above its start
};

} // namespace recals::plan
