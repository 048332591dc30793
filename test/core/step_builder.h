#pragma once

/// Writes StepGraphs for tests: by hand, node by node, or whole families from a seed.

#include <algorithm>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "passes/plan/simulate.h"

namespace recals::plan::test {

using Event = BackwardEvent;

struct StepBuilder {
  StepGraph graph;

  explicit StepBuilder(std::vector<std::string> devices = {"cpu"}) {
    graph.devices = std::move(devices);
  }

  /// A node that reads storages and allocates storages of the given bytes. Its transient is what it writes.
  int node(
      const std::string& op,
      std::vector<int> reads,
      std::vector<int64_t> writes,
      double seconds = 1,
      int device = 0) {
    Node node;
    node.op = op;
    node.reads = std::move(reads);
    node.seconds = seconds;
    node.transient.assign(graph.devices.size(), 0);
    const int n = static_cast<int>(graph.nodes.size());
    for (const int64_t bytes : writes) {
      Storage storage;
      storage.name = "%" + op + "." + std::to_string(graph.storages.size());
      storage.bytes = bytes;
      storage.device = device;
      storage.producer = n;
      node.writes.push_back(static_cast<int>(graph.storages.size()));
      node.transient[device] += bytes;
      graph.storages.push_back(std::move(storage));
    }
    graph.nodes.push_back(std::move(node));
    return n;
  }

  /// The only, or k-th, storage that a node writes.
  int out(int node, int k = 0) const {
    return graph.nodes[node].writes[k];
  }

  /// The autograd node of `node` saves `storage`.
  int save(int node, int storage) {
    Slot slot;
    slot.storage = storage;
    slot.node = node;
    graph.slots.push_back(slot);
    return static_cast<int>(graph.slots.size()) - 1;
  }

  void use(int slot) {
    graph.backward.push_back({Event::Kind::Use, slot, 0, 0, -1});
  }
  void release(int slot) {
    graph.backward.push_back({Event::Kind::Release, slot, 0, 0, -1});
  }
  void change(int64_t bytes, int device = 0) {
    graph.backward.push_back({Event::Kind::Change, 0, device, bytes, -1});
  }
  void peak(int64_t bytes, int device = 0) {
    graph.backward.push_back({Event::Kind::Peak, 0, device, bytes, -1});
  }

  /// The backward that autograd would run: nodes in reverse; each unpacks its slots, makes the gradients of what it
  /// read (`gradient_scale` times as big), lets its slots go, then the gradients of what it wrote.
  void reverse(double gradient_scale = 1) {
    std::vector<std::vector<int>> slots_of(graph.nodes.size());
    for (size_t i = 0; i < graph.slots.size(); ++i) {
      slots_of[graph.slots[i].node].push_back(static_cast<int>(i));
    }
    std::vector<int64_t> gradient(graph.storages.size(), 0);
    const auto make = [&](int s) {
      if (gradient[s] == 0) {
        gradient[s] = static_cast<int64_t>(gradient_scale * static_cast<double>(graph.storages[s].bytes));
        change(gradient[s], graph.storages[s].device);
      }
    };
    for (int n = static_cast<int>(graph.nodes.size()) - 1; n >= 0; --n) {
      for (const int slot : slots_of[n]) {
        use(slot);
      }
      for (const int s : graph.nodes[n].reads) {
        make(s);
      }
      for (const int slot : slots_of[n]) {
        release(slot);
      }
      for (const int s : graph.nodes[n].writes) {
        if (gradient[s] > 0) {
          change(-gradient[s], graph.storages[s].device);
          gradient[s] = 0;
        }
      }
    }
  }
};

using Random = std::mt19937_64;

/// std::uniform_int_distribution differs between standard libraries; this does not.
inline int64_t draw(Random& random, int64_t low, int64_t high) {
  return low + static_cast<int64_t>(random() % static_cast<uint64_t>(high - low + 1));
}

inline bool chance(Random& random, int percent) {
  return draw(random, 0, 99) < percent;
}

/// Anything the contract allows: several writes, shared slots, slots that nobody uses or releases, random order of the
/// backward, outputs, pins, two devices, generator states, forms to pack into, recipes.
inline StepGraph anything(uint64_t seed) {
  Random random(seed);
  StepBuilder b(chance(random, 40) ? std::vector<std::string>{"cpu", "cuda:0"} : std::vector<std::string>{"cpu"});
  const int devices = static_cast<int>(b.graph.devices.size());
  const int nodes = static_cast<int>(draw(random, 1, 12));
  for (int n = 0; n < nodes; ++n) {
    std::vector<int> reads;
    const int storages = static_cast<int>(b.graph.storages.size());
    for (int i = static_cast<int>(draw(random, 0, 3)); i > 0 && storages > 0; --i) {
      const int s = static_cast<int>(draw(random, chance(random, 70) ? std::max(0, storages - 3) : 0, storages - 1));
      if (std::find(reads.begin(), reads.end(), s) == reads.end()) {
        reads.push_back(s);
      }
    }
    std::vector<int64_t> writes;
    for (int i = static_cast<int>(draw(random, 0, 2)); i >= 0; --i) {
      if (i > 0 || chance(random, 70)) {
        writes.push_back(draw(random, 0, 40));
      }
    }
    const int device = static_cast<int>(draw(random, 0, devices - 1));
    b.node("op", reads, writes, static_cast<double>(draw(random, 0, 64)) / 8, device);
    Node& node = b.graph.nodes.back();
    for (int64_t& bytes : node.transient) {
      bytes += chance(random, 30) ? draw(random, 0, 50) : 0;
    }
    if (chance(random, 20)) {
      node.rng_bytes = draw(random, 1, 9);
      node.rng_device = static_cast<int>(draw(random, -1, devices - 1));
    }
  }
  for (Storage& storage : b.graph.storages) {
    storage.output = chance(random, 5);
    storage.pinned = chance(random, 5);
    storage.recomputable = !chance(random, 8);
    storage.held_in_forward = storage.bytes % 11 == 1;
    for (int i = chance(random, 40) ? static_cast<int>(draw(random, 1, 2)) : 0; i > 0; --i) {
      Pack pack;
      pack.kind = "half " + std::to_string(i);
      pack.bytes = draw(random, 0, storage.bytes / 2);
      pack.lossless = chance(random, 60);
      pack.pack_seconds = static_cast<double>(draw(random, 0, 8)) / 8;
      pack.unpack_seconds = static_cast<double>(draw(random, 0, 8)) / 8;
      pack.pack_transient = pack.bytes + (chance(random, 30) ? draw(random, 0, 20) : 0);
      pack.unpack_transient = storage.bytes + (chance(random, 30) ? draw(random, 0, 20) : 0);
      storage.packs.push_back(pack);
    }
  }
  for (int n = 0; n < nodes; ++n) {
    Node& node = b.graph.nodes[n];
    if (!chance(random, 30)) {
      continue;
    }
    // From what the node makes itself, or what was there.
    for (int s = static_cast<int>(b.graph.storages.size()) - 1; s >= 0 && node.recipe.reads.size() < 2; --s) {
      if (b.graph.storages[s].producer <= n && chance(random, 50)) {
        node.recipe.reads.push_back(s);
      }
    }
    node.recipe.seconds = node.seconds / 4;
    for (int d = 0; d < devices; ++d) {
      node.recipe.transient.push_back(node.transient[d] / 2);
    }
  }
  std::vector<std::pair<int64_t, Event>> events;
  const int storages = static_cast<int>(b.graph.storages.size());
  for (int i = static_cast<int>(draw(random, 0, 2 * nodes)); i > 0 && storages > 0; --i) {
    const int s = static_cast<int>(draw(random, 0, storages - 1));
    const int slot = b.save(static_cast<int>(draw(random, b.graph.storages[s].producer, nodes - 1)), s);
    int64_t time = draw(random, 0, 1000);
    for (int uses = chance(random, 85) ? 1 : static_cast<int>(draw(random, 0, 2)); uses > 0; --uses) {
      events.push_back({time, {Event::Kind::Use, slot, 0, 0, -1}});
      time = draw(random, time, 1000);
    }
    if (chance(random, 90)) {
      events.push_back({time, {Event::Kind::Release, slot, 0, 0, -1}});
    }
  }
  for (int i = static_cast<int>(draw(random, 0, nodes)); i > 0; --i) {
    const int device = static_cast<int>(draw(random, 0, devices - 1));
    const int64_t bytes = draw(random, 1, 40);
    const int64_t time = draw(random, 0, 1000);
    events.push_back({time, {Event::Kind::Change, 0, device, bytes, -1}});
    events.push_back({draw(random, time, 1000), {Event::Kind::Change, 0, device, -bytes, -1}});
    events.push_back({draw(random, 0, 1000), {Event::Kind::Peak, 0, device, draw(random, 0, 60), -1}});
  }
  std::stable_sort(events.begin(), events.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  for (auto& [time, event] : events) {
    b.graph.backward.push_back(event);
  }
  return std::move(b.graph);
}

/// Any choice for one storage.
inline Choice any_choice(const StepGraph& graph, int storage, Random& random) {
  const int packs = static_cast<int>(graph.storages[storage].packs.size());
  Choice choice = chance(random, 50) ? Fate::Keep : Fate::Recompute;
  if (packs > 0 && chance(random, 40)) {
    choice = Fate::Pack;
    choice.pack = static_cast<int>(draw(random, 0, packs - 1));
  }
  if (choice.fate != Fate::Keep && chance(random, 50)) {
    choice.cache_from = static_cast<int>(draw(random, -1, static_cast<int>(graph.nodes.size()) - 1));
  }
  return choice;
}

/// Choices for any graph: each storage dropped with one probability, that is drawn too, or packed; half of the graphs
/// retain everything.
inline std::vector<Choice> any_choices(const StepGraph& graph, uint64_t seed) {
  Random random(seed * 7919 + 1);
  const int percent = static_cast<int>(draw(random, 0, 100));
  const bool nested = chance(random, 50);
  std::vector<Choice> choices;
  for (size_t s = 0; s < graph.storages.size(); ++s) {
    Choice choice = any_choice(graph, static_cast<int>(s), random);
    if (choice.fate != Fate::Pack && chance(random, percent)) {
      choice.fate = Fate::Recompute;
    }
    if (!nested) {
      choice.cache_from = Choice::kAlways;
    }
    choices.push_back(choice);
  }
  return choices;
}

} // namespace recals::plan::test
