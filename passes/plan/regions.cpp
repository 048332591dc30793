#include <algorithm>

#include "passes/plan/planner.h"
#include "passes/plan/simulator.h"

namespace recals::plan {

std::vector<Region> regions_of(const StepGraph& graph, const std::vector<Fate>& fates) {
  Simulator simulator(graph);
  simulator.run(fates);
  const int nodes = simulator.index().nodes;

  std::vector<int> last_of_component(nodes, -1);
  for (int n = 0; n < nodes; ++n) {
    if (simulator.replays(n)) {
      last_of_component[simulator.component(n)] = n;
    }
  }
  // A component that starts inside a region joins it, and may make it longer.
  std::vector<Region> regions;
  for (int n = 0; n < nodes; ++n) {
    if (!simulator.replays(n)) {
      continue;
    }
    const int last = last_of_component[simulator.component(n)];
    if (!regions.empty() && n <= regions.back().last) {
      regions.back().last = std::max(regions.back().last, last);
    } else {
      regions.push_back({n, last});
    }
  }
  return regions;
}

} // namespace recals::plan
