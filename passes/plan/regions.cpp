#include <algorithm>
#include <numeric>

#include "passes/plan/planner.h"
#include "passes/plan/simulator.h"

namespace recals::plan {

std::vector<Region> regions_of(const StepGraph& graph, const std::vector<Choice>& choices) {
  Simulator simulator(graph);
  simulator.run(choices);
  const StepIndex& index = simulator.index();

  // Nodes of N that hand a dropped storage to each other belong together.
  std::vector<int> parent(index.nodes);
  std::iota(parent.begin(), parent.end(), 0);
  const auto root_of = [&](int n) {
    while (parent[n] != n) {
      parent[n] = parent[parent[n]];
      n = parent[n];
    }
    return n;
  };
  std::vector<uint8_t> inside(index.nodes, 0);
  for (int n = 0; n < index.nodes; ++n) {
    inside[n] = simulator.replays(n);
    for (const int* s = index.reads.begin(n); s != index.reads.end(n) && inside[n]; ++s) {
      if (simulator.dropped(*s)) {
        parent[root_of(index.producer[*s])] = root_of(n);
      }
    }
  }
  for (int s = 0; s < index.storages; ++s) {
    if (index.possible(s, choices[s]).fate == Fate::Pack) {
      inside[index.producer[s]] = 1;
    }
  }
  std::vector<int> last(index.nodes, -1);
  for (int n = 0; n < index.nodes; ++n) {
    if (inside[n]) {
      last[root_of(n)] = n;
    }
  }
  // What starts inside a region joins it, and may make it longer.
  std::vector<Region> regions;
  for (int n = 0; n < index.nodes; ++n) {
    if (!inside[n]) {
      continue;
    }
    if (!regions.empty() && n <= regions.back().last) {
      regions.back().last = std::max(regions.back().last, last[root_of(n)]);
    } else {
      regions.push_back({n, last[root_of(n)]});
    }
  }
  return regions;
}

} // namespace recals::plan
