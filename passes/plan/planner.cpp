#include "passes/plan/planner.h"

#include <algorithm>
#include <cstdio>

#include "passes/plan/budget.h"
#include "passes/plan/floor.h"
#include "passes/plan/pins.h"
#include "passes/plan/search.h"
#include "passes/plan/simulator.h"

namespace recals::plan {
namespace {

std::string human_seconds(double seconds) {
  char text[32];
  if (seconds < 1e-4) {
    std::snprintf(text, sizeof(text), "%.3g us", seconds * 1e6);
  } else if (seconds < 1) {
    std::snprintf(text, sizeof(text), "%.3g ms", seconds * 1e3);
  } else {
    std::snprintf(text, sizeof(text), "%.3g s", seconds);
  }
  return text;
}

/// What a reason adds for a storage with a policy; empty without one.
std::string policy_in_words(const StepGraph& graph, const Storage& storage, Fate fate) {
  const Policy policy = storage.policy;
  if (policy == Policy::None) {
    return "";
  }
  const std::string who = storage.pin < 0
      ? std::string(name_of(policy))
      : "the pin '" + graph.pins[storage.pin].pattern + "' (" + name_of(policy) + ")";
  const bool save = policy == Policy::MustSave || policy == Policy::PreferSave;
  return (fate == (save ? Fate::Keep : Fate::Recompute) ? ", as " : ", unlike ") + who + " asks";
}

/// Makes the choices canonical: another fate than Keep only where it makes a difference.
Plan finish(const StepGraph& graph, Simulator& simulator, std::vector<Choice> choices) {
  const StepIndex& index = simulator.index();
  simulator.run(choices);
  for (int s = 0; s < index.storages; ++s) {
    const bool no_difference = index.slots[s] == 0 && !simulator.wanted(s);
    choices[s] = no_difference ? Choice(Fate::Keep) : index.possible(s, choices[s]);
  }

  Plan plan;
  plan.regions = regions_of(graph, choices);
  plan.predicted = simulate(graph, choices);
  simulator.run(choices);
  for (int s = 0; s < index.storages; ++s) {
    const Storage& storage = graph.storages[s];
    const int producer = storage.producer;
    const std::string size = human_bytes(storage.bytes);
    const std::string time = human_seconds(graph.nodes[producer].seconds);
    const std::string policy = policy_in_words(graph, storage, choices[s].fate);
    std::string reason;
    if (choices[s].fate == Fate::Pack) {
      const Pack& pack = storage.packs[choices[s].pack];
      reason = "packed: " + size + " as " + human_bytes(pack.bytes) + " (" + pack.kind + ") at " +
          human_seconds(pack.pack_seconds + simulator.unpacked(s) * pack.unpack_seconds) + policy;
    } else if (choices[s].fate == Fate::Recompute) {
      size_t region = 0;
      while (region < plan.regions.size() && plan.regions[region].last < producer) {
        ++region;
      }
      const int runs = simulator.runs(producer);
      const double seconds =
          simulator.by_recipe(producer) ? graph.nodes[producer].recipe.seconds : graph.nodes[producer].seconds;
      reason = "recomputed: " + size + " at " + human_seconds(seconds);
      reason += runs > 1 ? ", " + std::to_string(runs) + " times, in region " : " in region ";
      reason += std::to_string(region);
      reason += index.slots[s] == 0 ? ", for what is recomputed from it" : "";
      reason += policy;
    } else if (storage.output) {
      reason = "kept: the caller holds it";
    } else if (storage.pinned) {
      reason = "kept: something that Recals cannot see holds it";
    } else if (index.slots[s] == 0 && !simulator.wanted(s)) {
      reason = "freed in the forward: nothing saves it";
    } else if (!storage.recomputable) {
      reason = "kept: its producer must not run twice";
    } else if (index.slots[s] == 0) {
      reason = "held: " + size + ", what is recomputed starts from it" + policy;
    } else {
      reason = "kept: " + size + ", recomputing it would take " + time + policy;
    }
    plan.reasons.push_back(std::move(reason));
  }
  plan.choices = std::move(choices);
  return plan;
}

} // namespace

Plan plan_of(const StepGraph& graph, std::vector<Choice> choices) {
  Simulator simulator(graph);
  return finish(graph, simulator, std::move(choices));
}

Plan keep_all(const StepGraph& graph) {
  return plan_of(graph, std::vector<Choice>(graph.storages.size(), Fate::Keep));
}

namespace {

std::vector<int64_t> peaks_of(Simulator& simulator, const std::vector<Choice>& choices) {
  simulator.run(choices);
  std::vector<int64_t> peaks;
  for (const PeakPoint& peak : simulator.peak()) {
    peaks.push_back(peak.bytes);
  }
  return peaks;
}

/// What can be met if nothing must be: per device what was asked for where that can be, or the least that was found.
std::vector<int64_t> smallest_without_policies(StepGraph graph, const std::vector<int64_t>& budgets) {
  for (Storage& storage : graph.storages) {
    storage.policy = Policy::None;
  }
  Simulator simulator(graph);
  std::vector<int64_t> smallest = peaks_of(simulator, Search(simulator.index()).find(budgets).choices);
  for (size_t d = 0; d < budgets.size(); ++d) {
    smallest[d] = std::max(smallest[d], budgets[d]);
  }
  return smallest;
}

} // namespace

struct Planner::Parts {
  explicit Parts(const StepGraph& graph) : graph(graph), simulator(graph), search(simulator.index()) {}

  const StepGraph& graph;
  Simulator simulator;
  Search search;
};

Planner::Planner(const StepGraph& graph) : parts_(std::make_unique<Parts>(graph)) {}

Planner::~Planner() = default;

std::variant<Plan, Infeasible> Planner::choose(const std::vector<int64_t>& budgets) {
  auto& [graph, simulator, search] = *parts_;
  Found found = search.find(budgets);
  if (found.fits) {
    return finish(graph, simulator, std::move(found.choices));
  }
  Infeasible infeasible;
  infeasible.floor = floor_of(simulator.index());
  const std::vector<int64_t> peaks = peaks_of(simulator, found.choices);
  double worst = 0;
  for (size_t d = 0; d < peaks.size(); ++d) {
    infeasible.smallest.push_back(std::max(peaks[d], budgets[d]));
    const double ratio = static_cast<double>(peaks[d]) / static_cast<double>(std::max<int64_t>(budgets[d], 1));
    if (peaks[d] > budgets[d] && ratio > worst) {
      worst = ratio;
      infeasible.device = static_cast<int>(d);
      infeasible.at = simulator.peak()[d];
    }
  }
  const bool must = std::any_of(graph.storages.begin(), graph.storages.end(), [](const Storage& storage) {
    return storage.policy == Policy::MustSave || storage.policy == Policy::MustRecompute;
  });
  infeasible.plan = finish(graph, simulator, std::move(found.choices));
  infeasible.smallest_without_policies = must ? smallest_without_policies(graph, budgets) : infeasible.smallest;
  return infeasible;
}

std::variant<Plan, Infeasible> choose(const StepGraph& graph, const std::vector<int64_t>& budgets) {
  return Planner(graph).choose(budgets);
}

} // namespace recals::plan
