#include "passes/plan/pareto.h"

#include <algorithm>

#include <nlohmann/json.hpp>

#include "passes/plan/search.h"
#include "passes/plan/simulator.h"

namespace recals::plan {

std::vector<ParetoPoint> pareto(const StepGraph& graph, int device) {
  Simulator simulator(graph);
  std::vector<std::vector<Choice>> plans = frontier(simulator.index(), device);
  std::vector<ParetoPoint> points;
  // From the smallest peak up: a point counts if it is cheaper than all that hold less.
  for (auto plan = plans.rbegin(); plan != plans.rend(); ++plan) {
    simulator.run(*plan);
    const double seconds = simulator.extra_seconds();
    if (points.empty() || seconds < points.back().extra_seconds) {
      points.push_back({simulator.peak()[device].bytes, simulator.held()[device], seconds, std::move(*plan)});
    }
  }
  std::reverse(points.begin(), points.end());
  return points;
}

std::string to_json(const StepGraph& graph, int device, const std::vector<ParetoPoint>& points) {
  using Json = nlohmann::ordered_json;
  double forward = 0;
  for (const Node& node : graph.nodes) {
    forward += node.seconds;
  }
  Json list = Json::array();
  for (const ParetoPoint& point : points) {
    list.push_back({{"peak", point.peak}, {"held", point.held}, {"extra_seconds", point.extra_seconds}});
  }
  const Json document = {
      {"format", 1},
      {"device", graph.devices[device]},
      {"plain_forward_seconds", forward},
      {"points", list},
  };
  return document.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

} // namespace recals::plan
