#include "passes/plan/plan_json.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "families.h"

namespace recals::plan::test {
namespace {

using Json = nlohmann::json;

std::vector<std::string> keys(const nlohmann::ordered_json& object) {
  std::vector<std::string> names;
  for (const auto& [key, value] : object.items()) {
    names.push_back(key);
  }
  return names;
}

TEST(PlanJson, HasWhatTheHeaderSays) {
  const StepGraph graph = transformer({3, 256, 64, 256, true, 2});
  const Plan plain = keep_all(graph);
  const std::vector<int64_t> budgets{plain.predicted.peak[0].bytes * 7 / 10, kNoBudget};
  const auto result = choose(graph, budgets);
  ASSERT_TRUE(std::holds_alternative<Plan>(result));
  const Plan& plan = std::get<Plan>(result);
  ASSERT_FALSE(plan.predicted.replayed.empty());

  const std::string text = to_json(graph, plan, budgets);
  EXPECT_EQ(text.back(), '\n');
  const Json json = Json::parse(text);
  EXPECT_EQ(json["format"], 1);
  ASSERT_EQ(json["devices"].size(), 2u);
  for (size_t d = 0; d < 2; ++d) {
    const Json& device = json["devices"][d];
    EXPECT_EQ(device["name"], graph.devices[d]);
    EXPECT_EQ(device["peak"], plan.predicted.peak[d].bytes);
    EXPECT_EQ(device["held"], plan.predicted.held[d]);
    EXPECT_EQ(device["plain_peak"], plain.predicted.peak[d].bytes);
    EXPECT_EQ(device["plain_held"], plain.predicted.held[d]);
  }
  EXPECT_EQ(json["devices"][0]["budget"], budgets[0]);
  EXPECT_TRUE(json["devices"][1]["budget"].is_null());

  EXPECT_EQ(json["recompute_seconds"].get<double>(), plan.predicted.recompute_seconds);
  EXPECT_EQ(json["recomputed_bytes"], plan.predicted.recomputed_bytes);
  double seconds = 0;
  for (const Node& node : graph.nodes) {
    seconds += node.seconds;
  }
  EXPECT_EQ(json["plain_forward_seconds"].get<double>(), seconds);

  ASSERT_EQ(json["regions"].size(), plan.regions.size());
  for (size_t r = 0; r < plan.regions.size(); ++r) {
    EXPECT_EQ(json["regions"][r]["first"], plan.regions[r].first);
    EXPECT_EQ(json["regions"][r]["last"], plan.regions[r].last);
  }

  ASSERT_EQ(json["storages"].size(), graph.storages.size());
  std::vector<int> slots(graph.storages.size(), 0);
  for (const Slot& slot : graph.slots) {
    ++slots[slot.storage];
  }
  for (size_t s = 0; s < graph.storages.size(); ++s) {
    const Json& storage = json["storages"][s];
    EXPECT_EQ(storage["name"], graph.storages[s].name);
    EXPECT_EQ(storage["bytes"], graph.storages[s].bytes);
    EXPECT_EQ(storage["device"], graph.devices[graph.storages[s].device]);
    EXPECT_EQ(storage["op"], graph.nodes[graph.storages[s].producer].op);
    EXPECT_EQ(storage["module"], graph.nodes[graph.storages[s].producer].module);
    EXPECT_EQ(storage["internal"], graph.storages[s].internal);
    EXPECT_EQ(storage["slots"], slots[s]);
    EXPECT_EQ(storage["fate"], plan.choices[s].fate == Fate::Keep ? "keep" : "recompute");
    EXPECT_EQ(storage["reason"], plan.reasons[s]);
  }
  ASSERT_EQ(json["nodes_replayed"].size(), plan.predicted.replayed.size());
  for (size_t i = 0; i < plan.predicted.replayed.size(); ++i) {
    const int n = plan.predicted.replayed[i];
    EXPECT_EQ(json["nodes_replayed"][i]["index"], n);
    EXPECT_EQ(json["nodes_replayed"][i]["op"], graph.nodes[n].op);
    EXPECT_EQ(json["nodes_replayed"][i]["seconds"].get<double>(), graph.nodes[n].seconds);
  }

  // In the order of the header, so that a person reads the peaks first and two files can be compared line by line.
  const auto ordered = nlohmann::ordered_json::parse(text);
  EXPECT_EQ(
      keys(ordered),
      (std::vector<std::string>{
          "format",
          "devices",
          "recompute_seconds",
          "pack_seconds",
          "plain_forward_seconds",
          "plain_backward_seconds",
          "cost_model",
          "bounded_ops",
          "recomputed_bytes",
          "pins",
          "regions",
          "storages",
          "nodes_replayed"}));
  EXPECT_EQ(
      keys(ordered["storages"][0]),
      (std::vector<std::string>{
          "name",
          "bytes",
          "device",
          "op",
          "where",
          "module",
          "internal",
          "slots",
          "fate",
          "packed_as",
          "packed_bytes",
          "cache_from",
          "policy",
          "pin",
          "reason"}));
}

TEST(PlanJson, SaysWhereTimesComeFrom) {
  StepBuilder step;
  step.node("a", {}, {1});
  step.graph.backward_seconds = 0.25;
  step.graph.cost_model = {"some model", "0123456789abcdef"};
  step.graph.scratch = {3, 0, 1, {"aten::prod"}};
  auto json = Json::parse(to_json(step.graph, keep_all(step.graph), {kNoBudget}));
  EXPECT_EQ(json["plain_backward_seconds"].get<double>(), 0.25);
  EXPECT_EQ(json["cost_model"]["name"], "some model");
  EXPECT_EQ(json["cost_model"]["hash"], "0123456789abcdef");
  EXPECT_EQ(json["bounded_ops"].dump(), R"(["aten::prod"])");
  step.graph.cost_model = {"profile", ""};
  json = Json::parse(to_json(step.graph, keep_all(step.graph), {kNoBudget}));
  EXPECT_EQ(json["cost_model"]["name"], "profile");
  EXPECT_TRUE(json["cost_model"]["hash"].is_null());
}

TEST(PlanJson, BudgetsCanBeReadBack) {
  StepBuilder step({"cpu", "cuda:0"});
  step.node("a", {}, {1});
  const std::vector<int64_t> budgets{kNoBudget, (int64_t{1} << 62) + 1};
  EXPECT_EQ(budgets_in(to_json(step.graph, keep_all(step.graph), budgets)), budgets);
}

TEST(PlanJson, IntegersAreExact) {
  // 2^62 + 1 is no double.
  const int64_t bytes = (int64_t{1} << 62) + 1;
  StepBuilder step;
  const int a = step.node("a", {}, {bytes});
  step.save(a, step.out(a));
  const Json json = Json::parse(to_json(step.graph, keep_all(step.graph), {bytes}));
  EXPECT_EQ(json["storages"][0]["bytes"].get<int64_t>(), bytes);
  EXPECT_EQ(json["devices"][0]["peak"].get<int64_t>(), bytes);
  EXPECT_EQ(json["devices"][0]["held"].get<int64_t>(), bytes);
  EXPECT_EQ(json["devices"][0]["budget"].get<int64_t>(), bytes);
  EXPECT_TRUE(json["devices"][0]["peak"].is_number_integer());
}

TEST(PlanJson, RegionIsNamedByTheModuleAroundIt) {
  StepBuilder step;
  for (const char* module : {"net.layer1.0.conv", "net.layer1.0", "net.layer1.1.conv", "net.layer12", "", "other"}) {
    const int n = step.node("op", {}, {1});
    step.graph.nodes[n].module = module;
  }
  Plan plan = keep_all(step.graph);
  const auto module = [&](int first, int last) {
    plan.regions = {{first, last}};
    return Json::parse(to_json(step.graph, plan, {kNoBudget}))["regions"][0]["module"].get<std::string>();
  };
  EXPECT_EQ(module(0, 0), "net.layer1.0.conv");
  EXPECT_EQ(module(0, 1), "net.layer1.0");
  EXPECT_EQ(module(0, 2), "net.layer1");
  EXPECT_EQ(module(0, 3), "net"); // layer1 is no part of layer12
  EXPECT_EQ(module(3, 4), "");
  EXPECT_EQ(module(3, 5), "");
}

TEST(PlanJson, TakesNamesThatAreNoUtf8) {
  StepBuilder step;
  const int a = step.node("a\"\\\n", {}, {1});
  step.graph.nodes[a].where = "caf\xe9.py:1";
  const Json json = Json::parse(to_json(step.graph, keep_all(step.graph), {kNoBudget}));
  EXPECT_EQ(json["storages"][0]["op"], "a\"\\\n");
  EXPECT_EQ(json["storages"][0]["where"], "caf\xef\xbf\xbd.py:1");
}

} // namespace
} // namespace recals::plan::test
