#pragma once

/// Note [What the executor does with fates] (passes/plan/simulate.h), sentence by sentence, with sets, and as slow as
/// that is. It shares no code with the simulator that it checks.

#include <map>
#include <set>

#include "passes/plan/simulate.h"

namespace recals::plan::test {

class ReferenceSimulator {
 public:
  ReferenceSimulator(const StepGraph& graph, const std::vector<Fate>& fates) : graph_(graph) {
    for (int s = 0; s < storages(); ++s) {
      recompute_[s] = fates[s] == Fate::Recompute && graph.storages[s].recomputable;
      for (int i = 0; i < static_cast<int>(graph.slots.size()); ++i) {
        if (graph.slots[i].storage == s) {
          slots_[s].insert(i);
        }
      }
    }
    // "N is the set of nodes that are needed by some s in D."
    for (int s = 0; s < storages(); ++s) {
      if (in_d(s)) {
        need(s);
      }
    }
    // "Two nodes of N are of one component if one reads a recomputed storage that the other writes (transitively)."
    for (const int n : n_) {
      if (component_.count(n) == 0) {
        flood(n, n);
      }
    }
  }

  Simulation run(bool with_curve) {
    with_curve_ = with_curve;
    result_.peak.resize(graph_.devices.size());
    most_.assign(graph_.devices.size(), 0);
    forward();
    result_.held = live();
    in_backward_ = true;
    for (now_ = 0; now_ < static_cast<int>(graph_.backward.size()); ++now_) {
      backward(graph_.backward[now_]);
      mark();
    }
    for (const int n : n_) {
      result_.replayed.push_back(n);
      result_.recompute_seconds += graph_.nodes[n].seconds;
      for (const int s : graph_.nodes[n].writes) {
        result_.recomputed_bytes += graph_.storages[s].bytes;
      }
    }
    return result_;
  }

  /// "So every node is replayed at most once."
  const std::map<int, int>& runs() const {
    return runs_;
  }

 private:
  int storages() const {
    return static_cast<int>(graph_.storages.size());
  }
  bool in_d(int s) {
    return recompute_[s] && !slots_[s].empty();
  }
  bool reads(int n, int s) const {
    const std::vector<int>& list = graph_.nodes[n].reads;
    return std::find(list.begin(), list.end(), s) != list.end();
  }
  void need(int s) {
    const int n = graph_.storages[s].producer;
    n_.insert(n);
    for (const int r : graph_.nodes[n].reads) {
      if (recompute_[r]) {
        need(r);
      }
    }
  }
  bool linked(int a, int b) {
    for (const int s : graph_.nodes[a].writes) {
      if (recompute_[s] && reads(b, s)) {
        return true;
      }
    }
    return false;
  }
  void flood(int n, int id) {
    component_[n] = id;
    for (const int m : n_) {
      if (component_.count(m) == 0 && (linked(n, m) || linked(m, n))) {
        flood(m, id);
      }
    }
  }

  bool has_unreleased_slot(int s) {
    for (const int slot : slots_[s]) {
      if (released_.count(slot) == 0) {
        return true;
      }
    }
    return false;
  }
  /// "A component lets go of what it holds when all its slots in D are released."
  bool component_lives(int id) {
    for (const auto& [n, component] : component_) {
      for (const int s : graph_.nodes[n].writes) {
        if (component == id && in_d(s) && has_unreleased_slot(s)) {
          return true;
        }
      }
    }
    return false;
  }
  bool a_component_holds(int s) {
    for (const int n : n_) {
      if (!recompute_[s] && reads(n, s) && component_lives(component_[n])) {
        return true;
      }
    }
    return false;
  }
  bool stays_in_forward_memory(int s) {
    const Storage& storage = graph_.storages[s];
    if (storage.output || storage.pinned) {
      return true;
    }
    if (!in_backward_) {
      for (int n = now_ + 1; n < static_cast<int>(graph_.nodes.size()); ++n) {
        if (reads(n, s)) {
          return true;
        }
      }
    }
    return !recompute_[s] && (has_unreleased_slot(s) || a_component_holds(s));
  }
  bool stays_cached(int s) {
    if (!recompute_[s] || !component_lives(component_[graph_.storages[s].producer])) {
      return false;
    }
    for (const int n : n_) {
      if (runs_[n] == 0 && reads(n, s)) {
        return true;
      }
    }
    return in_d(s) && has_unreleased_slot(s);
  }
  void sweep() {
    std::set<int> memory;
    for (const int s : memory_) {
      if (stays_in_forward_memory(s)) {
        memory.insert(s);
      }
    }
    memory_ = memory;
    std::set<int> cached;
    for (const int s : cached_) {
      if (stays_cached(s)) {
        cached.insert(s);
      }
    }
    cached_ = cached;
    std::set<int> states;
    for (const int n : states_) {
      if (component_lives(component_[n])) {
        states.insert(n);
      }
    }
    states_ = states;
  }

  std::vector<int64_t> live() {
    std::vector<int64_t> bytes(graph_.devices.size(), 0);
    for (const int s : memory_) {
      bytes[graph_.storages[s].device] += graph_.storages[s].bytes;
    }
    for (const int s : cached_) {
      bytes[graph_.storages[s].device] += graph_.storages[s].bytes;
    }
    for (const int n : states_) {
      if (graph_.nodes[n].rng_device >= 0) {
        bytes[graph_.nodes[n].rng_device] += graph_.nodes[n].rng_bytes;
      }
    }
    for (const auto& [device, change] : changes_) {
      bytes[device] += change;
    }
    return bytes;
  }
  void observe(const std::vector<int64_t>& more = {}) {
    std::vector<int64_t> bytes = live();
    for (size_t d = 0; d < bytes.size(); ++d) {
      bytes[d] += d < more.size() ? more[d] : 0;
      most_[d] = std::max(most_[d], bytes[d]);
      if (bytes[d] > result_.peak[d].bytes) {
        result_.peak[d] = {bytes[d], in_backward_, now_, replaying_};
      }
    }
  }
  void mark() {
    if (with_curve_) {
      result_.curve.push_back({in_backward_, now_, live(), most_});
    }
    most_ = live();
  }

  void forward() {
    for (now_ = 0; now_ < static_cast<int>(graph_.nodes.size()); ++now_) {
      const Node& node = graph_.nodes[now_];
      if (n_.count(now_) > 0 && node.rng_bytes > 0) {
        states_.insert(now_);
      }
      observe(node.transient);
      memory_.insert(node.writes.begin(), node.writes.end());
      observe();
      const std::set<int> produced = memory_;
      sweep();
      mark();
    }
  }
  void backward(const BackwardEvent& event) {
    switch (event.kind) {
      case BackwardEvent::Kind::Use:
        if (in_d(graph_.slots[event.index].storage)) {
          std::set<int> nodes;
          missing(graph_.slots[event.index].storage, nodes);
          for (const int n : nodes) {
            replay(n);
          }
          replaying_ = -1;
        }
        break;
      case BackwardEvent::Kind::Release:
        released_.insert(event.index);
        sweep();
        break;
      case BackwardEvent::Kind::Change:
        changes_[event.device] += event.bytes;
        observe();
        break;
      case BackwardEvent::Kind::Peak: {
        std::vector<int64_t> more(graph_.devices.size(), 0);
        more[event.device] = event.bytes;
        observe(more);
        break;
      }
    }
  }
  void missing(int s, std::set<int>& nodes) {
    if (cached_.count(s) > 0) {
      return;
    }
    const int n = graph_.storages[s].producer;
    nodes.insert(n);
    for (const int r : graph_.nodes[n].reads) {
      if (recompute_[r]) {
        missing(r, nodes);
      }
    }
  }
  void replay(int n) {
    replaying_ = n;
    const Node& node = graph_.nodes[n];
    std::vector<int64_t> more = node.transient;
    if (node.rng_device >= 0) {
      more[node.rng_device] += node.rng_bytes;
    }
    observe(more);
    cached_.insert(node.writes.begin(), node.writes.end());
    observe();
    ++runs_[n];
    sweep();
  }

  const StepGraph& graph_;
  std::map<int, bool> recompute_;
  std::map<int, std::set<int>> slots_;
  std::set<int> n_;
  std::map<int, int> component_;

  std::set<int> released_;
  std::set<int> memory_;
  std::set<int> cached_;
  std::set<int> states_;
  std::map<int, int64_t> changes_;
  std::map<int, int> runs_;
  std::vector<int64_t> most_;
  bool with_curve_ = false;
  bool in_backward_ = false;
  int now_ = 0;
  int replaying_ = -1;
  Simulation result_;
};

} // namespace recals::plan::test
