/// Less budget never has a plan with a higher peak. RECALS_PLANNER_GRAPHS=10000 makes a long campaign of it.

#include <cstdio>
#include <cstdlib>

#include <gtest/gtest.h>

#include "families.h"
#include "passes/plan/planner.h"
#include "passes/plan/search.h"
#include "passes/plan/simulator.h"

namespace recals::plan::test {
namespace {

TEST(Monotone, BudgetsSweptFromTightToLoose) {
  const char* const asked = std::getenv("RECALS_PLANNER_GRAPHS");
  const uint64_t graphs = asked ? std::strtoull(asked, nullptr, 10) : 60;
  SearchOptions quick;
  quick.tries_per_choice = 60;
  quick.most_work = 2'000'000;
  int plans = 0;
  int pairs = 0;
  int costlier = 0;
  for (uint64_t seed = 0; seed < graphs; ++seed) {
    const StepGraph graph = seed % 4 == 3 ? anything(seed) : some_network(seed);
    Simulator simulator(graph);
    const StepIndex& index = simulator.index();
    simulator.run(std::vector<Choice>(index.storages));
    std::vector<int64_t> plain;
    for (const PeakPoint& peak : simulator.peak()) {
      plain.push_back(peak.bytes);
    }
    Random random(seed);
    // With budgets on two devices, one may hold more so that the other can hold less: there is nothing to be monotone.
    const bool both = index.devices > 1 && chance(random, 50);
    std::vector<int64_t> percents{draw(random, 25, 99), draw(random, 25, 99), draw(random, 25, 99)};
    std::sort(percents.begin(), percents.end());
    int64_t last_peak = -1;
    double last_seconds = 0;
    for (const int64_t percent : percents) {
      std::vector<int64_t> budgets(index.devices, kNoBudget);
      for (int d = 0; d < (both ? index.devices : 1); ++d) {
        budgets[d] = plain[d] * percent / 100;
      }
      const Found found = search(index, budgets, quick);
      simulator.run(found.choices);
      bool within = true;
      for (int d = 0; d < index.devices; ++d) {
        within &= simulator.peak()[d].bytes <= budgets[d];
      }
      ASSERT_EQ(found.fits, within) << "seed " << seed << " at " << percent << " %";
      if (!found.fits || both) {
        continue;
      }
      ++plans;
      const int64_t peak = simulator.peak()[0].bytes;
      ASSERT_GE(peak, last_peak) << "seed " << seed << " at " << percent << " %";
      if (last_peak >= 0) {
        ++pairs;
        costlier += simulator.extra_seconds() > last_seconds + 1e-9 ? 1 : 0;
      }
      last_peak = peak;
      last_seconds = simulator.extra_seconds();
    }
  }
  std::printf("%d plans, %d of %d cost more with more budget\n", plans, costlier, pairs);
  EXPECT_GT(plans, static_cast<int>(graphs / 2));
  EXPECT_LE(costlier, 1 + pairs / 20);
}

} // namespace
} // namespace recals::plan::test
