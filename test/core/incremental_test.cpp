#include <gtest/gtest.h>

#include "families.h"
#include "passes/plan/incremental.h"
#include "passes/plan/planner.h"

namespace recals::plan::test {
namespace {

/// Random flips and undos; after each, the simulator that starts anew must agree.
void walk(const StepGraph& graph, uint64_t seed, int steps, int most_flips) {
  Random random(seed);
  Simulator full(graph);
  const StepIndex& index = full.index();
  std::vector<int> choices;
  for (int s = 0; s < index.storages; ++s) {
    if (index.recomputable[s]) {
      choices.push_back(s);
    }
  }
  if (choices.empty()) {
    return;
  }
  full.run(std::vector<Fate>(index.storages, Fate::Keep));
  std::vector<int64_t> limits;
  for (const PeakPoint& peak : full.peak()) {
    limits.push_back(chance(random, 15) ? kNoBudget : peak.bytes * draw(random, 30, 100) / 100);
  }

  IncrementalSimulator incremental(index, limits);
  std::vector<Fate> fates = incremental.fates();
  for (int step = 0; step < steps; ++step) {
    std::vector<int> flips;
    for (int i = static_cast<int>(draw(random, 1, most_flips)); i > 0; --i) {
      const int s = choices[draw(random, 0, static_cast<int64_t>(choices.size()) - 1)];
      if (std::find(flips.begin(), flips.end(), s) == flips.end()) {
        flips.push_back(s);
      }
    }
    incremental.flip(flips);
    if (chance(random, 50)) {
      if (chance(random, 50)) {
        incremental.violation(); // undo must also work on a curve that is up to date
      }
      incremental.undo();
    }
    fates = incremental.fates();
    const bool fits = full.fits(fates, limits, 1e300);
    full.run(fates);
    for (int d = 0; d < index.devices; ++d) {
      if (limits[d] != kNoBudget) {
        ASSERT_EQ(incremental.peak(d), full.peak()[d].bytes) << "seed " << seed << " step " << step;
      }
    }
    ASSERT_EQ(incremental.violation() == 0, fits) << "seed " << seed << " step " << step;
    ASSERT_NEAR(incremental.seconds(), full.recompute_seconds(), 1e-9 * (1 + full.recompute_seconds()));
    for (int n = 0; n < index.nodes; ++n) {
      ASSERT_EQ(incremental.replays(n), full.replays(n)) << "seed " << seed << " step " << step;
    }
  }
}

TEST(Incremental, AgreesOnAnything) {
  for (uint64_t seed = 0; seed < 1500 && !HasFatalFailure(); ++seed) {
    walk(anything(seed), seed, 20, 4);
  }
}

TEST(Incremental, AgreesOnNetworks) {
  walk(transformer({}), 1, 1500, 8);
  walk(transformer({4, 256, 64, 256, true, 2}), 2, 1500, 8);
  walk(residual_network(3, 3, 1 << 16), 3, 1500, 8);
  walk(u_shaped(4, 1 << 16), 4, 1500, 8);
  for (uint64_t seed = 0; seed < 40 && !HasFatalFailure(); ++seed) {
    walk(random_network(seed, 80, 20, 1.5, seed % 2 == 1), seed, 100, 6);
  }
}

TEST(Incremental, TakesWholeSetsOfFates) {
  const StepGraph graph = u_shaped(3, 4096);
  Simulator full(graph);
  IncrementalSimulator incremental(full.index(), {1});
  for (uint64_t seed = 0; seed < 50; ++seed) {
    incremental.set_fates(any_fates(graph, seed));
    full.run(any_fates(graph, seed));
    EXPECT_EQ(incremental.peak(0), full.peak()[0].bytes);
    EXPECT_EQ(incremental.fates(), any_fates(graph, seed));
  }
}

} // namespace
} // namespace recals::plan::test
