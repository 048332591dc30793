#pragma once

/// Note [What the executor does with fates] (passes/plan/simulate.h), sentence by sentence, with sets, and as slow as
/// that is. It shares no code with the simulator that it checks.

#include <algorithm>
#include <map>
#include <set>

#include "passes/plan/simulate.h"

namespace recals::plan::test {

class ReferenceSimulator {
 public:
  ReferenceSimulator(const StepGraph& graph, const std::vector<Choice>& choices) : graph_(graph) {
    for (int i = 0; i < static_cast<int>(graph.slots.size()); ++i) {
      slots_[graph.slots[i].storage].insert(i);
    }
    for (int s = 0; s < storages(); ++s) {
      const Storage& storage = graph.storages[s];
      cache_from_[s] = choices[s].cache_from;
      recompute_[s] = choices[s].fate == Fate::Recompute && storage.recomputable;
      const bool there = choices[s].pack >= 0 && choices[s].pack < static_cast<int>(storage.packs.size());
      if (choices[s].fate == Fate::Pack && there && !slots_[s].empty() && !storage.output && !storage.pinned) {
        const Pack& pack = storage.packs[choices[s].pack];
        if (pack.lossless || storage.recomputable) {
          packs_[s] = pack;
        }
      }
    }
    // "N: the producers of D; and with a node the producers of the dropped storages that it reads."
    for (int s = 0; s < storages(); ++s) {
      if (in_d(s)) {
        need(s);
      }
    }
  }

  Simulation run(bool with_curve) {
    with_curve_ = with_curve;
    result_.peak.resize(graph_.devices.size());
    most_.assign(graph_.devices.size(), 0);
    forward();
    result_.held = live_bytes();
    in_backward_ = true;
    for (now_ = 0; now_ < static_cast<int>(graph_.backward.size()); ++now_) {
      backward(graph_.backward[now_]);
      mark();
    }
    for (const int n : n_) {
      const double seconds = goes_by_recipe(n) ? graph_.nodes[n].recipe.seconds : graph_.nodes[n].seconds;
      result_.replayed.push_back(n);
      result_.runs.push_back(runs_[n]);
      result_.by_recipe.push_back(goes_by_recipe(n));
      result_.recompute_seconds += runs_[n] * seconds;
      for (const int s : made_by(n)) {
        result_.recomputed_bytes += runs_[n] * graph_.storages[s].bytes;
      }
    }
    return result_;
  }

 private:
  using Set = std::set<int>;

  int storages() const {
    return static_cast<int>(graph_.storages.size());
  }
  bool packed(int s) const {
    return packs_.count(s) > 0;
  }
  bool packed_without_loss(int s) const {
    return packed(s) && packs_.at(s).lossless;
  }
  bool dropped(int s) {
    return recompute_[s] || (packed(s) && !packs_[s].lossless);
  }
  bool kept(int s) {
    return !recompute_[s] && !packed(s);
  }
  bool in_d(int s) {
    return recompute_[s] && !slots_[s].empty();
  }
  bool goes_by_recipe(int n) {
    const std::vector<int>& needs = graph_.nodes[n].recipe.reads;
    return !needs.empty() && std::none_of(needs.begin(), needs.end(), [&](int s) { return dropped(s); });
  }
  /// What a replay of the node reads, each once, in order.
  std::vector<int> reads_of(int n) {
    std::vector<int> list = graph_.nodes[n].reads;
    if (goes_by_recipe(n)) {
      list.insert(list.end(), graph_.nodes[n].recipe.reads.begin(), graph_.nodes[n].recipe.reads.end());
    }
    std::vector<int> once;
    for (const int s : list) {
      if (std::find(once.begin(), once.end(), s) == once.end()) {
        once.push_back(s);
      }
    }
    return once;
  }
  bool reads(int n, int s) {
    const std::vector<int> list = reads_of(n);
    return std::find(list.begin(), list.end(), s) != list.end();
  }
  /// What a replay of the node writes.
  std::vector<int> made_by(int n) {
    std::vector<int> list;
    for (const int s : graph_.nodes[n].writes) {
      if (!goes_by_recipe(n) || dropped(s)) {
        list.push_back(s);
      }
    }
    return list;
  }
  void need(int s) {
    const int n = graph_.storages[s].producer;
    if (n_.insert(n).second) {
      for (const int r : reads_of(n)) {
        if (dropped(r)) {
          need(r);
        }
      }
    }
  }

  bool has_unreleased_slot(int s) {
    return std::any_of(slots_[s].begin(), slots_[s].end(), [&](int slot) { return released_.count(slot) == 0; });
  }
  bool a_live_node_reads(int s) {
    return std::any_of(n_.begin(), n_.end(), [&](int n) { return reads(n, s) && node_is_live(n); });
  }
  bool is_live(int s) {
    const bool slots_count = !dropped(s) || in_d(s);
    return (slots_count && has_unreleased_slot(s)) || a_live_node_reads(s);
  }
  bool node_is_live(int n) {
    const std::vector<int>& writes = graph_.nodes[n].writes;
    return std::any_of(writes.begin(), writes.end(), [&](int s) { return dropped(s) && is_live(s); });
  }

  bool is_wanted(int s) {
    const bool slots_count = in_d(s) || packed_without_loss(s);
    const auto waits = [&](int slot) { return released_.count(slot) == 0 && used_.count(slot) == 0; };
    if (slots_count && std::any_of(slots_[s].begin(), slots_[s].end(), waits)) {
      return true;
    }
    return std::any_of(n_.begin(), n_.end(), [&](int n) { return reads(n, s) && is_pending(n); });
  }
  bool is_pending(int n) {
    const std::vector<int>& writes = graph_.nodes[n].writes;
    return std::any_of(
        writes.begin(), writes.end(), [&](int s) { return dropped(s) && is_wanted(s) && retained_.count(s) == 0; });
  }

  bool stays_in_forward_memory(int s) {
    const Storage& storage = graph_.storages[s];
    if (storage.output || storage.pinned) {
      return true;
    }
    if (!in_backward_) {
      if (storage.held_in_forward && now_ + 1 < static_cast<int>(graph_.nodes.size())) {
        return true;
      }
      for (int n = now_ + 1; n < static_cast<int>(graph_.nodes.size()); ++n) {
        const std::vector<int>& list = graph_.nodes[n].reads;
        if (std::find(list.begin(), list.end(), s) != list.end() || (packed(s) && first_save(s) == n)) {
          return true;
        }
      }
    }
    return kept(s) && is_live(s);
  }
  int first_save(int s) {
    int first = static_cast<int>(graph_.nodes.size());
    for (const int slot : slots_[s]) {
      first = std::min(first, graph_.slots[slot].node);
    }
    return first;
  }
  static void keep_if(Set& set, const auto& stays) {
    Set remaining;
    for (const int s : set) {
      if (stays(s)) {
        remaining.insert(s);
      }
    }
    set = remaining;
  }
  void sweep() {
    keep_if(memory_, [&](int s) { return stays_in_forward_memory(s); });
    keep_if(forms_, [&](int s) { return packs_[s].lossless ? is_live(s) : has_unreleased_slot(s); });
    keep_if(states_, [&](int n) { return node_is_live(n); });
    keep_if(retained_, [&](int s) { return is_wanted(s); });
    keep_if(copies_, [&](int s) { return is_at_hand_to_stay(s) || needed_by_demand(s); });
    keep_if(slot_copies_, [&](int s) { return in_use(s); });
  }
  bool in_use(int s) {
    return std::any_of(slots_[s].begin(), slots_[s].end(), [&](int slot) {
      return used_.count(slot) > 0 && released_.count(slot) == 0;
    });
  }
  /// What a slot was given of a storage that is packed with loss is not the copy that replays read.
  bool is_at_hand_to_stay(int s) {
    const bool given = in_use(s) && (in_d(s) || packed_without_loss(s));
    return given || retained_.count(s) > 0;
  }
  bool needed_by_demand(int s) {
    return s == asked_for_ || std::any_of(demand_.begin(), demand_.end(), [&](int n) { return reads(n, s); });
  }

  std::vector<int64_t> live_bytes() {
    std::vector<int64_t> bytes(graph_.devices.size(), 0);
    const auto add = [&](const Set& set) {
      for (const int s : set) {
        bytes[graph_.storages[s].device] += graph_.storages[s].bytes;
      }
    };
    add(memory_);
    add(copies_);
    add(second_copies_);
    add(slot_copies_);
    for (const int s : forms_) {
      bytes[graph_.storages[s].device] += packs_[s].bytes;
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
    std::vector<int64_t> bytes = live_bytes();
    for (size_t d = 0; d < bytes.size(); ++d) {
      bytes[d] += d < more.size() ? more[d] : 0;
      most_[d] = std::max(most_[d], bytes[d]);
      if (bytes[d] > result_.peak[d].bytes) {
        result_.peak[d] = {bytes[d], in_backward_, now_, replaying_};
      }
    }
  }
  void observe_on(int device, int64_t more) {
    std::vector<int64_t> list(graph_.devices.size(), 0);
    list[device] = more;
    observe(list);
  }
  void mark() {
    if (with_curve_) {
      result_.curve.push_back({in_backward_, now_, live_bytes(), most_});
    }
    most_ = live_bytes();
  }

  void forward() {
    for (now_ = 0; now_ < static_cast<int>(graph_.nodes.size()); ++now_) {
      const Node& node = graph_.nodes[now_];
      if (n_.count(now_) > 0 && node.rng_bytes > 0 && !goes_by_recipe(now_)) {
        states_.insert(now_);
      }
      observe(node.transient);
      memory_.insert(node.writes.begin(), node.writes.end());
      observe();
      for (const auto& [s, pack] : packs_) {
        if (first_save(s) == now_) {
          observe_on(graph_.storages[s].device, pack.pack_transient);
          forms_.insert(s);
          observe();
          result_.pack_seconds += pack.pack_seconds;
        }
      }
      sweep();
      mark();
    }
  }
  void backward(const BackwardEvent& event) {
    switch (event.kind) {
      case BackwardEvent::Kind::Use:
        use(event.index);
        break;
      case BackwardEvent::Kind::Release:
        released_.insert(event.index);
        sweep();
        break;
      case BackwardEvent::Kind::Change:
        changes_[event.device] += event.bytes;
        observe();
        break;
      case BackwardEvent::Kind::Peak:
        observe_on(event.device, event.bytes);
        break;
    }
  }

  void use(int slot) {
    const int t = graph_.slots[slot].storage;
    const int v = graph_.slots[slot].node;
    if (kept(t)) {
      return;
    }
    if (packed(t) && !packs_[t].lossless) {
      if (!in_use(t)) {
        unpack(t, -1, slot_copies_);
      }
      used_.insert(slot);
      return;
    }
    asked_for_ = t;
    if (copies_.count(t) > 0) {
      retain(t, v);
    } else if (packed(t)) {
      unpack(t, -1, copies_);
      retain(t, v);
    } else {
      missing(t, v, demand_);
      // "becomes retained": what is found at hand, before anything runs.
      const Set nodes = demand_;
      for (const int n : nodes) {
        for (const int s : reads_of(n)) {
          if (copies_.count(s) > 0) {
            retain(s, v);
          }
        }
      }
      sweep();
      for (const int n : nodes) {
        replay(n, v);
      }
    }
    used_.insert(slot);
    asked_for_ = -1;
    sweep();
    replaying_ = -1;
  }
  void retain(int s, int v) {
    if (is_wanted(s) && v <= cache_from_[s]) {
      retained_.insert(s);
    }
  }
  void unpack(int s, int reader, Set& copies) {
    replaying_ = reader;
    observe_on(graph_.storages[s].device, packs_[s].unpack_transient);
    copies.insert(s);
    observe();
    result_.pack_seconds += packs_[s].unpack_seconds;
    replaying_ = -1;
  }
  void missing(int s, int v, Set& nodes) {
    if (copies_.count(s) > 0) {
      return;
    }
    const int n = graph_.storages[s].producer;
    nodes.insert(n);
    for (const int r : reads_of(n)) {
      if (dropped(r)) {
        missing(r, v, nodes);
      }
    }
  }
  void replay(int n, int v) {
    for (const int s : reads_of(n)) {
      if (packed_without_loss(s) && copies_.count(s) == 0) {
        unpack(s, n, copies_);
        retain(s, v);
      }
    }
    replaying_ = n;
    const Node& node = graph_.nodes[n];
    std::vector<int64_t> more = goes_by_recipe(n) ? node.recipe.transient : node.transient;
    more.resize(graph_.devices.size());
    if (node.rng_device >= 0 && !goes_by_recipe(n)) {
      more[node.rng_device] += node.rng_bytes;
    }
    observe(more);
    Set fresh;
    for (const int s : made_by(n)) {
      const bool second = !dropped(s) || copies_.count(s) > 0;
      (second ? second_copies_ : copies_).insert(s);
      if (!second) {
        fresh.insert(s);
      }
      observe();
    }
    second_copies_.clear();
    for (const int s : fresh) {
      retain(s, v);
    }
    demand_.erase(n);
    ++runs_[n];
    sweep();
    replaying_ = -1;
  }

  const StepGraph& graph_;
  std::map<int, int> cache_from_;
  std::map<int, bool> recompute_;
  std::map<int, Pack> packs_;
  std::map<int, Set> slots_;
  Set n_;

  Set used_; ///< slots
  Set released_; ///< slots
  Set memory_; ///< what the forward made
  Set forms_; ///< packed
  Set copies_; ///< of dropped and unpacked storages: at hand
  Set second_copies_; ///< of a node that runs
  Set slot_copies_; ///< unpacked with loss
  Set retained_;
  Set states_; ///< nodes
  Set demand_; ///< nodes that have not run
  int asked_for_ = -1;
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
