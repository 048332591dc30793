#include "passes/plan/pins.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "passes/plan/plan_json.h"
#include "passes/plan/planner.h"
#include "step_builder.h"

namespace recals::plan::test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

/// A stem and two blocks, each a linear and a ReLU; then a dropout with a mask, and the result. All saved.
StepGraph blocks() {
  StepBuilder b;
  const auto add = [&](const char* name, const char* op, const char* module, std::vector<int64_t> writes) {
    const int before = static_cast<int>(b.graph.nodes.size()) - 1;
    const int n = b.node(op, before < 0 ? std::vector<int>{} : std::vector<int>{b.out(before)}, std::move(writes), 1);
    b.graph.nodes[n].module = module;
    b.graph.storages[b.out(n)].name = name;
    b.save(n, b.out(n));
    return n;
  };
  add("%stem", "aten::linear", "", {100});
  add("%linear", "aten::linear", "block.0.linear", {100});
  add("%relu", "aten::relu", "block.0", {100});
  add("%linear.1", "aten::linear", "block.1.linear", {100});
  add("%relu.1", "aten::relu", "block.1", {100});
  const int dropout = add("%dropout", "aten::dropout", "drop", {100, 25});
  b.graph.storages[b.out(dropout, 1)].name = "%dropout saved[0]";
  b.save(dropout, b.out(dropout, 1));
  const int out = add("%out", "aten::linear", "head", {10});
  b.graph.storages[b.out(out)].output = true;
  b.reverse(0);
  return std::move(b.graph);
}

/// Names of the storages that have a policy.
std::vector<std::string> pinned_by(const std::string& pattern) {
  StepGraph graph = blocks();
  const auto bad = set_policies(graph, {{pattern, Policy::MustSave}});
  EXPECT_FALSE(bad) << bad->message;
  std::vector<std::string> names;
  for (const Storage& storage : graph.storages) {
    if (storage.policy != Policy::None) {
      EXPECT_EQ(storage.pin, 0);
      names.push_back(storage.name);
    }
  }
  return names;
}

std::string refused(std::vector<Pin> pins) {
  StepGraph graph = blocks();
  const auto bad = set_policies(graph, std::move(pins));
  return bad ? bad->message : "not refused";
}

TEST(Pins, APatternIsAValueAnOpOrAModuleWithAllInside) {
  EXPECT_THAT(pinned_by("%relu"), ElementsAre("%relu"));
  EXPECT_THAT(pinned_by("value:%relu"), ElementsAre("%relu"));
  EXPECT_THAT(pinned_by("%relu*"), ElementsAre("%relu", "%relu.1"));
  EXPECT_THAT(pinned_by("%dropout saved[0]"), ElementsAre("%dropout saved[0]"));
  EXPECT_THAT(pinned_by("aten::relu"), ElementsAre("%relu", "%relu.1"));
  EXPECT_THAT(pinned_by("relu"), ElementsAre("%relu", "%relu.1"));
  EXPECT_THAT(pinned_by("aten::rel?"), ElementsAre("%relu", "%relu.1"));
  EXPECT_THAT(pinned_by("op:drop*"), ElementsAre("%dropout", "%dropout saved[0]"));
  EXPECT_THAT(pinned_by("block.0"), ElementsAre("%linear", "%relu"));
  EXPECT_THAT(pinned_by("block.0.*"), ElementsAre("%linear"));
  EXPECT_THAT(pinned_by("block"), ElementsAre("%linear", "%relu", "%linear.1", "%relu.1"));
  EXPECT_THAT(pinned_by("block.?.linear"), ElementsAre("%linear", "%linear.1"));
  EXPECT_THAT(pinned_by("*.linear"), ElementsAre("%linear", "%linear.1"));
  EXPECT_THAT(pinned_by("module:h*"), ElementsAre("%out"));
  EXPECT_THAT(pinned_by("module:"), ElementsAre("%stem")); // outside of all modules but the outermost
  EXPECT_EQ(pinned_by("*").size(), 8u); // an op and a module, but the same storages
}

TEST(Pins, TheLastOneCounts) {
  StepGraph graph = blocks();
  ASSERT_FALSE(set_policies(
      graph, {{"block", Policy::MustRecompute}, {"relu", Policy::MustSave}, {"%relu.1", Policy::PreferRecompute}}));
  const Policy expected[] = {
      Policy::None,
      Policy::MustRecompute,
      Policy::MustSave,
      Policy::MustRecompute,
      Policy::PreferRecompute,
      Policy::None,
      Policy::None,
      Policy::None};
  for (size_t s = 0; s < graph.storages.size(); ++s) {
    EXPECT_EQ(graph.storages[s].policy, expected[s]) << graph.storages[s].name;
  }
  // Without pins nothing of them stays.
  ASSERT_FALSE(set_policies(graph, {}));
  for (const Storage& storage : graph.storages) {
    EXPECT_EQ(storage.policy, Policy::None);
    EXPECT_EQ(storage.pin, -1);
  }
}

TEST(Pins, WhatNamesNothingIsRefusedWithNearNames) {
  EXPECT_THAT(refused({{"blok.0", Policy::MustSave}}), HasSubstr("'blok.0' names nothing in this step"));
  EXPECT_THAT(refused({{"blok.0", Policy::MustSave}}), HasSubstr("near names are 'block.0'"));
  EXPECT_THAT(refused({{"%rely.1", Policy::MustSave}}), HasSubstr("near names are '%relu.1'"));
  EXPECT_THAT(refused({{"aten::rule", Policy::MustSave}}), HasSubstr("'aten::relu'"));
  EXPECT_THAT(refused({{"", Policy::MustSave}}), HasSubstr("names nothing"));
  EXPECT_THAT(refused({{"block..linear", Policy::MustSave}}), HasSubstr("names nothing"));
}

TEST(Pins, AWordThatIsAnOpAndAModuleIsRefused) {
  StepGraph graph = blocks();
  graph.nodes[0].module = "relu";
  const auto bad = set_policies(graph, {{"relu", Policy::MustSave}});
  ASSERT_TRUE(bad);
  EXPECT_THAT(bad->message, HasSubstr("write 'op:relu' or 'module:relu'"));
  EXPECT_FALSE(set_policies(graph, {{"op:relu", Policy::MustSave}}));
  EXPECT_FALSE(set_policies(graph, {{"module:relu", Policy::MustSave}}));
}

TEST(Pins, WhatMakesNoStorageIsToldFromWhatIsNotThere) {
  StepGraph graph = blocks();
  Node view;
  view.op = "aten::view";
  view.transient = {0};
  graph.nodes.push_back(view);
  const auto bad = set_policies(graph, {{"view", Policy::MustSave}});
  ASSERT_TRUE(bad);
  EXPECT_THAT(bad->message, HasSubstr("names only what makes nothing that could be kept"));
}

TEST(Pins, MustRecomputeOfWhatCannotBeIsRefusedUnlessALaterPinExemptsIt) {
  EXPECT_THAT(
      refused({{"head", Policy::MustRecompute}}),
      HasSubstr("must_recompute of '%out' (aten::linear of head), which cannot be recomputed: the caller holds it"));
  // Nobody saves it, so it is no obstacle to a pin that is about more.
  StepGraph unsaved = blocks();
  unsaved.slots.pop_back();
  EXPECT_TRUE(set_policies(unsaved, {{"head", Policy::MustRecompute}}));
  EXPECT_FALSE(set_policies(unsaved, {{"aten::linear", Policy::MustRecompute}}));

  StepGraph graph = blocks();
  graph.storages[2].recomputable = false;
  const Pin block{"block", Policy::MustRecompute};
  const auto bad = set_policies(graph, {block});
  ASSERT_TRUE(bad);
  EXPECT_THAT(bad->message, HasSubstr("'%relu' (aten::relu of block.0), which cannot be recomputed: its producer"));
  EXPECT_FALSE(set_policies(graph, {block, {"%relu", Policy::PreferSave}}));
  EXPECT_FALSE(set_policies(graph, {{"block", Policy::PreferRecompute}}));
}

TEST(Pins, ReasonsAndTheJsonSayWhichPinItWas) {
  StepGraph graph = blocks();
  ASSERT_FALSE(set_policies(
      graph,
      {{"block.0", Policy::MustRecompute}, {"%linear", Policy::MustSave}, {"%relu.1", Policy::PreferRecompute}}));
  const auto result = choose(graph, {kNoBudget});
  ASSERT_TRUE(std::holds_alternative<Plan>(result));
  const Plan& plan = std::get<Plan>(result);
  EXPECT_EQ(plan.choices[1].fate, Fate::Keep);
  EXPECT_THAT(plan.reasons[1], HasSubstr(", as the pin '%linear' (must_save) asks"));
  EXPECT_EQ(plan.choices[2].fate, Fate::Recompute);
  EXPECT_THAT(plan.reasons[2], HasSubstr(", as the pin 'block.0' (must_recompute) asks"));
  EXPECT_EQ(plan.choices[4].fate, Fate::Recompute);

  const auto json = nlohmann::ordered_json::parse(to_json(graph, plan, {kNoBudget}));
  EXPECT_EQ(json["pins"].dump(), R"({"block.0":"must_recompute","%linear":"must_save","%relu.1":"prefer_recompute"})");
  EXPECT_EQ(json["storages"][2]["policy"], "must_recompute");
  EXPECT_EQ(json["storages"][2]["pin"], "block.0");
  EXPECT_TRUE(json["storages"][0]["policy"].is_null());
  EXPECT_TRUE(json["storages"][0]["pin"].is_null());

  // What the plan keeps of them can be given back.
  const auto again = parse_pins(json["pins"].dump());
  ASSERT_TRUE(std::holds_alternative<std::vector<Pin>>(again));
  const auto& pins = std::get<std::vector<Pin>>(again);
  ASSERT_EQ(pins.size(), graph.pins.size());
  for (size_t p = 0; p < pins.size(); ++p) {
    EXPECT_EQ(pins[p].pattern, graph.pins[p].pattern);
    EXPECT_EQ(pins[p].policy, graph.pins[p].policy);
  }
}

TEST(Pins, APreferenceThatIsNotFollowedIsSaid) {
  StepGraph graph = blocks();
  ASSERT_FALSE(set_policies(graph, {{"*", Policy::PreferSave}}));
  const int64_t plain = keep_all(graph).predicted.peak[0].bytes;
  const auto result = choose(graph, {plain - 1});
  ASSERT_TRUE(std::holds_alternative<Plan>(result));
  const Plan& plan = std::get<Plan>(result);
  int unfollowed = 0;
  for (size_t s = 0; s < graph.storages.size(); ++s) {
    if (plan.choices[s].fate == Fate::Recompute) {
      EXPECT_THAT(plan.reasons[s], HasSubstr(", unlike the pin '*' (prefer_save) asks"));
      ++unfollowed;
    }
  }
  EXPECT_EQ(unfollowed, 1);
}

TEST(Pins, AreReadFromJsonInTheirOrder) {
  const auto pins = parse_pins(R"({"z.*": "MUST_SAVE", "a": "prefer_recompute"})");
  ASSERT_TRUE(std::holds_alternative<std::vector<Pin>>(pins));
  const auto& read = std::get<std::vector<Pin>>(pins);
  ASSERT_EQ(read.size(), 2u);
  EXPECT_EQ(read[0].pattern, "z.*");
  EXPECT_EQ(read[0].policy, Policy::MustSave);
  EXPECT_EQ(read[1].policy, Policy::PreferRecompute);
  EXPECT_TRUE(std::get<std::vector<Pin>>(parse_pins("{}")).empty());
}

TEST(Pins, WhatIsNoPinsFileIsRefused) {
  const std::pair<const char*, const char*> cases[] = {
      {"", "a JSON object"},
      {"[1]", "a JSON object"},
      {R"({"a": )", "a JSON object"},
      {R"({"a": 1})", "'a' has the policy 1"},
      {R"({"a": "keep"})", "'keep' is no policy; there are must_save"},
      {R"({"a": "must_save", "a": "prefer_save"})", "'a' is given twice"},
  };
  for (const auto& [text, message] : cases) {
    const auto pins = parse_pins(text);
    ASSERT_TRUE(std::holds_alternative<BadPin>(pins)) << text;
    EXPECT_THAT(std::get<BadPin>(pins).message, HasSubstr(message)) << text;
  }
}

} // namespace
} // namespace recals::plan::test
