#pragma once

/// The search behind `choose`. `docs/planner.md` explains it.

#include <optional>
#include <vector>

#include "passes/plan/simulator.h"

namespace recals::plan {

struct Found {
  bool fits = false;
  std::vector<Fate> fates; ///< if it fits: the cheapest found; else: the lowest peak found
};

Found search(const StepGraph& graph, Simulator& simulator, const std::vector<int64_t>& budgets);

} // namespace recals::plan
