#include "passes/plan/pareto.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include <nlohmann/json.hpp>

#include "passes/plan/budget.h"
#include "passes/plan/json_parts.h"
#include "passes/plan/search.h"
#include "passes/plan/simulator.h"

namespace recals::plan {
namespace {

double fraction_of(int64_t peak, const ParetoCurve& curve) {
  return curve.plain_peak > 0 ? static_cast<double>(peak) / static_cast<double>(curve.plain_peak) : 1;
}

/// At most `rows` indices, the first and the last among them, whose peaks are evenly spread.
std::vector<size_t> spread(const std::vector<ParetoPoint>& points, int rows) {
  std::vector<size_t> chosen;
  const double most = static_cast<double>(points.front().peak);
  const double range = most - static_cast<double>(points.back().peak);
  for (int row = 0; row < rows; ++row) {
    const double wanted = most - range * row / std::max(rows - 1, 1);
    const auto distance = [&](const ParetoPoint& point) { return std::abs(static_cast<double>(point.peak) - wanted); };
    const auto nearest = std::min_element(
        points.begin(), points.end(), [&](const auto& a, const auto& b) { return distance(a) < distance(b); });
    const size_t index = nearest - points.begin();
    if (chosen.empty() || index > chosen.back()) {
      chosen.push_back(index);
    }
  }
  return chosen;
}

} // namespace

ParetoCurve pareto(const StepGraph& graph, int device) {
  Simulator simulator(graph);
  std::vector<std::vector<Choice>> plans = frontier(simulator.index(), device);
  ParetoCurve curve{graph.devices[device], 0, graph.backward_seconds, graph.cost_model, graph.pins};
  for (const Node& node : graph.nodes) {
    curve.plain_seconds += node.seconds;
  }
  simulator.run(std::vector<Choice>(graph.storages.size(), Fate::Keep));
  curve.plain_peak = simulator.peak()[device].bytes;
  // From the smallest peak up: a point counts if it is cheaper than all that hold less.
  std::vector<ParetoPoint>& points = curve.points;
  for (auto plan = plans.rbegin(); plan != plans.rend(); ++plan) {
    simulator.run(*plan);
    const double seconds = simulator.extra_seconds();
    if (points.empty() || seconds < points.back().extra_seconds) {
      points.push_back({simulator.peak()[device].bytes, simulator.held()[device], seconds, std::move(*plan)});
    }
  }
  std::reverse(points.begin(), points.end());
  return curve;
}

std::string to_text(const ParetoCurve& curve, int rows) {
  const auto& points = curve.points;
  const auto exact = [](int64_t bytes) { return human_bytes(bytes) + " (" + std::to_string(bytes) + " bytes)"; };
  std::string text = curve.device + ": " + std::to_string(points.size()) + (points.size() == 1 ? " plan" : " plans") +
      ", peaks from " + exact(points.front().peak) + " to " + exact(points.back().peak) + "\n";
  text += "  cost model: " + curve.cost_model.name + "\n\n";
  text += "         peak  of plain        held     extra time  of the step\n";
  for (const size_t index : spread(points, rows)) {
    const ParetoPoint& point = points[index];
    const double of_step = curve.plain_seconds > 0 ? 100 * point.extra_seconds / curve.plain_seconds : 0;
    char line[128];
    std::snprintf(
        line,
        sizeof(line),
        "  %11s  %6.1f %%  %10s  %10.3f ms     %6.1f %%\n",
        human_bytes(point.peak).c_str(),
        100 * fraction_of(point.peak, curve),
        human_bytes(point.held).c_str(),
        point.extra_seconds * 1e3,
        of_step);
    text += line;
  }
  return text;
}

std::string to_json(const ParetoCurve& curve) {
  using Json = nlohmann::ordered_json;
  Json points = Json::array();
  for (const ParetoPoint& point : curve.points) {
    points.push_back({
        {"peak", point.peak},
        {"held", point.held},
        {"extra_seconds", point.extra_seconds},
        {"fraction", fraction_of(point.peak, curve)},
    });
  }
  const Json document = {
      {"format", 1},
      {"device", curve.device},
      {"plain_peak", curve.plain_peak},
      {"plain_seconds", curve.plain_seconds},
      {"cost_model", json_of(curve.cost_model)},
      {"pins", json_of(curve.pins)},
      {"points", points},
  };
  return document.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

} // namespace recals::plan
