#pragma once

/// A StepGraph as flat arrays, for simulators that are asked thousands of times: what never changes while choices do.

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
  void append(const std::vector<std::vector<int>>& lists);
};

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
  std::vector<int> freed_at; ///< the forward node at whose end it goes if it is dropped: last_read, or the last node
  std::vector<int> slots; ///< how many
  std::vector<int> first_save; ///< the first node that saves it; -1 without slots
  std::vector<uint8_t> stays; ///< output or pinned: never freed
  std::vector<uint8_t> recomputable;
  std::vector<Policy> policy;
  std::vector<std::vector<Pack>> packs; ///< those that can be chosen
  Lists readers; ///< nodes, ascending
  Lists recipe_readers; ///< nodes whose recipe reads it

  // Per node.
  Lists reads; ///< each storage once
  Lists writes;
  Lists dying; ///< storages whose freed_at is this node
  Lists saved_first; ///< storages that have packs and whose first_save is this node
  Lists recipe_needs; ///< storages of the recipe; empty: there is none
  Lists recipe_reads; ///< those that `reads` lacks
  std::vector<int64_t> transient; ///< [node * devices + device]
  std::vector<int64_t> recipe_transient; ///< [node * devices + device]
  std::vector<int64_t> rng_bytes;
  std::vector<int> rng_device;
  std::vector<double> seconds;
  std::vector<double> recipe_seconds;

  std::vector<int> slot_storage; ///< per slot
  std::vector<int> slot_node; ///< per slot

  struct Event {
    BackwardEvent::Kind kind;
    int target; ///< the storage of the slot, or the device
    int64_t bytes;
    int slot; ///< of Use and Release
  };
  std::vector<Event> backward;

  /// The choice as it counts: Keep if it is not possible.
  Choice possible(int storage, const Choice& choice) const;
};

/// What a choice is for those who need the storage.
enum class Mode : uint8_t {
  Kept,
  Dropped, ///< Fate::Recompute
  Packed, ///< without loss
  PackedSlots, ///< with loss: a form serves the slots, replays that read it run the producer
};

inline bool needs_producer(Mode mode) {
  return mode == Mode::Dropped || mode == Mode::PackedSlots;
}

inline Mode mode_of(const StepIndex& index, int storage, const Choice& choice) {
  switch (choice.fate) {
    case Fate::Keep:
      return Mode::Kept;
    case Fate::Recompute:
      return Mode::Dropped;
    case Fate::Pack:
      return index.packs[storage][choice.pack].lossless ? Mode::Packed : Mode::PackedSlots;
  }
  return Mode::Kept;
}

} // namespace recals::plan
