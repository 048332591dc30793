#pragma once

/// What the backward does to storages that were dropped or packed: Note [What the executor does with fates]
/// (passes/plan/simulate.h), from the paragraph "Live" on, for a set of nodes and storages that no other replay touches:
/// the whole step (Simulator), or one component of it (IncrementalSimulator).
///
/// `Replays` knows who is live, pending, wanted, retained and at hand. What that does to memory is told to a Memory:
///
///   void node_runs(int node, bool by_recipe);   its transient is the most for a moment
///   void unpack_runs(int storage, int reader);  unpack_transient is; `reader`: the node that is about to read it, or -1
///   void made(int storage);                     a copy is there
///   void gone(int storage);                     a copy is not there any more
///   void node_dies(int node);                   its generator state goes, and it lets go of the kept storages it reads
///   void form_goes(int storage);                the packed form goes
///
/// A memory that stops a simulation (a limit is exceeded) does so between events; what it is told until then is harmless.

#include <algorithm>
#include <vector>

#include "passes/plan/step_index.h"

namespace recals::plan {

template <class Memory>
class Replays {
 public:
  Replays(const StepIndex& index, Memory& memory) : index_(index), memory_(memory) {
    const int storages = index.storages;
    mode_.assign(storages, Mode::Kept);
    cache_from_.assign(storages, Choice::kAlways);
    waiting_.assign(storages, 0);
    pending_readers_.assign(storages, 0);
    unreleased_.assign(storages, 0);
    live_readers_.assign(storages, 0);
    demand_readers_.assign(storages, 0);
    form_slots_.assign(storages, 0);
    form_users_.assign(storages, 0);
    in_use_.assign(storages, 0);
    retained_.assign(storages, 0);
    at_hand_.assign(storages, 0);
    by_recipe_.assign(index.nodes, 0);
    wanted_writes_.assign(index.nodes, 0);
    live_writes_.assign(index.nodes, 0);
    demanded_.assign(index.nodes, 0);
    slot_.assign(index.slot_storage.size(), kWaits);
  }

  void set_choice(int storage, Mode mode, int cache_from) {
    mode_[storage] = mode;
    cache_from_[storage] = cache_from;
  }
  Mode mode(int storage) const {
    return mode_[storage];
  }
  bool by_recipe(int node) const {
    return by_recipe_[node] != 0;
  }
  /// Decides whether a node of N goes by its recipe: all that it needs was not dropped.
  bool choose_way(int node) {
    const int* const begin = index_.recipe_needs.begin(node);
    const int* const end = index_.recipe_needs.end(node);
    by_recipe_[node] = begin != end && std::none_of(begin, end, [&](int s) { return needs_producer(mode_[s]); });
    return by_recipe_[node] != 0;
  }
  /// Calls `visit` for what a replay of the node reads.
  template <class Visit>
  void for_each_read(int node, const Visit& visit) const {
    for (const int* s = index_.reads.begin(node); s != index_.reads.end(node); ++s) {
      visit(*s);
    }
    if (by_recipe_[node]) {
      for (const int* s = index_.recipe_reads.begin(node); s != index_.recipe_reads.end(node); ++s) {
        visit(*s);
      }
    }
  }

  // Before the backward: first `reset` for every storage that is not kept, and `expect` for every node of N; then
  // `begin` for every node of N.
  void reset(int storage) {
    const bool for_slots = mode_[storage] == Mode::Dropped || mode_[storage] == Mode::Packed;
    waiting_[storage] = unreleased_[storage] = for_slots ? index_.slots[storage] : 0;
    pending_readers_[storage] = live_readers_[storage] = 0;
    form_slots_[storage] = mode_[storage] == Mode::PackedSlots ? index_.slots[storage] : 0;
    form_users_[storage] = 0;
    in_use_[storage] = 0;
    retained_[storage] = at_hand_[storage] = 0;
  }
  void reset_slot(int slot) {
    slot_[slot] = kWaits;
  }
  void expect(int node) {
    for_each_read(node, [&](int s) {
      if (mode_[s] != Mode::Kept) {
        ++pending_readers_[s];
        ++live_readers_[s];
      }
    });
  }
  void begin(int node) {
    int wanted = 0;
    for (const int* s = index_.writes.begin(node); s != index_.writes.end(node); ++s) {
      wanted += needs_producer(mode_[*s]) && waiting_[*s] + pending_readers_[*s] > 0 ? 1 : 0;
    }
    wanted_writes_[node] = live_writes_[node] = wanted;
  }

  // The backward.
  void use(int slot) {
    const int t = index_.slot_storage[slot];
    const int v = index_.slot_node[slot];
    if (mode_[t] == Mode::Kept) {
      return;
    }
    if (mode_[t] == Mode::PackedSlots) {
      if (form_users_[t] == 0) {
        memory_.unpack_runs(t, -1);
        memory_.made(t);
      }
      if (slot_[slot] == kWaits) {
        slot_[slot] = kInUse;
        ++form_users_[t];
      }
      return;
    }
    if (at_hand_[t]) {
      retain(t, v);
    } else if (mode_[t] == Mode::Packed) {
      unpack(t, -1, v);
    } else {
      replay(t, v);
    }
    if (slot_[slot] == kWaits) {
      slot_[slot] = kInUse;
      ++in_use_[t];
      if (--waiting_[t] == 0 && pending_readers_[t] == 0) {
        unwanted_.push_back(t);
        spread();
      }
    }
  }

  void release(int slot) {
    const int t = index_.slot_storage[slot];
    const uint8_t was = slot_[slot];
    slot_[slot] = kReleased;
    if (mode_[t] == Mode::Kept || was == kReleased) {
      return;
    }
    if (mode_[t] == Mode::PackedSlots) {
      if (was == kInUse && --form_users_[t] == 0) {
        memory_.gone(t);
      }
      if (--form_slots_[t] == 0) {
        memory_.form_goes(t);
      }
      return;
    }
    if (was == kInUse && --in_use_[t] == 0 && !retained_[t]) {
      leave(t);
    }
    if (was == kWaits && --waiting_[t] == 0 && pending_readers_[t] == 0) {
      unwanted_.push_back(t);
      spread();
    }
    if (--unreleased_[t] == 0 && live_readers_[t] == 0) {
      dead_.push_back(t);
      bury();
    }
  }

 private:
  static constexpr uint8_t kWaits = 0;
  static constexpr uint8_t kInUse = 1;
  static constexpr uint8_t kReleased = 2;

  bool wanted(int s) const {
    return waiting_[s] + pending_readers_[s] > 0;
  }

  void leave(int s) {
    at_hand_[s] = 0;
    memory_.gone(s);
  }

  /// For a storage at hand.
  void retain(int s, int v) {
    if (retained_[s] || v > cache_from_[s] || !wanted(s)) {
      return;
    }
    retained_[s] = 1;
    if (needs_producer(mode_[s])) {
      const int p = index_.producer[s];
      if (--wanted_writes_[p] == 0) {
        not_pending(p);
        spread();
      }
    }
  }

  void not_pending(int node) {
    for_each_read(node, [&](int s) {
      if (mode_[s] != Mode::Kept && --pending_readers_[s] == 0 && waiting_[s] == 0) {
        unwanted_.push_back(s);
      }
    });
  }

  /// What is no longer wanted goes, or makes its producer no longer pending, and so on.
  void spread() {
    while (!unwanted_.empty()) {
      const int s = unwanted_.back();
      unwanted_.pop_back();
      if (retained_[s]) {
        retained_[s] = 0;
        if (in_use_[s] == 0) {
          leave(s);
        }
      } else if (needs_producer(mode_[s]) && --wanted_writes_[index_.producer[s]] == 0) {
        not_pending(index_.producer[s]);
      }
    }
  }

  /// What is no longer live lets go of what it needs, and so on.
  void bury() {
    while (!dead_.empty()) {
      const int s = dead_.back();
      dead_.pop_back();
      if (mode_[s] == Mode::Packed) {
        memory_.form_goes(s);
      }
      if (!needs_producer(mode_[s]) || --live_writes_[index_.producer[s]] > 0) {
        continue;
      }
      const int node = index_.producer[s];
      memory_.node_dies(node);
      for_each_read(node, [&](int r) {
        if (mode_[r] != Mode::Kept && --live_readers_[r] == 0 && unreleased_[r] == 0) {
          dead_.push_back(r);
        }
      });
    }
  }

  void unpack(int s, int reader, int v) {
    memory_.unpack_runs(s, reader);
    memory_.made(s);
    at_hand_[s] = 1;
    retain(s, v);
  }

  void replay(int t, int v) {
    demand_.assign(1, index_.producer[t]);
    demanded_[demand_.front()] = 1;
    found_.clear();
    for (size_t i = 0; i < demand_.size(); ++i) {
      for_each_read(demand_[i], [&](int s) {
        if (mode_[s] == Mode::Kept) {
          return;
        }
        ++demand_readers_[s];
        if (at_hand_[s]) {
          found_.push_back(s);
        } else if (needs_producer(mode_[s]) && !demanded_[index_.producer[s]]) {
          demanded_[index_.producer[s]] = 1;
          demand_.push_back(index_.producer[s]);
        }
      });
    }
    std::sort(demand_.begin(), demand_.end());
    for (const int s : found_) {
      retain(s, v);
    }
    for (const int n : demand_) {
      run(n, t, v);
    }
    for (const int n : demand_) {
      demanded_[n] = 0;
    }
  }

  void run(int n, int t, int v) {
    for_each_read(n, [&](int s) {
      if (mode_[s] == Mode::Packed && !at_hand_[s]) {
        unpack(s, n, v);
      }
    });
    const bool by_recipe = by_recipe_[n] != 0;
    memory_.node_runs(n, by_recipe);
    // All that it wrote is there before any of it goes.
    for (const int* s = index_.writes.begin(n); s != index_.writes.end(n); ++s) {
      if (!by_recipe || needs_producer(mode_[*s])) {
        memory_.made(*s);
      }
    }
    for (const int* s = index_.writes.begin(n); s != index_.writes.end(n); ++s) {
      if (!needs_producer(mode_[*s])) {
        if (!by_recipe) {
          memory_.gone(*s);
        }
      } else if (at_hand_[*s]) {
        memory_.gone(*s);
      } else {
        at_hand_[*s] = 1;
        retain(*s, v);
        if (!retained_[*s] && demand_readers_[*s] == 0 && *s != t) {
          leave(*s);
        }
      }
    }
    for_each_read(n, [&](int s) {
      if (mode_[s] != Mode::Kept && --demand_readers_[s] == 0 && at_hand_[s] && !retained_[s] && in_use_[s] == 0) {
        leave(s);
      }
    });
  }

  const StepIndex& index_;
  Memory& memory_;

  // Per storage.
  std::vector<Mode> mode_;
  std::vector<int> cache_from_;
  std::vector<int> waiting_; ///< slots neither used nor released
  std::vector<int> pending_readers_; ///< nodes of N
  std::vector<int> unreleased_; ///< slots
  std::vector<int> live_readers_; ///< nodes of N
  std::vector<int> form_slots_; ///< packed with loss: slots that are not released
  std::vector<int> form_users_; ///< packed with loss: slots that are used and not released
  std::vector<int> demand_readers_; ///< nodes of the demand that have not run
  std::vector<int> in_use_; ///< slots that are used and not released
  std::vector<uint8_t> retained_;
  std::vector<uint8_t> at_hand_; ///< retained, in use, or of the demand that runs

  // Per node.
  std::vector<uint8_t> by_recipe_;
  std::vector<int> wanted_writes_; ///< needed from the producer, wanted, and not retained; 0: not pending
  std::vector<int> live_writes_;
  std::vector<uint8_t> demanded_;

  std::vector<uint8_t> slot_;

  // Scratch.
  std::vector<int> unwanted_;
  std::vector<int> dead_;
  std::vector<int> demand_;
  std::vector<int> found_;
};

} // namespace recals::plan
