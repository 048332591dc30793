#include "runtime/replay_needs.h"

#include <algorithm>

namespace recals {

ReplayNeeds::ReplayNeeds(
    const Program& program,
    const ReplayGraph& graph,
    const std::vector<int>& slots,
    Listener& listener)
    : program_(program), graph_(graph), listener_(listener), live_makes_(program.nodes.size(), 0) {
  begin_again(slots);
  // What waits is what lives: at first every node that lives is pending.
  live_ = wanted_;
  live_makes_ = missing_;
  for (size_t n = 0; n < program.nodes.size(); ++n) {
    if (program.nodes[n].replayed && live_makes_[n] == 0) {
      listener_.node_dead(static_cast<int>(n));
    }
  }
  for (size_t reg = 0; reg < live_.size(); ++reg) {
    if (live_[reg] == 0) {
      listener_.dead(static_cast<int>(reg));
    }
  }
}

void ReplayNeeds::begin_again(const std::vector<int>& slots) {
  wanted_.assign(program_.registers.size(), 0);
  retained_.assign(program_.registers.size(), 0);
  missing_.assign(program_.nodes.size(), 0);
  for (size_t reg = 0; reg < slots.size(); ++reg) {
    wanted_[reg] = counts_slots(static_cast<int>(reg)) ? slots[reg] : 0;
  }
  // Readers come after makers.
  for (size_t n = program_.nodes.size(); n-- > 0;) {
    for (int reg : graph_.makes[n]) {
      missing_[n] += wanted_[reg] > 0 ? 1 : 0;
    }
    if (missing_[n] > 0) {
      for (int reg : graph_.reads[n]) {
        ++wanted_[reg];
      }
    }
  }
}

void ReplayNeeds::retain(int reg) {
  retained_[reg] = 1;
  no_longer_missing(reg);
}

void ReplayNeeds::slot_used(int reg) {
  if (counts_slots(reg)) {
    want_less(reg);
  }
}

void ReplayNeeds::slot_released(int reg, bool waited) {
  if (counts_slots(reg)) {
    if (waited) {
      want_less(reg);
    }
    live_less(reg);
  }
}

void ReplayNeeds::want_less(int reg) {
  if (--wanted_[reg] > 0) {
    return;
  }
  if (retained_[reg]) {
    retained_[reg] = 0;
  } else {
    no_longer_missing(reg);
  }
  listener_.unwanted(reg);
}

void ReplayNeeds::no_longer_missing(int reg) {
  const int maker = graph_.maker[reg];
  if (maker >= 0 && --missing_[maker] == 0) {
    for (int read : graph_.reads[maker]) {
      want_less(read);
    }
  }
}

void ReplayNeeds::live_less(int reg) {
  if (--live_[reg] > 0) {
    return;
  }
  listener_.dead(reg);
  const int maker = graph_.maker[reg];
  if (maker >= 0 && --live_makes_[maker] == 0) {
    listener_.node_dead(maker);
    for (int read : graph_.reads[maker]) {
      live_less(read);
    }
  }
}

} // namespace recals
