#pragma once

/// The simulator for a search that changes a few choices at a time.
///
/// Simulator costs a pass over the step for every question. IncrementalSimulator keeps the memory curve of one set of
/// choices and, when some of them change, replays only the components that they touch; everything else is a few additions
/// to ranges of the curve. Both answer the same to the byte (test/core/incremental_test.cpp).
///
/// Note [Components]
/// An element is a node of N, or the unpacking of a packed storage. Two elements are of one component if one makes a
/// dropped or packed storage that the other reads. What a component caches, and when, depends on nothing else, so it is
/// played alone, and all that it does to memory is a list of steps of the curve.
///
/// Note [Moments]
/// The curve is an array of moments: one per forward node, one per Use that may replay, one per run of Change and Peak
/// events that no other event interrupts. Its value is the most that the device holds during the moment. A storage that
/// is live from moment a until before moment b adds its bytes to [a, b). A Release needs no moment of its own, because
/// memory only falls there; it lies on a boundary: b is the number of moments before it.

#include <vector>

#include "passes/plan/replays.h"

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
  static constexpr int kBlock = 64; ///< moments in a block, and blocks in a group

  /// Blocks, or groups of them: what is known of all their moments at once.
  struct Level {
    void resize(size_t count);
    void add(size_t i, double bytes);

    std::vector<double> added; ///< what the values below lack
    std::vector<double> most; ///< these three with `added`, without that of the level above
    std::vector<double> least;
    std::vector<double> sum;
    std::vector<double> moments; ///< how many
    std::vector<uint8_t> stale; ///< `most`, `least` and `sum` are out of date
  };

  void add_to_group(int group, int begin, int end, double bytes);
  void refresh();
  void refresh_block(size_t block);
  void refresh_group(size_t group);
  double above_of_block(size_t block, double limit) const;
  double above_of_group(size_t group) const;
  void mark(int group) {
    if (!dirty_[group]) {
      dirty_[group] = 1;
      todo_.push_back(group);
    }
  }

  int64_t limit_;
  size_t size_;
  std::vector<double> values_; ///< bytes are exact in a double up to 2^53
  Level blocks_;
  Level groups_;
  std::vector<int64_t> above_of_; ///< per group
  std::vector<uint8_t> dirty_; ///< per group: it changed, and is in `todo_`
  std::vector<int> todo_;
  int64_t above_ = 0;
};

/// One storage and what becomes of it.
struct Change {
  int storage = 0;
  Choice choice;
};

class IncrementalSimulator {
 public:
  /// Starts from the plain step. Devices without a limit (kNoBudget) are not looked at.
  IncrementalSimulator(const StepIndex& index, const std::vector<int64_t>& limits);
  IncrementalSimulator(const IncrementalSimulator&) = delete;
  IncrementalSimulator& operator=(const IncrementalSimulator&) = delete;

  /// Changes choices (each storage at most once; what is not possible counts as Keep). The last change can be undone
  /// until the next one.
  void change(const std::vector<Change>& changes);
  void undo();

  void set_choices(const std::vector<Choice>& choices);
  void set_limits(const std::vector<int64_t>& limits);

  const Choice& choice(int storage) const {
    return choices_[storage];
  }
  const std::vector<Choice>& choices() const {
    return choices_;
  }
  /// The extra time, in units that add up without rounding; see `seconds_per_tick`.
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
  /// What the search makes small: `ticks`, and the whole forward's for every PREFER policy that is not followed.
  int64_t cost() const {
    return ticks_ + (int64_t{1} << 50) * preferences_missed_;
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
  /// Grows by about what a change costs, 20 to 40 ns a unit; unlike a clock it is the same every time.
  int64_t work() const {
    return work_;
  }
  const StepIndex& index() const {
    return index_;
  }

 private:
  friend class Replays<IncrementalSimulator>;

  /// From `moment` on, `device` holds `bytes` more.
  struct Step {
    int moment;
    int device;
    double bytes;
  };
  struct Component {
    std::vector<int> elements; ///< ascending; nodes, then index_.nodes + packed storages
    std::vector<int> live_end; ///< per element that is a node: the boundary at which it dies
    std::vector<Step> steps;
    int64_t ticks = 0;
  };
  struct RangeAdded {
    int curve;
    int begin;
    int end;
    double bytes;
  };
  struct Before {
    int index;
    int value;
  };
  struct BumpBefore {
    int index;
    double value;
  };

  void build_moments();
  int64_t ticks_for(double seconds) const;
  const Pack& pack_of(int storage) const {
    return index_.packs[storage][choices_[storage].pack];
  }
  int new_component();
  void put_choice(int storage, const Choice& choice);
  void gather(int component);
  void member(int element);
  void need(int node);
  void play(Component& component);
  int forward_end(int storage) const;
  void touch_storage(int storage);
  void touch_pack_bump(int node);
  void plan_step(int moment, int device, double bytes);
  void plan_steps(const Component& component, double sign);
  void apply_steps();

  // What Replays tells.
  void node_runs(int node, bool by_recipe);
  void unpack_runs(int storage, int reader);
  void made(int storage);
  void gone(int storage);
  void node_dies(int node);
  void form_goes(int storage);

  const StepIndex& index_;
  Replays<IncrementalSimulator> replays_;
  int moments_ = 0;
  std::vector<int> position_; ///< per backward event: Use: its moment; Release: its boundary
  Lists events_of_; ///< per storage: its Use and Release events, ascending
  Lists slots_of_; ///< per storage
  std::vector<int> release_end_; ///< per storage: the boundary at which its last slot goes; 0 without slots
  std::vector<std::vector<double>> base_; ///< per device: the curve of everything that no choice changes
  std::vector<int64_t> ticks_of_; ///< per node
  std::vector<int64_t> recipe_ticks_of_; ///< per node
  double seconds_per_tick_ = 1;
  std::vector<int> curve_of_; ///< per device; -1: no limit
  std::vector<MemoryCurve> curves_;
  std::vector<int> device_of_curve_;

  // The state.
  std::vector<Choice> choices_;
  std::vector<int> forward_end_; ///< per storage: the boundary at which the forward's copy goes
  std::vector<int> live_end_; ///< per node of N: the boundary at which it dies
  std::vector<double> pack_bump_; ///< [node * devices + device]: what packing adds in the moment of the node
  std::vector<int> component_of_; ///< per element, -1
  std::vector<Component> components_;
  std::vector<int> free_components_;
  int64_t ticks_ = 0;
  int64_t preferences_missed_ = 0;
  int64_t work_ = 0;

  // The last change.
  std::vector<Change> changed_from_;
  std::vector<RangeAdded> added_;
  std::vector<Before> forward_ends_before_;
  std::vector<BumpBefore> pack_bumps_before_;
  std::vector<int> old_components_;
  std::vector<int> new_components_;
  int64_t old_ticks_ = 0;

  // Scratch.
  int stamp_ = 0;
  std::vector<int> pool_; ///< elements of the components that are touched
  std::vector<int> members_; ///< elements that there are after the change, among those that are touched
  std::vector<int> member_stamp_; ///< per element
  std::vector<int> parent_; ///< per element, union-find
  std::vector<int> gathered_; ///< per component, stamp
  std::vector<int> storage_stamp_;
  std::vector<int> touched_storages_;
  std::vector<int> node_stamp_;
  std::vector<int> touched_packs_; ///< nodes whose packing changes
  std::vector<int> todo_;
  std::vector<int> events_;
  std::vector<std::vector<double>> steps_; ///< [curve][moment]: planned
  std::vector<std::vector<int>> stepping_; ///< [curve]: moments with a planned step, any order
  std::vector<Change> different_;

  // While a component is played.
  Component* playing_ = nullptr;
  int moment_ = 0; ///< of a Use; the boundary of a Release
  bool in_use_event_ = false;
  std::vector<double> now_; ///< per device: above the begin of the moment
  std::vector<double> most_; ///< per device
};

} // namespace recals::plan
