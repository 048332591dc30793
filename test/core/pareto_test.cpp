#include "passes/plan/pareto.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "families.h"
#include "passes/plan/planner.h"

namespace recals::plan::test {
namespace {

TEST(Pareto, PeaksFallAndSecondsGrowFromThePlainStepToTheSmallest) {
  for (const StepGraph& graph :
       {transformer({2, 256, 64, 256, true, -1}), u_shaped(2, 4096), random_network(5, 25, 20, 1, false)}) {
    const std::vector<ParetoPoint> points = pareto(graph);
    const Plan plain = keep_all(graph);
    ASSERT_GE(points.size(), 5u);
    EXPECT_EQ(points.front().peak, plain.predicted.peak[0].bytes);
    EXPECT_EQ(points.front().extra_seconds, 0);
    for (size_t i = 0; i < points.size(); ++i) {
      const Simulation s = simulate(graph, points[i].choices);
      EXPECT_EQ(points[i].peak, s.peak[0].bytes);
      EXPECT_EQ(points[i].held, s.held[0]);
      EXPECT_EQ(points[i].extra_seconds, s.extra_seconds());
      if (i > 0) {
        EXPECT_LT(points[i].peak, points[i - 1].peak);
        EXPECT_GT(points[i].extra_seconds, points[i - 1].extra_seconds);
      }
    }
    // Where the curve ends, budgets end, too.
    const auto result = choose(graph, {1});
    ASSERT_TRUE(std::holds_alternative<Infeasible>(result));
    EXPECT_EQ(std::get<Infeasible>(result).smallest[0], points.back().peak);
  }
}

TEST(Pareto, WhereNothingCanBeDroppedThereIsOnePoint) {
  StepBuilder step;
  const int a = step.node("a", {}, {8});
  step.save(a, step.out(a));
  step.graph.storages[0].recomputable = false;
  step.reverse();
  const std::vector<ParetoPoint> points = pareto(step.graph);
  ASSERT_EQ(points.size(), 1u);
  EXPECT_EQ(points[0].peak, 8);
}

TEST(Pareto, TheOtherDeviceIsFree) {
  const StepGraph graph = transformer({4, 256, 64, 256, true, 2});
  const std::vector<ParetoPoint> points = pareto(graph, 1);
  EXPECT_LT(points.back().peak, points.front().peak * 3 / 4);
  EXPECT_EQ(points.back().peak, simulate(graph, points.back().choices).peak[1].bytes);
}

TEST(Pareto, AsJson) {
  const StepGraph graph = u_shaped(2, 1024);
  const std::vector<ParetoPoint> points = pareto(graph);
  const auto json = nlohmann::json::parse(to_json(graph, 0, points));
  EXPECT_EQ(json["format"], 1);
  EXPECT_EQ(json["device"], "cpu");
  ASSERT_EQ(json["points"].size(), points.size());
  for (size_t i = 0; i < points.size(); ++i) {
    EXPECT_EQ(json["points"][i]["peak"], points[i].peak);
    EXPECT_EQ(json["points"][i]["held"], points[i].held);
    EXPECT_EQ(json["points"][i]["extra_seconds"].get<double>(), points[i].extra_seconds);
  }
}

} // namespace
} // namespace recals::plan::test
