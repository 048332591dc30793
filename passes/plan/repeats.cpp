#include "passes/plan/repeats.h"

#include <algorithm>
#include <unordered_map>

namespace recals::plan {
namespace {

class Likeness {
 public:
  explicit Likeness(const StepIndex& index) : index_(index), position_(index.storages, 0) {
    std::vector<std::vector<int>> slots(index.nodes);
    for (size_t slot = 0; slot < index.slot_node.size(); ++slot) {
      slots[index.slot_node[slot]].push_back(index.slot_storage[slot]);
    }
    saves_.append(slots);
    for (int n = 0; n < index.nodes; ++n) {
      for (int k = 0; k < index.writes.size(n); ++k) {
        position_[index.writes.begin(n)[k]] = k;
      }
    }
  }

  /// What nodes that are alike have in common, as a number.
  uint64_t color(int n) const {
    uint64_t hash = 0x9e3779b97f4a7c15;
    const auto mix = [&](uint64_t value) { hash = (hash ^ value) * 0x100000001b3 + (hash >> 29); };
    for (const int* s = index_.writes.begin(n); s != index_.writes.end(n); ++s) {
      mix(static_cast<uint64_t>(index_.bytes[*s]));
      mix(static_cast<uint64_t>(index_.slots[*s]));
    }
    mix(static_cast<uint64_t>(index_.reads.size(n)));
    mix(static_cast<uint64_t>(saves_.size(n)));
    mix(static_cast<uint64_t>(index_.transient[static_cast<size_t>(n) * index_.devices]));
    return hash;
  }

  bool alike(int a, int b) const {
    const int distance = b - a;
    const auto same_values = [&](const std::vector<int64_t>& of) {
      const auto begin = of.begin();
      const int d = index_.devices;
      return std::equal(begin + int64_t{a} * d, begin + int64_t{a + 1} * d, begin + int64_t{b} * d);
    };
    const auto same_lists = [&](const Lists& of) {
      return std::equal(of.begin(a), of.end(a), of.begin(b), of.end(b), [&](int s, int t) {
        return s == t || (index_.producer[t] - index_.producer[s] == distance && position_[s] == position_[t]);
      });
    };
    return index_.seconds[a] == index_.seconds[b] && index_.recipe_seconds[a] == index_.recipe_seconds[b] &&
        index_.rng_bytes[a] == index_.rng_bytes[b] && index_.rng_device[a] == index_.rng_device[b] &&
        same_values(index_.transient) && same_values(index_.recipe_transient) &&
        std::equal(
               index_.writes.begin(a),
               index_.writes.end(a),
               index_.writes.begin(b),
               index_.writes.end(b),
               [&](int s, int t) { return same_storages(s, t); }) &&
        same_lists(index_.reads) && same_lists(index_.recipe_needs) && same_lists(saves_);
  }

 private:
  bool same_storages(int s, int t) const {
    const auto same_packs = [](const Pack& a, const Pack& b) {
      return a.bytes == b.bytes && a.lossless == b.lossless && a.pack_seconds == b.pack_seconds &&
          a.unpack_seconds == b.unpack_seconds && a.pack_transient == b.pack_transient &&
          a.unpack_transient == b.unpack_transient;
    };
    const std::vector<Pack>& a = index_.packs[s];
    const std::vector<Pack>& b = index_.packs[t];
    return index_.bytes[s] == index_.bytes[t] && index_.device[s] == index_.device[t] &&
        index_.slots[s] == index_.slots[t] && index_.stays[s] == index_.stays[t] &&
        index_.recomputable[s] == index_.recomputable[t] && index_.policy[s] == index_.policy[t] &&
        std::equal(a.begin(), a.end(), b.begin(), b.end(), same_packs);
  }

  const StepIndex& index_;
  std::vector<int> position_; ///< per storage: which of its producer's writes
  Lists saves_; ///< per node: the storages of its slots
};

} // namespace

Repeat longest_repeat(const StepIndex& index) {
  const Likeness likeness(index);
  // Periods: how far apart nodes of a color are.
  std::unordered_map<uint64_t, int> last;
  std::unordered_map<int, int> distances;
  for (int n = 0; n < index.nodes; ++n) {
    const auto [at, is_new] = last.try_emplace(likeness.color(n), n);
    if (!is_new) {
      ++distances[n - at->second];
      at->second = n;
    }
  }
  std::vector<std::pair<int, int>> periods; // how often, negative; period
  periods.reserve(distances.size());
  for (const auto& [distance, count] : distances) {
    periods.emplace_back(-count, distance);
  }
  std::sort(periods.begin(), periods.end());
  constexpr size_t kMostPeriods = 8;
  periods.resize(std::min(periods.size(), kMostPeriods));

  Repeat best;
  int best_length = 0;
  for (const auto& [count, period] : periods) {
    int length = 0;
    for (int n = 0; n + period <= index.nodes; ++n) {
      const bool goes_on = n + period < index.nodes && likeness.alike(n, n + period);
      length = goes_on ? length + 1 : 0;
      if (length >= period && length + period > best_length) {
        best_length = length + period;
        best = {n + 1 - length, period, length / period + 1};
      }
    }
  }
  return best;
}

std::optional<Shortened> Shortened::make(const StepIndex& index, const Repeat& repeat, int blocks) {
  const int left_out = (repeat.count - blocks) * repeat.period; // nodes
  if (blocks < 2 || left_out <= 0) {
    return std::nullopt;
  }
  // The nodes [first, end) are left out.
  const int first = repeat.begin + blocks / 2 * repeat.period;
  const int end = first + left_out;
  const auto is_out = [&](int n) { return n >= first && n < end; };

  StepGraph graph;
  graph.devices.resize(index.devices);
  std::vector<int> new_storage(index.storages, -1);
  for (int n = 0; n < index.nodes; ++n) {
    for (const int* s = index.writes.begin(n); s != index.writes.end(n) && !is_out(n); ++s) {
      new_storage[*s] = static_cast<int>(graph.storages.size());
      Storage storage;
      storage.bytes = index.bytes[*s];
      storage.device = index.device[*s];
      storage.producer = n < first ? n : n - left_out;
      storage.recomputable = index.recomputable[*s] != 0;
      storage.pinned = index.stays[*s] != 0;
      storage.held_in_forward = index.freed_at[*s] > index.last_read[*s];
      storage.policy = index.policy[*s];
      storage.packs = index.packs[*s];
      graph.storages.push_back(std::move(storage));
    }
  }
  // What is read from a block that is left out is read from one that is not: as far before, or else from the last one.
  for (int n = first; n < end; ++n) {
    int instead = n - left_out;
    if (instead < repeat.begin) {
      instead = first - repeat.period + (n - first) % repeat.period;
    }
    for (int k = 0; k < index.writes.size(n); ++k) {
      new_storage[index.writes.begin(n)[k]] = new_storage[index.writes.begin(instead)[k]];
    }
  }
  const auto mapped = [&](const Lists& lists, int n) {
    std::vector<int> list;
    for (const int* s = lists.begin(n); s != lists.end(n); ++s) {
      if (std::find(list.begin(), list.end(), new_storage[*s]) == list.end()) {
        list.push_back(new_storage[*s]);
      }
    }
    return list;
  };
  const auto values = [&](const std::vector<int64_t>& of, int n) {
    const auto begin = of.begin() + int64_t{n} * index.devices;
    return std::vector<int64_t>(begin, begin + index.devices);
  };
  for (int n = 0; n < index.nodes; ++n) {
    if (!is_out(n)) {
      Node node;
      node.reads = mapped(index.reads, n);
      node.writes = mapped(index.writes, n);
      node.transient = values(index.transient, n);
      node.rng_bytes = index.rng_bytes[n];
      node.rng_device = index.rng_device[n];
      node.seconds = index.seconds[n];
      node.recipe = {mapped(index.recipe_needs, n), index.recipe_seconds[n], values(index.recipe_transient, n)};
      graph.nodes.push_back(std::move(node));
    }
  }

  const int slots = static_cast<int>(index.slot_node.size());
  std::vector<std::vector<int>> slots_of(index.nodes);
  std::vector<int> place(slots, 0); // among the slots of its node
  std::vector<int> new_slot(slots, -1);
  for (int slot = 0; slot < slots; ++slot) {
    const int n = index.slot_node[slot];
    place[slot] = static_cast<int>(slots_of[n].size());
    slots_of[n].push_back(slot);
    if (!is_out(n)) {
      new_slot[slot] = static_cast<int>(graph.slots.size());
      graph.slots.push_back({new_storage[index.slot_storage[slot]], n < first ? n : n - left_out});
    }
  }
  // The rounds of the blocks that are left out: from the first use of what they saved to the first of what is before.
  const auto uses = [&](const StepIndex::Event& event, int begin_node, int end_node) {
    return event.kind == BackwardEvent::Kind::Use && index.slot_node[event.slot] >= begin_node &&
        index.slot_node[event.slot] < end_node;
  };
  const auto begin = index.backward.begin();
  const auto out =
      std::find_if(begin, index.backward.end(), [&](const auto& event) { return uses(event, first, end); });
  const auto in = std::find_if(out, index.backward.end(), [&](const auto& event) { return uses(event, 0, first); });
  std::vector<int64_t> change(index.devices, 0);
  std::vector<int> uses_of(graph.slots.size(), 0);
  std::vector<int> releases_of(graph.slots.size(), 0);
  for (auto event = begin; event != index.backward.end(); ++event) {
    const bool of_slot = event->kind == BackwardEvent::Kind::Use || event->kind == BackwardEvent::Kind::Release;
    if (event >= out && event < in) {
      change[of_slot ? 0 : event->target] += event->kind == BackwardEvent::Kind::Change ? event->bytes : 0;
      continue;
    }
    int slot = event->slot;
    if (of_slot) {
      // What the last round leaves for later, the round before the first one has left, too.
      const int n = index.slot_node[slot];
      slot = new_slot[is_out(n) && event >= in ? slots_of[n + left_out][place[slot]] : slot];
      if (slot < 0) {
        return std::nullopt;
      }
      ++(event->kind == BackwardEvent::Kind::Use ? uses_of : releases_of)[slot];
    }
    graph.backward.push_back({event->kind, of_slot ? slot : 0, of_slot ? 0 : event->target, event->bytes, -1});
  }
  for (const StepIndex::Event& event : index.backward) {
    const bool use = event.kind == BackwardEvent::Kind::Use;
    if ((use || event.kind == BackwardEvent::Kind::Release) && new_slot[event.slot] >= 0) {
      --(use ? uses_of : releases_of)[new_slot[event.slot]];
    }
  }
  const auto is_zero = [](int64_t value) { return value == 0; };
  if (!std::all_of(change.begin(), change.end(), is_zero) || !std::all_of(uses_of.begin(), uses_of.end(), is_zero) ||
      !std::all_of(releases_of.begin(), releases_of.end(), is_zero)) {
    return std::nullopt;
  }
  return Shortened(index, repeat, blocks, graph);
}

/// From when on `block` of the whole step caches what `shorter_block` caches from the backward of node `shorter` on.
int Shortened::cache_from(int shorter, int block, int shorter_block, Way way) const {
  if (shorter == Choice::kAlways || shorter < repeat_.begin) {
    return shorter;
  }
  const int node = shorter - repeat_.begin;
  if (node >= blocks_ * repeat_.period) {
    return shorter + (repeat_.count - blocks_) * repeat_.period;
  }
  const int of = node / repeat_.period;
  int to = block + of - shorter_block;
  if (way == Way::Stretch && of != shorter_block) {
    to = ((of + 1) * repeat_.count - 1) / blocks_; // the last that has what `of` has
  }
  return repeat_.begin + std::clamp(to, 0, repeat_.count - 1) * repeat_.period + node % repeat_.period;
}

std::vector<Choice> Shortened::repeated(const std::vector<Choice>& choices, Way way) const {
  std::vector<Choice> result(index_.storages);
  const int left_out = repeat_.count - blocks_;
  const int margin = blocks_ / 4;
  for (int n = 0; n < index_.nodes; ++n) {
    const int at = n - repeat_.begin;
    int shorter = n;
    int block = -1;
    int shorter_block = -1;
    if (at >= repeat_.count * repeat_.period) {
      shorter = n - left_out * repeat_.period;
    } else if (at >= 0) {
      block = at / repeat_.period;
      if (way == Way::Stretch) {
        shorter_block = static_cast<int>(int64_t{block} * blocks_ / repeat_.count);
      } else if (block < margin) {
        shorter_block = block;
      } else if (block >= repeat_.count - margin) {
        shorter_block = block - left_out;
      } else {
        shorter_block = margin + (block - margin) % (blocks_ - 2 * margin);
      }
      shorter = repeat_.begin + shorter_block * repeat_.period + at % repeat_.period;
    }
    for (int k = 0; k < index_.writes.size(n); ++k) {
      Choice choice = choices[shorter_.writes.begin(shorter)[k]];
      if (choice.fate != Fate::Keep) {
        choice.cache_from = cache_from(choice.cache_from, std::max(block, 0), std::max(shorter_block, 0), way);
      }
      result[index_.writes.begin(n)[k]] = choice;
    }
  }
  return result;
}

} // namespace recals::plan
