#include "passes/plan/simulate.h"

#include <algorithm>
#include <cstddef>
#include <limits>

#include "passes/plan/simulator.h"

namespace recals::plan {

StepIndex::StepIndex(const StepGraph& graph)
    : devices(static_cast<int>(graph.devices.size())),
      nodes(static_cast<int>(graph.nodes.size())),
      storages(static_cast<int>(graph.storages.size())) {
  slots.assign(storages, 0);
  last_read.assign(storages, 0);
  for (const Storage& storage : graph.storages) {
    const int s = static_cast<int>(bytes.size());
    bytes.push_back(storage.bytes);
    device.push_back(storage.device);
    producer.push_back(storage.producer);
    stays.push_back(storage.output || storage.pinned);
    recomputable.push_back(storage.recomputable);
    last_read[s] = storage.producer;
  }
  for (const Slot& slot : graph.slots) {
    ++slots[slot.storage];
  }

  transient.assign(static_cast<size_t>(nodes) * devices, 0);
  std::vector<std::vector<int>> readers_of(storages);
  for (int n = 0; n < nodes; ++n) {
    const Node& node = graph.nodes[n];
    for (const int s : node.reads) {
      const bool seen = !readers_of[s].empty() && readers_of[s].back() == n;
      if (!seen) {
        reads.entries.push_back(s);
        readers_of[s].push_back(n);
        last_read[s] = std::max(last_read[s], n);
      }
    }
    reads.close();
    writes.entries.insert(writes.entries.end(), node.writes.begin(), node.writes.end());
    writes.close();
    for (int d = 0; d < devices && d < static_cast<int>(node.transient.size()); ++d) {
      transient[static_cast<size_t>(n) * devices + d] = node.transient[d];
    }
    rng_bytes.push_back(node.rng_bytes);
    rng_device.push_back(node.rng_device);
    seconds.push_back(node.seconds);
  }
  for (const std::vector<int>& list : readers_of) {
    readers.entries.insert(readers.entries.end(), list.begin(), list.end());
    readers.close();
  }

  std::vector<std::vector<int>> dying_at(nodes);
  for (int s = 0; s < storages; ++s) {
    dying_at[last_read[s]].push_back(s);
  }
  for (const std::vector<int>& list : dying_at) {
    dying.entries.insert(dying.entries.end(), list.begin(), list.end());
    dying.close();
  }

  for (const BackwardEvent& event : graph.backward) {
    const bool of_slot = event.kind == BackwardEvent::Kind::Use || event.kind == BackwardEvent::Kind::Release;
    backward.push_back({event.kind, of_slot ? graph.slots[event.index].storage : event.device, event.bytes});
  }
}

Simulator::Simulator(const StepGraph& graph) : index_(graph) {
  const int nodes = index_.nodes;
  const int storages = index_.storages;
  dropped_.resize(storages);
  n_readers_.resize(storages);
  readers_left_.resize(storages);
  slots_left_.resize(storages);
  cached_.resize(storages);
  in_n_.resize(nodes);
  component_.resize(nodes);
  next_in_component_.resize(nodes);
  first_in_component_.resize(nodes);
  component_slots_.resize(nodes);
  replayed_at_.resize(nodes);
  live_.resize(index_.devices);
  most_.resize(index_.devices);
  peak_.resize(index_.devices);
  held_.resize(index_.devices);
}

void Simulator::run(const std::vector<Fate>& fates) {
  limits_ = nullptr;
  close_over(fates);
  find_components();
  forward();
  backward();
}

bool Simulator::fits(const std::vector<Fate>& fates, const std::vector<int64_t>& limits, double most_seconds) {
  limits_ = limits.data();
  close_over(fates);
  if (seconds_ > most_seconds) {
    return false;
  }
  find_components();
  return forward() && backward();
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
void Simulator::close_over(const std::vector<Fate>& fates) {
  for (int s = 0; s < index_.storages; ++s) {
    dropped_[s] = fates[s] == Fate::Recompute && index_.recomputable[s];
    n_readers_[s] = 0;
  }
  seconds_ = 0;
  for (int n = index_.nodes - 1; n >= 0; --n) {
    bool needed = false;
    for (const int* s = index_.writes.begin(n); s != index_.writes.end(n); ++s) {
      needed |= dropped_[*s] && (index_.slots[*s] > 0 || n_readers_[*s] > 0);
    }
    in_n_[n] = needed;
    if (needed) {
      seconds_ += index_.seconds[n];
      for (const int* s = index_.reads.begin(n); s != index_.reads.end(n); ++s) {
        ++n_readers_[*s];
      }
    }
  }
}

int Simulator::root_of(int node) {
  while (component_[node] != node) {
    component_[node] = component_[component_[node]];
    node = component_[node];
  }
  return node;
}

void Simulator::find_components() {
  const int nodes = index_.nodes;
  for (int n = 0; n < nodes; ++n) {
    component_[n] = n;
    if (!in_n_[n]) {
      continue;
    }
    for (const int* s = index_.reads.begin(n); s != index_.reads.end(n); ++s) {
      if (dropped_[*s]) {
        component_[root_of(index_.producer[*s])] = n;
      }
    }
  }
  std::fill(first_in_component_.begin(), first_in_component_.end(), -1);
  std::fill(component_slots_.begin(), component_slots_.end(), 0);
  for (int n = nodes - 1; n >= 0; --n) {
    if (!in_n_[n]) {
      continue;
    }
    const int root = root_of(n);
    component_[n] = root;
    next_in_component_[n] = first_in_component_[root];
    first_in_component_[root] = n;
    for (const int* s = index_.writes.begin(n); s != index_.writes.end(n); ++s) {
      if (dropped_[*s]) {
        component_slots_[root] += index_.slots[*s];
      }
    }
  }
}

/// `device` holds `bytes` for a moment. False: that is above the limit.
inline bool Simulator::touch(int device, int64_t bytes) {
  PeakPoint& peak = peak_[device];
  if (bytes > peak.bytes) {
    peak = {bytes, in_backward_, now_, replaying_};
    if (limits_ && bytes > limits_[device]) {
      return false;
    }
  }
  if (curve_) {
    most_[device] = std::max(most_[device], bytes);
  }
  return true;
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
  std::fill(cached_.begin(), cached_.end(), 0);
  std::copy(index_.slots.begin(), index_.slots.end(), slots_left_.begin());
  std::copy(n_readers_.begin(), n_readers_.end(), readers_left_.begin());
  if (curve_) {
    curve_->clear();
  }
  in_backward_ = false;
  replaying_ = -1;
  for (int n = 0; n < index_.nodes; ++n) {
    now_ = n;
    replayed_at_[n] = -1;
    if (in_n_[n] && index_.rng_bytes[n] > 0 && index_.rng_device[n] >= 0) {
      live_[index_.rng_device[n]] += index_.rng_bytes[n];
    }
    for (int d = 0; d < devices; ++d) {
      if (!touch(d, live_[d] + index_.transient[static_cast<size_t>(n) * devices + d])) {
        return false;
      }
    }
    for (const int* s = index_.writes.begin(n); s != index_.writes.end(n); ++s) {
      const int d = index_.device[*s];
      live_[d] += index_.bytes[*s];
      if (!touch(d, live_[d])) {
        return false;
      }
    }
    for (const int* s = index_.dying.begin(n); s != index_.dying.end(n); ++s) {
      const bool asked_for = !dropped_[*s] && (index_.slots[*s] > 0 || n_readers_[*s] > 0);
      if (!index_.stays[*s] && !asked_for) {
        live_[index_.device[*s]] -= index_.bytes[*s];
      }
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
  const int events = static_cast<int>(index_.backward.size());
  for (int e = 0; e < events; ++e) {
    const StepIndex::Event& event = index_.backward[e];
    now_ = e;
    bool within = true;
    switch (event.kind) {
      case BackwardEvent::Kind::Use:
        if (dropped_[event.target] && replayed_at_[index_.producer[event.target]] < 0) {
          within = replay(event.target, e);
        }
        break;
      case BackwardEvent::Kind::Release:
        release(event.target);
        break;
      case BackwardEvent::Kind::Change:
        live_[event.target] += event.bytes;
        within = touch(event.target, live_[event.target]);
        break;
      case BackwardEvent::Kind::Peak:
        within = touch(event.target, live_[event.target] + event.bytes);
        break;
    }
    if (!within) {
      return false;
    }
    if (curve_) {
      mark(true, e);
    }
  }
  return true;
}

/// Runs what `storage` needs and what has not run. A node that has run keeps what its readers need until they have
/// run, so "has not run" and "is not cached" are the same for every node that is reached here.
bool Simulator::replay(int storage, int event) {
  const int devices = index_.devices;
  todo_.clear();
  todo_.push_back(index_.producer[storage]);
  replayed_at_[todo_.front()] = event;
  for (size_t i = 0; i < todo_.size(); ++i) {
    const int n = todo_[i];
    for (const int* s = index_.reads.begin(n); s != index_.reads.end(n); ++s) {
      const int p = index_.producer[*s];
      if (dropped_[*s] && replayed_at_[p] < 0) {
        replayed_at_[p] = event;
        todo_.push_back(p);
      }
    }
  }
  std::sort(todo_.begin(), todo_.end());
  for (const int n : todo_) {
    replaying_ = n;
    for (int d = 0; d < devices; ++d) {
      const int64_t rng = d == index_.rng_device[n] ? index_.rng_bytes[n] : 0;
      if (!touch(d, live_[d] + index_.transient[static_cast<size_t>(n) * devices + d] + rng)) {
        return false;
      }
    }
    // All that it wrote is there before any of it goes; a second copy of a kept storage goes at once.
    for (const int* s = index_.writes.begin(n); s != index_.writes.end(n); ++s) {
      const int d = index_.device[*s];
      live_[d] += index_.bytes[*s];
      if (!touch(d, live_[d])) {
        return false;
      }
    }
    for (const int* s = index_.writes.begin(n); s != index_.writes.end(n); ++s) {
      cached_[*s] = dropped_[*s] && (slots_left_[*s] > 0 || readers_left_[*s] > 0);
      if (!cached_[*s]) {
        live_[index_.device[*s]] -= index_.bytes[*s];
      }
    }
    for (const int* s = index_.reads.begin(n); s != index_.reads.end(n); ++s) {
      if (dropped_[*s] && --readers_left_[*s] == 0 && cached_[*s] && slots_left_[*s] == 0) {
        cached_[*s] = 0;
        live_[index_.device[*s]] -= index_.bytes[*s];
      }
    }
  }
  replaying_ = -1;
  return true;
}

void Simulator::release(int storage) {
  const int s = storage;
  --slots_left_[s];
  if (!dropped_[s]) {
    if (slots_left_[s] == 0 && readers_left_[s] == 0 && !index_.stays[s]) {
      live_[index_.device[s]] -= index_.bytes[s];
    }
    return;
  }
  if (cached_[s] && slots_left_[s] == 0 && readers_left_[s] == 0) {
    cached_[s] = 0;
    live_[index_.device[s]] -= index_.bytes[s];
  }
  const int root = component_[index_.producer[s]];
  if (--component_slots_[root] == 0) {
    end_component(root);
  }
}

void Simulator::end_component(int root) {
  for (int n = first_in_component_[root]; n >= 0; n = next_in_component_[n]) {
    if (index_.rng_bytes[n] > 0 && index_.rng_device[n] >= 0) {
      live_[index_.rng_device[n]] -= index_.rng_bytes[n];
    }
    for (const int* s = index_.reads.begin(n); s != index_.reads.end(n); ++s) {
      if (!dropped_[*s] && --readers_left_[*s] == 0 && slots_left_[*s] == 0 && !index_.stays[*s]) {
        live_[index_.device[*s]] -= index_.bytes[*s];
      }
    }
    // Cached for a reader that no slot will ask for any more.
    for (const int* s = index_.writes.begin(n); s != index_.writes.end(n); ++s) {
      if (cached_[*s]) {
        cached_[*s] = 0;
        live_[index_.device[*s]] -= index_.bytes[*s];
      }
    }
  }
}

Simulation simulate(const StepGraph& graph, const std::vector<Fate>& fates, bool with_curve) {
  Simulator simulator(graph);
  Simulation result;
  simulator.record_curve(with_curve ? &result.curve : nullptr);
  simulator.run(fates);
  result.peak = simulator.peak();
  result.held = simulator.held();
  simulator.replayed(result.replayed);
  // Summed in forward order, so that the number does not depend on how N was found.
  for (const int n : result.replayed) {
    result.recompute_seconds += graph.nodes[n].seconds;
    for (const int s : graph.nodes[n].writes) {
      result.recomputed_bytes += graph.storages[s].bytes;
    }
  }
  return result;
}

} // namespace recals::plan
