#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "families.h"
#include "passes/plan/planner.h"

namespace recals::plan::test {
namespace {

using testing::HasSubstr;

/// Ten equal links, each of which saves what it reads.
struct Links : StepBuilder {
  Links() {
    int last = -1;
    for (int i = 0; i < 11; ++i) {
      last = node("op", last < 0 ? std::vector<int>{} : std::vector<int>{out(last)}, {100}, 1);
      if (last > 0) {
        save(last, out(last - 1));
      }
    }
    reverse(0);
  }
  Plan plan(int64_t budget) {
    auto result = choose(graph, {budget});
    EXPECT_TRUE(std::holds_alternative<Plan>(result));
    return std::get<Plan>(std::move(result));
  }
};

TEST(Policy, MustSaveIsNeverDropped) {
  Links links;
  // 1100 in the plain step, when the last node runs. For 1000 one of the first nine goes; none of the first eight may.
  for (int s = 0; s < 8; ++s) {
    links.graph.storages[s].policy = Policy::MustSave;
  }
  const Plan plan = links.plan(1000);
  for (int s = 0; s < 8; ++s) {
    EXPECT_EQ(plan.choices[s].fate, Fate::Keep);
    EXPECT_THAT(plan.reasons[s], HasSubstr("as must_save asks"));
  }
  EXPECT_EQ(plan.choices[8].fate, Fate::Recompute);
}

TEST(Policy, MustSaveMakesABudgetInfeasibleAndSaysSo) {
  Links links;
  for (int s = 0; s < 8; ++s) {
    links.graph.storages[s].policy = Policy::MustSave;
  }
  const auto result = choose(links.graph, {500});
  ASSERT_TRUE(std::holds_alternative<Infeasible>(result));
  const Infeasible& infeasible = std::get<Infeasible>(result);
  EXPECT_GE(infeasible.smallest[0], 800);
  EXPECT_EQ(infeasible.smallest_without_policies[0], 500);

  // Where the policies are not the reason, both are the same.
  const auto tiny = choose(links.graph, {1});
  ASSERT_TRUE(std::holds_alternative<Infeasible>(tiny));
  EXPECT_LT(std::get<Infeasible>(tiny).smallest_without_policies[0], std::get<Infeasible>(tiny).smallest[0]);
  Links free;
  const auto without = choose(free.graph, {1});
  EXPECT_EQ(std::get<Infeasible>(without).smallest_without_policies, std::get<Infeasible>(without).smallest);
}

TEST(Policy, MustRecomputeIsRecomputedWithoutNeed) {
  Links links;
  links.graph.storages[4].policy = Policy::MustRecompute;
  const Plan plan = links.plan(kNoBudget);
  EXPECT_EQ(plan.choices[4].fate, Fate::Recompute);
  EXPECT_THAT(plan.reasons[4], HasSubstr("as must_recompute asks"));
  EXPECT_EQ(plan.predicted.recompute_seconds, 1);
  const Plan tight = links.plan(600);
  EXPECT_EQ(tight.choices[4].fate, Fate::Recompute);
}

TEST(Policy, MustRecomputeSaysWhereItCannot) {
  Links links;
  links.graph.storages[4].policy = Policy::MustRecompute;
  links.graph.storages[4].recomputable = false;
  const Plan plan = links.plan(kNoBudget);
  EXPECT_EQ(plan.choices[4].fate, Fate::Keep);
  EXPECT_THAT(plan.reasons[4], HasSubstr("its producer must not run twice"));
}

TEST(Policy, PreferencesDecideAmongPlansThatFit) {
  // Any one of 0..8 could go for 1000; the fifth is preferred although it takes longer than the others.
  Links links;
  links.graph.nodes[5].seconds = 3;
  links.graph.storages[5].policy = Policy::PreferRecompute;
  const Plan plan = links.plan(1000);
  EXPECT_EQ(plan.choices[5].fate, Fate::Recompute);
  EXPECT_EQ(plan.predicted.recompute_seconds, 3);

  // The cheap ones are preferred to be saved: the costly one goes.
  Links costly;
  for (int s = 0; s < 8; ++s) {
    costly.graph.storages[s].policy = Policy::PreferSave;
  }
  costly.graph.nodes[8].seconds = 5;
  EXPECT_EQ(costly.plan(1000).choices[8].fate, Fate::Recompute);
  EXPECT_EQ(costly.plan(1000).predicted.recompute_seconds, 5);
  // But a preference is no law: 800 needs two more.
  const Plan more = costly.plan(800);
  EXPECT_EQ(more.choices[8].fate, Fate::Recompute);
  EXPECT_GE(std::count(more.choices.begin(), more.choices.begin() + 8, Choice(Fate::Recompute)), 1);
}

TEST(Policy, MustHoldsOnManyGraphsAtAnyBudget) {
  int plans = 0;
  for (uint64_t seed = 0; seed < 25; ++seed) {
    StepGraph graph = random_network(seed, 24, 20, 1, false);
    Random random(seed);
    for (Storage& storage : graph.storages) {
      storage.policy = static_cast<Policy>(chance(random, 40) ? draw(random, 1, 4) : 0);
    }
    std::vector<int> slots(graph.storages.size(), 0);
    for (const Slot& slot : graph.slots) {
      ++slots[slot.storage];
    }
    const int64_t peak = simulate(graph, std::vector<Choice>(graph.storages.size())).peak[0].bytes;
    auto result = choose(graph, {peak * draw(random, 40, 100) / 100});
    if (Infeasible* infeasible = std::get_if<Infeasible>(&result)) {
      EXPECT_LE(infeasible->smallest_without_policies[0], infeasible->smallest[0]);
      result = choose(graph, infeasible->smallest);
    }
    ASSERT_TRUE(std::holds_alternative<Plan>(result)) << "seed " << seed;
    const Plan& plan = std::get<Plan>(result);
    ++plans;
    for (size_t s = 0; s < graph.storages.size(); ++s) {
      const Storage& storage = graph.storages[s];
      if (storage.policy == Policy::MustSave) {
        EXPECT_EQ(plan.choices[s].fate, Fate::Keep) << "seed " << seed;
      }
      if (storage.policy == Policy::MustRecompute && storage.recomputable && !storage.output && slots[s] > 0) {
        EXPECT_EQ(plan.choices[s].fate, Fate::Recompute) << "seed " << seed;
      }
    }
  }
  EXPECT_EQ(plans, 25);
}

} // namespace
} // namespace recals::plan::test
