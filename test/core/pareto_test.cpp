#include "passes/plan/pareto.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "families.h"
#include "passes/plan/pins.h"
#include "passes/plan/planner.h"

namespace recals::plan::test {
namespace {

TEST(Pareto, PeaksFallAndSecondsGrowFromThePlainStepToTheSmallest) {
  for (const StepGraph& graph :
       {transformer({2, 256, 64, 256, true, -1}), u_shaped(2, 4096), random_network(5, 25, 20, 1, false)}) {
    const std::vector<ParetoPoint> points = pareto(graph).points;
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
  const std::vector<ParetoPoint> points = pareto(step.graph).points;
  ASSERT_EQ(points.size(), 1u);
  EXPECT_EQ(points[0].peak, 8);
}

TEST(Pareto, TheOtherDeviceIsFree) {
  const StepGraph graph = transformer({4, 256, 64, 256, true, 2});
  const std::vector<ParetoPoint> points = pareto(graph, 1).points;
  EXPECT_LT(points.back().peak, points.front().peak * 3 / 4);
  EXPECT_EQ(points.back().peak, simulate(graph, points.back().choices).peak[1].bytes);
}

TEST(Pareto, AsJson) {
  StepGraph graph = u_shaped(2, 1024);
  graph.cost_model = {"roofline", "abc"};
  ASSERT_FALSE(set_policies(graph, {{"%aten::cat*", Policy::PreferSave}}));
  const ParetoCurve curve = pareto(graph);
  const auto json = nlohmann::json::parse(to_json(curve));
  EXPECT_EQ(json["format"], 1);
  EXPECT_EQ(json["device"], "cpu");
  EXPECT_EQ(json["plain_peak"], keep_all(graph).predicted.peak[0].bytes);
  EXPECT_EQ(json["plain_seconds"].get<double>(), curve.plain_seconds);
  EXPECT_EQ(json["cost_model"]["hash"], "abc");
  EXPECT_EQ(json["pins"]["%aten::cat*"], "prefer_save");
  ASSERT_EQ(json["points"].size(), curve.points.size());
  for (size_t i = 0; i < curve.points.size(); ++i) {
    EXPECT_EQ(json["points"][i]["peak"], curve.points[i].peak);
    EXPECT_EQ(json["points"][i]["held"], curve.points[i].held);
    EXPECT_EQ(json["points"][i]["extra_seconds"].get<double>(), curve.points[i].extra_seconds);
    EXPECT_EQ(
        json["points"][i]["fraction"].get<double>(),
        static_cast<double>(curve.points[i].peak) / static_cast<double>(curve.plain_peak));
  }
}

TEST(Pareto, AsText) {
  ParetoCurve curve{"cpu", 4096, 2.0, {"roofline", ""}};
  curve.points = {{4096, 2048, 0, {}}, {4000, 1, 0.1, {}}, {3072, 1024, 0.25, {}}, {1024, 512, 1, {}}};
  EXPECT_EQ(
      to_text(curve, 3),
      "cpu: 4 plans, peaks from 4.0 KiB (4096 bytes) to 1.0 KiB (1024 bytes)\n"
      "  cost model: roofline\n"
      "\n"
      "         peak  of plain        held     extra time  of the step\n"
      "      4.0 KiB   100.0 %     2.0 KiB       0.000 ms        0.0 %\n"
      "      3.0 KiB    75.0 %     1.0 KiB     250.000 ms       12.5 %\n"
      "      1.0 KiB    25.0 %       512 B    1000.000 ms       50.0 %\n");
}

} // namespace
} // namespace recals::plan::test
