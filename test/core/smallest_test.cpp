/// The smallest budget is one number, whoever asks for it: the end of the curve, what an error names, what is accepted.

#include <cstdio>

#include <gtest/gtest.h>

#include "families.h"
#include "passes/plan/pareto.h"
#include "passes/plan/planner.h"
#include "passes/plan/search.h"
#include "passes/plan/simulator.h"

namespace recals::plan::test {
namespace {

int64_t peak_of(const Plan& plan) {
  return plan.predicted.peak[0].bytes;
}

/// `draws`: budgets above and below the smallest that are tried besides.
void expect_one_truth(const StepGraph& graph, uint64_t seed, int draws) {
  SCOPED_TRACE("seed " + std::to_string(seed) + ", " + std::to_string(graph.nodes.size()) + " nodes");
  std::vector<int64_t> others(graph.devices.size(), kNoBudget);
  const auto budget = [&](int64_t bytes) {
    others[0] = bytes;
    return others;
  };
  const int64_t smallest = pareto(graph).points.back().peak;
  Planner planner(graph);
  const auto nothing = planner.choose(budget(0));
  ASSERT_TRUE(std::holds_alternative<Infeasible>(nothing));
  EXPECT_EQ(std::get<Infeasible>(nothing).smallest[0], smallest);
  EXPECT_EQ(peak_of(std::get<Infeasible>(nothing).plan), smallest);

  // Asked of one planner after the other questions, and of one that was asked nothing before.
  Random random(seed);
  for (int i = -2; i < draws; ++i) {
    const bool fits = i == -2 || (i >= 0 && i % 2 == 0);
    const int64_t off = i < 0 ? (fits ? 0 : 1) : 1 + draw(random, 0, std::max<int64_t>(smallest / 20, 1));
    const int64_t bytes = fits ? smallest + off : std::max<int64_t>(smallest - off, 0);
    for (const auto& answer : {planner.choose(budget(bytes)), choose(graph, budget(bytes))}) {
      ASSERT_EQ(std::holds_alternative<Plan>(answer), fits) << bytes << " of " << smallest;
      if (fits) {
        EXPECT_LE(peak_of(std::get<Plan>(answer)), bytes);
        EXPECT_GE(peak_of(std::get<Plan>(answer)), smallest);
      } else {
        EXPECT_EQ(std::get<Infeasible>(answer).smallest[0], smallest);
        EXPECT_EQ(peak_of(std::get<Infeasible>(answer).plan), smallest);
      }
    }
  }
}

TEST(Smallest, IsOneNumberForSmallSteps) {
  for (uint64_t seed = 0; seed < 3; ++seed) {
    expect_one_truth(some_network(seed), seed, 2);
  }
}

TEST(Smallest, IsOneNumberForStepsBetween) {
  expect_one_truth(transformer({4, 256, 64, 512, true, -1}), 1, 0);
  expect_one_truth(random_network(7, 60, 25, 1, false), 2, 0);
}

/// Whether budgets around the smallest one, and far from it, agree on it; asked of a search after others, and anew.
void expect_one_end(const StepGraph& graph, uint64_t seed, const SearchOptions& options) {
  Simulator simulator(graph);
  const StepIndex& index = simulator.index();
  const auto peak = [&](const std::vector<Choice>& choices) {
    simulator.run(choices);
    return simulator.peak()[0].bytes;
  };
  std::vector<int64_t> budgets(index.devices, kNoBudget);
  const int64_t smallest = peak(frontier(index, 0, options).back());
  if (smallest == 0) {
    return;
  }
  Search asked_before(index, options);
  Random random(seed);
  for (const int64_t bytes :
       {int64_t{0}, smallest * draw(random, 101, 150) / 100, smallest - 1, smallest, smallest * 2, smallest}) {
    budgets[0] = bytes;
    const Found found = asked_before.find(budgets);
    const Found anew = Search(index, options).find(budgets);
    ASSERT_EQ(found.fits, bytes >= smallest) << "seed " << seed << ", " << bytes << " of " << smallest;
    ASSERT_EQ(found.choices, anew.choices) << "seed " << seed << ", " << bytes << " of " << smallest;
    ASSERT_GE(peak(found.choices), smallest) << "seed " << seed;
    ASSERT_LE(peak(found.choices), std::max(bytes, smallest)) << "seed " << seed;
  }
}

SearchOptions with_little_effort() {
  SearchOptions quick;
  quick.tries_per_choice = 5;
  quick.most_work = 2'000'000;
  quick.most_work_per_storage = 100;
  quick.most_sets = 1;
  return quick;
}

/// A step of more than SearchOptions::most_chained storages.
TEST(Smallest, IsOneNumberForLargeSteps) {
  const StepGraph graph = transformer({16, 256, 64, 512, true, -1});
  const StepIndex index(graph);
  ASSERT_GT(Options(index).storages.size(), SearchOptions().most_chained);
  const std::vector<Choice> end = frontier(index, 0).back();
  const int64_t smallest = simulate(graph, end).peak[0].bytes;
  Search search(index);
  for (const int64_t bytes : {int64_t{0}, smallest - 1}) {
    const Found found = search.find({bytes});
    EXPECT_FALSE(found.fits);
    EXPECT_EQ(simulate(graph, found.choices).peak[0].bytes, smallest);
  }
  EXPECT_EQ(search.find({smallest}).choices, end);
  EXPECT_EQ(Search(index).find({smallest}).choices, end);
}

/// Many steps, small ones in the ways of large ones, too.
TEST(Smallest, IsOneNumberHoweverASearchGoes) {
  for (uint64_t seed = 0; seed < 40 && !HasFatalFailure(); ++seed) {
    SearchOptions quick = with_little_effort();
    quick.most_archived = seed % 3 == 0 ? quick.most_archived : 0;
    quick.most_chained = seed % 3 == 2 ? 0 : quick.most_chained;
    expect_one_end(seed % 4 == 3 ? anything(seed) : some_network(seed), seed, quick);
  }
}

/// Counted work, as in Planner.DoesLittleWork.
TEST(Smallest, IsFoundWithAboutTheWorkOfAPlan) {
  for (const int layers : {16, 22, 40, 84}) {
    const StepGraph graph = transformer({layers, 2048, 512, 1024, true, -1});
    const StepIndex index(graph);
    const Found lowest = Search(index).find({1});
    EXPECT_FALSE(lowest.fits);
    std::printf(
        "%zu nodes: %.1f million units of work to find that there is none",
        graph.nodes.size(),
        static_cast<double>(lowest.work) * 1e-6);
    const int64_t plain = keep_all(graph).predicted.peak[0].bytes;
    double most = 0;
    for (const int64_t percent : {15, 25, 50}) {
      const Found plan = Search(index).find({plain * percent / 100});
      EXPECT_TRUE(plan.fits);
      std::printf(", %.1f for %d %%", static_cast<double>(plan.work) * 1e-6, static_cast<int>(percent));
      most = std::max(most, static_cast<double>(plan.work));
    }
    std::printf("\n");
    EXPECT_LT(static_cast<double>(lowest.work), 1.5 * most);
  }
}

} // namespace
} // namespace recals::plan::test
