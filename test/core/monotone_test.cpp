/// Less budget never has a plan with a higher peak; of several devices, if there is less of all in proportion. RECALS_PLANNER_GRAPHS=10000 makes a long campaign of it.

#include <cstdio>
#include <cstdlib>

#include <gtest/gtest.h>

#include "families.h"
#include "passes/plan/planner.h"
#include "passes/plan/search.h"
#include "passes/plan/simulator.h"

namespace recals::plan::test {
namespace {

/// What the device that is nearest to its limit holds, in bytes of the device that may hold most.
int64_t level_of(const std::vector<PeakPoint>& peaks, const std::vector<int64_t>& of, int devices) {
  const int64_t top = *std::max_element(of.begin(), of.begin() + devices);
  int64_t level = 0;
  for (int d = 0; d < devices; ++d) {
    const int64_t unit = std::max<int64_t>(of[d], 1); // a device that holds nothing
    level = std::max(level, (peaks[d].bytes * top + unit - 1) / unit);
  }
  return level;
}

TEST(Monotone, BudgetsSweptFromTightToLoose) {
  const char* const asked = std::getenv("RECALS_PLANNER_GRAPHS");
  const uint64_t graphs = asked ? std::strtoull(asked, nullptr, 10) : 60;
  int plans = 0;
  int pairs = 0;
  int costlier = 0;
  int on_two_devices = 0;
  for (uint64_t seed = 0; seed < graphs; ++seed) {
    SearchOptions quick;
    quick.tries_per_choice = 60;
    quick.most_work = 2'000'000;
    if (seed % 3 != 0) {
      quick.most_archived = 0; // the ways of steps with more choices
    }
    if (seed % 3 == 1) {
      quick.most_chained = 0; // the ways of large steps
    }
    const StepGraph graph = seed % 4 == 3 ? anything(seed) : some_network(seed);
    Simulator simulator(graph);
    const StepIndex& index = simulator.index();
    simulator.run(std::vector<Choice>(index.storages));
    std::vector<int64_t> plain;
    for (const PeakPoint& peak : simulator.peak()) {
      plain.push_back(peak.bytes);
    }
    Random random(seed);
    const int limited = index.devices > 1 && chance(random, 70) ? index.devices : 1;
    // Several devices: shares of their plain peaks, or bytes, as many for each.
    const bool same_bytes = limited > 1 && chance(random, 40);
    const std::vector<int64_t> of = same_bytes ? std::vector<int64_t>(limited, plain[0]) : plain;
    std::vector<int64_t> percents{draw(random, 25, 99), draw(random, 25, 99), draw(random, 25, 99)};
    std::sort(percents.begin(), percents.end());
    int64_t last_level = -1;
    double last_seconds = 0;
    for (const int64_t percent : percents) {
      std::vector<int64_t> budgets(index.devices, kNoBudget);
      for (int d = 0; d < limited; ++d) {
        budgets[d] = of[d] * percent / 100;
      }
      const Found found = Search(index, quick).find(budgets);
      simulator.run(found.choices);
      bool within = true;
      for (int d = 0; d < index.devices; ++d) {
        within &= simulator.peak()[d].bytes <= budgets[d];
      }
      ASSERT_EQ(found.fits, within) << "seed " << seed << " at " << percent << " %";
      ASSERT_TRUE(found.fits || last_level < 0) << "less fits, seed " << seed << " at " << percent << " %";
      if (!found.fits) {
        continue;
      }
      ++plans;
      const int64_t level = level_of(simulator.peak(), of, limited);
      ASSERT_GE(level, last_level) << "seed " << seed << " at " << percent << " %";
      if (last_level >= 0) {
        ++pairs;
        on_two_devices += limited > 1 ? 1 : 0;
        costlier += simulator.extra_seconds() > last_seconds + 1e-9 ? 1 : 0;
      }
      last_level = level;
      last_seconds = simulator.extra_seconds();
    }
  }
  std::printf(
      "%d plans, %d pairs of which %d are for two devices, %d cost more with more budget\n",
      plans,
      pairs,
      on_two_devices,
      costlier);
  EXPECT_GT(plans, static_cast<int>(graphs / 2));
  EXPECT_GT(on_two_devices, 0);
  EXPECT_LE(costlier, 1 + pairs / 20);
}

} // namespace
} // namespace recals::plan::test
