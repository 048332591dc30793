#pragma once

/// Who still needs what: the words *live*, *wanted* and *pending* of Note [What the executor does with fates]
/// (passes/plan/simulate.h), kept up to date as slots are used and released. Knows no tensors.

#include <vector>

#include "runtime/replay_graph.h"

namespace recals {

class ReplayNeeds {
 public:
  /// Told as it happens.
  class Listener {
   public:
    virtual ~Listener() = default;
    /// Nothing that is still to come reads it: what is retained of it can go.
    virtual void unwanted(int reg) = 0;
    /// No slot and no replay will ever ask for it: what is held of it, or packed, can go.
    virtual void dead(int reg) = 0;
    virtual void node_dead(int node) = 0;
  };

  /// `slots`: per register, those that are dropped and not released; none of them has been used.
  ReplayNeeds(const Program& program, const ReplayGraph& graph, const std::vector<int>& slots, Listener& listener);

  bool wanted(int reg) const {
    return wanted_[reg] > 0;
  }
  bool retained(int reg) const {
    return retained_[reg] != 0;
  }
  void retain(int reg);

  void slot_used(int reg);
  /// `waited`: it had not been used.
  void slot_released(int reg, bool waited);

  /// All `slots` wait again, and nothing is retained.
  void begin_again(const std::vector<int>& slots);

 private:
  /// Slots ask for the register's own storage, not for a form of their own.
  bool counts_slots(int reg) const {
    const auto& info = program_.registers[reg];
    return info.recomputed || (info.packer != nullptr && info.packer->lossless);
  }
  void want_less(int reg);
  void no_longer_missing(int reg);
  void live_less(int reg);

  const Program& program_;
  const ReplayGraph& graph_;
  Listener& listener_;
  std::vector<int> live_; ///< per register: slots + live nodes that read it
  std::vector<int> live_makes_; ///< per node: live registers that it makes
  std::vector<int> wanted_; ///< per register: slots that wait + pending nodes that read it
  std::vector<uint8_t> retained_; ///< per register
  std::vector<int> missing_; ///< per node: registers that it makes, that are wanted and not retained; pending if any
};

} // namespace recals
