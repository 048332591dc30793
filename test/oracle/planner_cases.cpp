/// Small steps and what the planner makes of them, for another judge (test/python/test_ilp.py). Two ways to call it:
///
///   planner_cases KIND FIRST COUNT [PERCENT...]   prints the steps of so many seeds, one a line, as JSON:
///     { "name", "storages": [{"bytes", "device", "producer", "free" (it may be recomputed), "stays"}],
///       "nodes": [{"reads", "writes", "transient" (bytes per device), "rng_bytes", "rng_device", "seconds"}],
///       "slots": [{"storage", "node"}], "backward": [{"kind" ("use", "release", "change", "peak"), "index", "device",
///       "bytes"}], "all_tried" (the planner tries everything), "plans": [...], "points": [...] }
///     "plans": {"budgets" (bytes per device), "seconds" (of all runs; null: nothing fits)}: the first for a byte less than
///     the smallest budgets that the planner meets, the others for budgets that are PERCENT of the way from these to the
///     plain step's peaks. "points": some sets of choices, {"dropped" (storages), "seconds", "runs" (per node), "peaks"}.
///
///   planner_cases simulate                        reads {"kind", "seed", "dropped", "cache_from" (nodes, one for each of
///     them)}, one a line, and prints what they do, as a point.
///
/// The step of a seed is the same on every machine. Steps have neither packs nor recipes.

#include <cstdlib>
#include <iostream>
#include <stdexcept>
#include <string>

#include <nlohmann/json.hpp>

#include "passes/plan/exhaustive.h"
#include "passes/plan/planner.h"
#include "test/core/families.h"

namespace recals::plan::test {
namespace {

using Json = nlohmann::json;
using Budgets = std::vector<int64_t>;

struct Step {
  std::string name;
  StepGraph graph;
};

/// What real networks are made of, in sizes that vary.
Step block(uint64_t seed) {
  Random random(seed);
  const int64_t bytes = int64_t{1} << draw(random, 10, 20);
  switch (seed % 4) {
    case 0:
      return {"residual block", residual_network(1, 1, bytes)};
    case 1:
      return {"two residual blocks", residual_network(1, 2, bytes)};
    case 2: {
      TransformerSize size;
      size.layers = 1;
      size.tokens = 256 * draw(random, 1, 8);
      size.width = 128 * draw(random, 1, 8);
      size.vocabulary = size.width * draw(random, 1, 4);
      size.dropout = chance(random, 50);
      return {"transformer layer", transformer(size)};
    }
    default:
      return {"U-Net of a level", u_shaped(1, bytes)};
  }
}

Step network(uint64_t seed, int least, int most) {
  Random random(seed * 131 + 5);
  const int nodes = static_cast<int>(draw(random, least, most));
  switch (seed % 5) {
    case 0:
      return {"chain", random_network(seed, nodes, 0, 1, false)};
    case 1:
      return {"residual", random_network(seed, nodes, 25, 1, false)};
    case 2:
      return {"dense", random_network(seed, nodes, 90, 1, false)};
    case 3:
      return {"large gradients", random_network(seed, nodes, 20, 3, false)};
    default:
      return {"two devices", random_network(seed, nodes, 20, 1, true)};
  }
}

Step step_of(const std::string& kind, uint64_t seed) {
  if (kind == "tiny") {
    return network(seed, 3, 7);
  }
  if (kind == "small") {
    return network(seed, 8, 25);
  }
  if (kind == "block") {
    return block(seed);
  }
  throw std::invalid_argument("no kind '" + kind + "': tiny, small or block");
}

Json json_of(const StepGraph& graph, const Options& options) {
  Json json{{"slots", Json::array()}};
  for (size_t i = 0; i < graph.storages.size(); ++i) {
    const Storage& s = graph.storages[i];
    json["storages"].push_back(
        {{"bytes", s.bytes},
         {"device", s.device},
         {"producer", s.producer},
         {"free", options.allows(static_cast<int>(i), Fate::Recompute)},
         {"stays", s.output || s.pinned}});
  }
  for (const Node& n : graph.nodes) {
    json["nodes"].push_back(
        {{"reads", n.reads},
         {"writes", n.writes},
         {"transient", n.transient},
         {"rng_bytes", n.rng_bytes},
         {"rng_device", n.rng_device},
         {"seconds", n.seconds}});
  }
  for (const Slot& slot : graph.slots) {
    json["slots"].push_back({{"storage", slot.storage}, {"node", slot.node}});
  }
  constexpr const char* kKinds[] = {"use", "release", "change", "peak"};
  for (const BackwardEvent& event : graph.backward) {
    json["backward"].push_back(
        {{"kind", kKinds[static_cast<int>(event.kind)]},
         {"index", event.index},
         {"device", event.device},
         {"bytes", event.bytes}});
  }
  return json;
}

Budgets peaks_of(const Simulation& simulation) {
  Budgets peaks;
  for (const PeakPoint& peak : simulation.peak) {
    peaks.push_back(peak.bytes);
  }
  return peaks;
}

Json point_of(const StepGraph& graph, const std::vector<Choice>& choices) {
  const Simulation simulation = simulate(graph, choices);
  std::vector<int> dropped;
  for (size_t s = 0; s < choices.size(); ++s) {
    if (choices[s].fate == Fate::Recompute) {
      dropped.push_back(static_cast<int>(s));
    }
  }
  std::vector<int> runs(graph.nodes.size(), 0);
  for (size_t i = 0; i < simulation.replayed.size(); ++i) {
    runs[simulation.replayed[i]] = simulation.runs[i];
  }
  return {
      {"dropped", dropped}, {"seconds", simulation.extra_seconds()}, {"runs", runs}, {"peaks", peaks_of(simulation)}};
}

Json plan_for(const StepGraph& graph, const Budgets& budgets) {
  const auto result = choose(graph, budgets);
  const Plan* plan = std::get_if<Plan>(&result);
  return {{"budgets", budgets}, {"seconds", plan ? Json(plan->predicted.extra_seconds()) : Json(nullptr)}};
}

Json plans_for(const StepGraph& graph, const std::vector<int>& percents) {
  const Budgets plain = peaks_of(simulate(graph, std::vector<Choice>(graph.storages.size())));
  Budgets smallest = plain;
  const auto least = choose(graph, Budgets(plain.size(), 1));
  if (const auto* infeasible = std::get_if<Infeasible>(&least)) {
    smallest = infeasible->smallest;
  }
  Budgets budgets = smallest;
  for (int64_t& bytes : budgets) {
    --bytes;
  }
  Json plans{plan_for(graph, budgets)};
  for (const int percent : percents) {
    for (size_t d = 0; d < budgets.size(); ++d) {
      budgets[d] = smallest[d] + (plain[d] - smallest[d]) * percent / 100;
    }
    plans.push_back(plan_for(graph, budgets));
  }
  return plans;
}

void print_cases(const std::string& kind, uint64_t first, uint64_t count, const std::vector<int>& percents) {
  for (uint64_t seed = first; seed < first + count; ++seed) {
    const Step step = step_of(kind, seed);
    const StepGraph& graph = step.graph;
    const StepIndex index(graph);
    const Options options(index);
    Json json = json_of(graph, options);
    json["name"] = step.name;
    json["all_tried"] =
        try_all(index, options, Budgets(index.devices, kNoBudget), SearchOptions().most_sets).has_value();
    json["plans"] = plans_for(graph, percents);
    json["points"] = Json::array();
    for (uint64_t i = 0; i < 2; ++i) {
      std::vector<Choice> choices = any_choices(graph, 2 * seed + i);
      for (int s = 0; s < index.storages; ++s) {
        choices[s] = options.allows(s, Fate::Recompute) ? choices[s] : Fate::Keep;
      }
      json["points"].push_back(point_of(graph, choices));
    }
    std::cout << json.dump() << '\n';
  }
}

void print_simulations() {
  for (std::string line; std::getline(std::cin, line);) {
    const Json asked = Json::parse(line);
    const StepGraph graph = step_of(asked.at("kind"), asked.at("seed")).graph;
    std::vector<Choice> choices(graph.storages.size());
    for (size_t i = 0; i < asked.at("dropped").size(); ++i) {
      Choice& choice = choices.at(asked.at("dropped")[i]);
      choice.fate = Fate::Recompute;
      choice.cache_from = asked.at("cache_from").at(i);
    }
    std::cout << point_of(graph, choices).dump() << '\n';
  }
}

} // namespace
} // namespace recals::plan::test

int main(int argc, char** argv) {
  namespace test = recals::plan::test;
  const std::vector<std::string> words(argv + 1, argv + argc);
  try {
    if (words.size() == 1 && words[0] == "simulate") {
      test::print_simulations();
      return 0;
    }
    if (words.size() >= 3) {
      std::vector<int> percents;
      for (size_t i = 3; i < words.size(); ++i) {
        percents.push_back(std::stoi(words[i]));
      }
      test::print_cases(words[0], std::stoull(words[1]), std::stoull(words[2]), percents);
      return 0;
    }
  } catch (const std::exception& error) {
    std::cerr << "planner_cases: " << error.what() << '\n';
    return 1;
  }
  std::cerr << "usage: planner_cases tiny|small|block FIRST COUNT [PERCENT...]\n       planner_cases simulate\n";
  return 2;
}
