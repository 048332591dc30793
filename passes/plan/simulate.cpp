#include "passes/plan/simulate.h"

#include <algorithm>
#include <cstddef>

#include "passes/plan/simulator.h"

namespace recals::plan {

Simulator::Simulator(const StepGraph& graph) : index_(graph), replays_(index_, *this) {
  const int nodes = index_.nodes;
  const int storages = index_.storages;
  pack_.resize(storages);
  n_readers_.resize(storages);
  holders_.resize(storages);
  slots_left_.resize(storages);
  unpacked_.resize(storages);
  in_n_.resize(nodes);
  runs_.resize(nodes);
  live_.resize(index_.devices);
  most_.resize(index_.devices);
  peak_.resize(index_.devices);
  held_.resize(index_.devices);
}

void Simulator::run(const std::vector<Choice>& choices) {
  limits_ = nullptr;
  close_over(choices);
  forward();
  backward();
}

bool Simulator::fits(const std::vector<Choice>& choices, const std::vector<int64_t>& limits, double most_seconds) {
  limits_ = limits.data();
  close_over(choices);
  return forward() && backward() && extra_seconds() <= most_seconds;
}

double Simulator::recompute_seconds() const {
  // Summed in forward order, so that the number does not depend on the order of the backward.
  double seconds = 0;
  for (int n = 0; n < index_.nodes; ++n) {
    if (runs_[n] > 0) {
      seconds += runs_[n] * (replays_.by_recipe(n) ? index_.recipe_seconds[n] : index_.seconds[n]);
    }
  }
  return seconds;
}

int64_t Simulator::recomputed_bytes() const {
  int64_t bytes = 0;
  for (int n = 0; n < index_.nodes; ++n) {
    for (const int* s = index_.writes.begin(n); s != index_.writes.end(n) && runs_[n] > 0; ++s) {
      bytes += !replays_.by_recipe(n) || dropped(*s) ? runs_[n] * index_.bytes[*s] : 0;
    }
  }
  return bytes;
}

void Simulator::replayed(std::vector<int>& nodes) const {
  nodes.clear();
  for (int n = 0; n < index_.nodes; ++n) {
    if (in_n_[n]) {
      nodes.push_back(n);
    }
  }
}

/// N, backwards through the forward: whoever reads a storage comes after the node that makes it.
void Simulator::close_over(const std::vector<Choice>& choices) {
  for (int s = 0; s < index_.storages; ++s) {
    const Choice choice = index_.possible(s, choices[s]);
    replays_.set_choice(s, mode_of(index_, s, choice), choice.cache_from);
    pack_[s] = choice.fate == Fate::Pack ? &index_.packs[s][choice.pack] : nullptr;
    n_readers_[s] = 0;
    unpacked_[s] = 0;
  }
  for (int n = index_.nodes - 1; n >= 0; --n) {
    bool needed = false;
    for (const int* s = index_.writes.begin(n); s != index_.writes.end(n); ++s) {
      needed |= (replays_.mode(*s) == Mode::Dropped && index_.slots[*s] > 0) || (dropped(*s) && n_readers_[*s] > 0);
    }
    in_n_[n] = needed;
    runs_[n] = 0;
    if (needed) {
      replays_.choose_way(n);
      replays_.for_each_read(n, [&](int s) { ++n_readers_[s]; });
    }
  }
}

/// `device` holds `bytes` for a moment. False: that is above the limit.
inline bool Simulator::touch(int device, int64_t bytes) {
  PeakPoint& peak = peak_[device];
  if (bytes > peak.bytes) {
    peak = {bytes, in_backward_, now_, replaying_};
    within_ &= !limits_ || bytes <= limits_[device];
  }
  if (curve_) {
    most_[device] = std::max(most_[device], bytes);
  }
  return within_;
}

void Simulator::mark(bool in_backward, int index) {
  curve_->push_back({in_backward, index, live_, most_});
  most_ = live_;
}

bool Simulator::forward() {
  const int devices = index_.devices;
  std::fill(live_.begin(), live_.end(), 0);
  std::fill(most_.begin(), most_.end(), 0);
  std::fill(peak_.begin(), peak_.end(), PeakPoint{});
  std::copy(index_.slots.begin(), index_.slots.end(), slots_left_.begin());
  std::copy(n_readers_.begin(), n_readers_.end(), holders_.begin());
  if (curve_) {
    curve_->clear();
  }
  pack_seconds_ = 0;
  within_ = true;
  in_backward_ = false;
  replaying_ = -1;
  for (int n = 0; n < index_.nodes; ++n) {
    now_ = n;
    if (in_n_[n] && !by_recipe(n) && index_.rng_bytes[n] > 0 && index_.rng_device[n] >= 0) {
      live_[index_.rng_device[n]] += index_.rng_bytes[n];
    }
    for (int d = 0; d < devices; ++d) {
      touch(d, live_[d] + index_.transient[static_cast<size_t>(n) * devices + d]);
    }
    for (const int* s = index_.writes.begin(n); s != index_.writes.end(n); ++s) {
      made(*s);
    }
    for (const int* s = index_.saved_first.begin(n); s != index_.saved_first.end(n); ++s) {
      if (pack_[*s]) {
        const int d = index_.device[*s];
        touch(d, live_[d] + pack_[*s]->pack_transient);
        live_[d] += pack_[*s]->bytes;
        touch(d, live_[d]);
        pack_seconds_ += pack_[*s]->pack_seconds;
      }
    }
    for (const int* s = index_.saved_first.begin(n); s != index_.saved_first.end(n); ++s) {
      if (pack_[*s] && index_.freed_at[*s] < n) {
        gone(*s);
      }
    }
    for (const int* s = index_.dying.begin(n); s != index_.dying.end(n); ++s) {
      const bool asked_for =
          pack_[*s] ? index_.first_save[*s] > n : !dropped(*s) && (index_.slots[*s] > 0 || n_readers_[*s] > 0);
      if (!index_.stays[*s] && !asked_for) {
        gone(*s);
      }
    }
    if (!within_) {
      return false;
    }
    if (curve_) {
      mark(false, n);
    }
  }
  held_ = live_;
  return true;
}

bool Simulator::backward() {
  in_backward_ = true;
  for (int s = 0; s < index_.storages; ++s) {
    if (replays_.mode(s) != Mode::Kept) {
      replays_.reset(s);
    }
  }
  for (size_t slot = 0; slot < index_.slot_storage.size(); ++slot) {
    replays_.reset_slot(static_cast<int>(slot));
  }
  for (int n = 0; n < index_.nodes; ++n) {
    if (in_n_[n]) {
      replays_.expect(n);
    }
  }
  for (int n = 0; n < index_.nodes; ++n) {
    if (in_n_[n]) {
      replays_.begin(n);
    }
  }
  const int events = static_cast<int>(index_.backward.size());
  for (int e = 0; e < events; ++e) {
    const StepIndex::Event& event = index_.backward[e];
    now_ = e;
    switch (event.kind) {
      case BackwardEvent::Kind::Use:
        replays_.use(event.slot);
        replaying_ = -1;
        break;
      case BackwardEvent::Kind::Release:
        release(event.slot);
        break;
      case BackwardEvent::Kind::Change:
        live_[event.target] += event.bytes;
        touch(event.target, live_[event.target]);
        break;
      case BackwardEvent::Kind::Peak:
        touch(event.target, live_[event.target] + event.bytes);
        break;
    }
    if (!within_) {
      return false;
    }
    if (curve_) {
      mark(true, e);
    }
  }
  return true;
}

void Simulator::release(int slot) {
  const int s = index_.slot_storage[slot];
  if (replays_.mode(s) == Mode::Kept) {
    if (--slots_left_[s] == 0 && holders_[s] == 0 && !index_.stays[s]) {
      gone(s);
    }
    return;
  }
  replays_.release(slot);
}

void Simulator::node_runs(int n, bool by_recipe) {
  replaying_ = n;
  ++runs_[n];
  const std::vector<int64_t>& transient = by_recipe ? index_.recipe_transient : index_.transient;
  for (int d = 0; d < index_.devices; ++d) {
    const int64_t rng = !by_recipe && d == index_.rng_device[n] ? index_.rng_bytes[n] : 0;
    touch(d, live_[d] + transient[static_cast<size_t>(n) * index_.devices + d] + rng);
  }
}

void Simulator::unpack_runs(int s, int reader) {
  replaying_ = reader;
  ++unpacked_[s];
  pack_seconds_ += pack_[s]->unpack_seconds;
  touch(index_.device[s], live_[index_.device[s]] + pack_[s]->unpack_transient);
}

void Simulator::made(int s) {
  const int d = index_.device[s];
  live_[d] += index_.bytes[s];
  touch(d, live_[d]);
}

void Simulator::gone(int s) {
  live_[index_.device[s]] -= index_.bytes[s];
}

void Simulator::node_dies(int n) {
  if (!by_recipe(n) && index_.rng_bytes[n] > 0 && index_.rng_device[n] >= 0) {
    live_[index_.rng_device[n]] -= index_.rng_bytes[n];
  }
  replays_.for_each_read(n, [&](int s) {
    if (replays_.mode(s) == Mode::Kept && --holders_[s] == 0 && slots_left_[s] == 0 && !index_.stays[s]) {
      gone(s);
    }
  });
}

void Simulator::form_goes(int s) {
  live_[index_.device[s]] -= pack_[s]->bytes;
}

Simulation simulate(const StepGraph& graph, const std::vector<Choice>& choices, bool with_curve) {
  Simulator simulator(graph);
  Simulation result;
  simulator.record_curve(with_curve ? &result.curve : nullptr);
  simulator.run(choices);
  result.peak = simulator.peak();
  result.held = simulator.held();
  simulator.replayed(result.replayed);
  for (const int n : result.replayed) {
    result.runs.push_back(simulator.runs(n));
    result.by_recipe.push_back(simulator.by_recipe(n));
  }
  result.recompute_seconds = simulator.recompute_seconds();
  result.recomputed_bytes = simulator.recomputed_bytes();
  result.pack_seconds = simulator.pack_seconds();
  return result;
}

} // namespace recals::plan
