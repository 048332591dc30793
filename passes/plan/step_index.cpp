#include "passes/plan/step_index.h"

#include <algorithm>
#include <cstddef>

namespace recals::plan {

void Lists::append(const std::vector<std::vector<int>>& lists) {
  for (const std::vector<int>& list : lists) {
    entries.insert(entries.end(), list.begin(), list.end());
    close();
  }
}

StepIndex::StepIndex(const StepGraph& graph)
    : devices(static_cast<int>(graph.devices.size())),
      nodes(static_cast<int>(graph.nodes.size())),
      storages(static_cast<int>(graph.storages.size())) {
  slots.assign(storages, 0);
  first_save.assign(storages, -1);
  for (const Slot& slot : graph.slots) {
    ++slots[slot.storage];
    int& first = first_save[slot.storage];
    first = first < 0 ? slot.node : std::min(first, slot.node);
    slot_storage.push_back(slot.storage);
    slot_node.push_back(slot.node);
  }
  for (const Storage& storage : graph.storages) {
    const int s = static_cast<int>(bytes.size());
    bytes.push_back(storage.bytes);
    device.push_back(storage.device);
    producer.push_back(storage.producer);
    stays.push_back(storage.output || storage.pinned);
    recomputable.push_back(storage.recomputable);
    policy.push_back(storage.policy);
    packs.push_back(slots[s] > 0 && !stays[s] ? storage.packs : std::vector<Pack>{});
    last_read.push_back(storage.producer);
  }

  transient.assign(static_cast<size_t>(nodes) * devices, 0);
  recipe_transient.assign(static_cast<size_t>(nodes) * devices, 0);
  std::vector<std::vector<int>> readers_of(storages);
  std::vector<std::vector<int>> recipe_readers_of(storages);
  const auto fill = [&](std::vector<int64_t>& table, int n, const std::vector<int64_t>& values) {
    for (int d = 0; d < devices && d < static_cast<int>(values.size()); ++d) {
      table[static_cast<size_t>(n) * devices + d] = values[d];
    }
  };
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
    for (const int s : node.recipe.reads) {
      const auto has = [&](const std::vector<int>& list) { return !list.empty() && list.back() == n; };
      if (!has(recipe_readers_of[s])) {
        recipe_readers_of[s].push_back(n);
        recipe_needs.entries.push_back(s);
        if (!has(readers_of[s])) {
          recipe_reads.entries.push_back(s);
        }
      }
    }
    recipe_needs.close();
    recipe_reads.close();
    writes.entries.insert(writes.entries.end(), node.writes.begin(), node.writes.end());
    writes.close();
    fill(transient, n, node.transient);
    fill(recipe_transient, n, node.recipe.transient);
    rng_bytes.push_back(node.rng_bytes);
    rng_device.push_back(node.rng_device);
    seconds.push_back(node.seconds);
    recipe_seconds.push_back(node.recipe.seconds);
  }
  readers.append(readers_of);
  recipe_readers.append(recipe_readers_of);

  std::vector<std::vector<int>> dying_at(nodes);
  std::vector<std::vector<int>> saved_first_at(nodes);
  for (int s = 0; s < storages; ++s) {
    freed_at.push_back(graph.storages[s].held_in_forward ? nodes - 1 : last_read[s]);
    dying_at[freed_at[s]].push_back(s);
    if (!packs[s].empty()) {
      saved_first_at[first_save[s]].push_back(s);
    }
  }
  dying.append(dying_at);
  saved_first.append(saved_first_at);

  for (const BackwardEvent& event : graph.backward) {
    const bool of_slot = event.kind == BackwardEvent::Kind::Use || event.kind == BackwardEvent::Kind::Release;
    backward.push_back(
        {event.kind,
         of_slot ? graph.slots[event.index].storage : event.device,
         event.bytes,
         of_slot ? event.index : -1});
  }
}

Choice StepIndex::possible(int storage, const Choice& choice) const {
  switch (choice.fate) {
    case Fate::Keep:
      return Fate::Keep;
    case Fate::Recompute:
      return recomputable[storage] ? choice : Choice(Fate::Keep);
    case Fate::Pack: {
      const std::vector<Pack>& options = packs[storage];
      const bool there = choice.pack >= 0 && choice.pack < static_cast<int>(options.size());
      return there && (options[choice.pack].lossless || recomputable[storage]) ? choice : Choice(Fate::Keep);
    }
  }
  return Fate::Keep;
}

} // namespace recals::plan
