/// The planner against optima that are proved by branch and bound.

#include <cstdio>
#include <limits>

#include <gtest/gtest.h>

#include "families.h"
#include "passes/plan/options.h"
#include "passes/plan/planner.h"
#include "passes/plan/search.h"
#include "passes/plan/simulator.h"

namespace recals::plan::test {
namespace {

/// The cheapest plan without nesting. Changing one more storage from Keep never makes a plan cheaper (N only grows, recipes
/// only go), so a set of choices that already costs as much as a plan that fits has no extension that is better.
class BranchAndBound {
 public:
  BranchAndBound(const StepGraph& graph, const std::vector<int64_t>& budgets, int64_t most_runs)
      : simulator_(graph), options_(simulator_.index()), budgets_(budgets), most_runs_(most_runs) {
    choices_.assign(graph.storages.size(), Fate::Keep);
  }

  /// Proves what is best, given that `known` seconds can be had. False: it would take too long.
  bool run(double known) {
    best_ = known;
    extend(0);
    return runs_ < most_runs_;
  }
  double best() const {
    return best_;
  }

 private:
  void extend(size_t from) {
    if (++runs_ >= most_runs_) {
      return;
    }
    simulator_.run(choices_);
    if (simulator_.extra_seconds() >= best_) {
      return;
    }
    bool fits = true;
    for (size_t d = 0; d < budgets_.size(); ++d) {
      fits &= simulator_.peak()[d].bytes <= budgets_[d];
    }
    if (fits) {
      best_ = simulator_.extra_seconds();
      return;
    }
    for (size_t i = from; i < options_.storages.size(); ++i) {
      const int s = options_.storages[i];
      for (const Choice& choice : options_.of[s]) {
        if (choice.fate != Fate::Keep) {
          choices_[s] = choice;
          extend(i + 1);
        }
      }
      choices_[s] = Fate::Keep;
    }
  }

  Simulator simulator_;
  Options options_;
  std::vector<int64_t> budgets_;
  int64_t most_runs_;
  int64_t runs_ = 0;
  std::vector<Choice> choices_;
  double best_ = std::numeric_limits<double>::infinity();
};

TEST(Oracle, BranchAndBoundFindsWhatCanBeAddedUpByHand) {
  // a(10, 1 s), b(20, 3 s), c(5, 2 s), all saved by themselves; a sum reads none of them. 35 in the plain step.
  StepBuilder step;
  for (const auto& [bytes, seconds] : {std::pair{10, 1.0}, {20, 3.0}, {5, 2.0}}) {
    const int n = step.node("op", {}, {bytes}, seconds);
    step.save(n, step.out(n));
  }
  for (const int slot : {2, 1, 0}) {
    step.use(slot);
    step.release(slot);
  }
  // For 34: a goes (1 s). For 24: b must go (3 s) or a and c do not suffice (20 left, but b + c are there when c is made).
  BranchAndBound little(step.graph, {34}, 1000);
  ASSERT_TRUE(little.run(100));
  EXPECT_EQ(little.best(), 1);
  BranchAndBound more(step.graph, {25}, 1000);
  ASSERT_TRUE(more.run(100));
  EXPECT_EQ(more.best(), 1); // without a: 20 + 5
}

TEST(Oracle, PlansAreCloseToProvedOptima) {
  int proved = 0;
  int optimal = 0;
  int choices = 0;
  double sum = 0;
  double worst = 1;
  for (uint64_t seed = 0; seed < 60; ++seed) {
    Random random(seed);
    StepGraph graph;
    switch (seed % 5) {
      case 0:
        graph = with_packs(random_network(seed, 18, 0, 1, false), seed); // a chain
        break;
      case 1:
        graph = with_packs(random_network(seed, 18, 30, 1, false), seed);
        break;
      case 2:
        graph = random_network(seed, 20, 80, 2, false);
        break;
      case 3:
        graph = mlp(static_cast<int>(draw(random, 2, 4)), 64);
        break;
      default:
        graph = with_packs(u_shaped(1, 64 << draw(random, 0, 3)), seed);
        break;
    }
    const Simulation plain = simulate(graph, std::vector<Choice>(graph.storages.size()));
    const std::vector<int64_t> budgets{plain.peak[0].bytes * draw(random, 45, 95) / 100};
    Simulator simulator(graph);
    SearchOptions heuristic;
    heuristic.most_archived = 0; // as steps with more choices are planned
    const Found found = Search(simulator.index(), heuristic).find(budgets);
    BranchAndBound oracle(graph, budgets, 150'000);
    simulator.run(found.choices);
    const double mine = simulator.extra_seconds();
    if (!found.fits) {
      BranchAndBound any(graph, budgets, 50'000);
      any.run(std::numeric_limits<double>::infinity());
      EXPECT_EQ(any.best(), std::numeric_limits<double>::infinity()) << "a plan exists, seed " << seed;
      continue;
    }
    if (!oracle.run(mine)) {
      continue;
    }
    ++proved;
    choices += static_cast<int>(Options(simulator.index()).storages.size());
    const double gap = oracle.best() > 0 ? mine / oracle.best() : 1;
    optimal += gap < 1 + 1e-9;
    sum += gap;
    worst = std::max(worst, gap);
  }
  std::printf(
      "%d optima proved, %.0f choices on average: %d plans optimal, mean %.4f, worst %.3f\n",
      proved,
      static_cast<double>(choices) / proved,
      optimal,
      sum / proved,
      worst);
  EXPECT_GT(proved, 25);
  EXPECT_LT(sum / proved, 1.02);
  EXPECT_LT(worst, 1.08);
}

} // namespace
} // namespace recals::plan::test
