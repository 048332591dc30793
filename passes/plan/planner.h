#pragma once

/// Chooses the fate of every storage so that the simulated peak of every device is within its budget, at the least
/// recompute time that the heuristic finds. `docs/planner.md` explains the method.

#include <memory>
#include <variant>

#include "passes/plan/simulate.h"

namespace recals::plan {

struct Region {
  int first = 0; ///< forward nodes first..last, both included
  int last = 0;
};

struct Plan {
  std::vector<Choice> choices; ///< per storage
  std::vector<std::string> reasons; ///< per storage: why this fate, for a person
  /// Disjoint, in forward order; every node of N (Note [What the executor does with fates]) and every producer of a
  /// packed storage is inside one, and no two nodes of N of which one reads a dropped storage that the other writes are
  /// in two.
  std::vector<Region> regions;
  Simulation predicted;
};

/// No plan fits.
struct Infeasible {
  /// Per device: a budget that the planner can meet, all devices together. It is what was asked for where that is not
  /// what fails, so kNoBudget where there was none.
  std::vector<int64_t> smallest;
  int device = 0; ///< the device whose budget cannot be met
  PeakPoint at; ///< what sets the peak of that device in the smallest plan
  /// The smallest plan: no device that had a budget is above `smallest`.
  Plan plan;
  /// Per device: what no plan can be below (passes/plan/floor.h). Where `smallest` is the same, it is proved.
  std::vector<PeakPoint> floor;
  /// Per device: what the planner can meet if it does not have to follow MUST policies. Equal to `smallest` where they
  /// are not the reason.
  std::vector<int64_t> smallest_without_policies;
};

constexpr int64_t kNoBudget = INT64_MAX;

/// Plans one step for one budget after the other; the search for one helps with the next.
class Planner {
 public:
  /// `graph` must outlive it.
  explicit Planner(const StepGraph& graph);
  Planner(const Planner&) = delete;
  Planner& operator=(const Planner&) = delete;
  ~Planner();

  /// `budgets`: one hard limit in bytes per device of the graph, kNoBudget for none. The answer does not depend on what was
  /// asked before.
  std::variant<Plan, Infeasible> choose(const std::vector<int64_t>& budgets);

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

/// For one budget.
std::variant<Plan, Infeasible> choose(const StepGraph& graph, const std::vector<int64_t>& budgets);

/// The plan with these choices (one per storage).
Plan plan_of(const StepGraph& graph, std::vector<Choice> choices);

/// The plan that keeps everything: the plain step.
Plan keep_all(const StepGraph& graph);

/// Regions for a set of choices: the smallest disjoint intervals that contain what belongs together.
std::vector<Region> regions_of(const StepGraph& graph, const std::vector<Choice>& choices);

} // namespace recals::plan
