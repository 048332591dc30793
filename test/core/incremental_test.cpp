#include "passes/plan/incremental.h"

#include <gtest/gtest.h>

#include "families.h"
#include "passes/plan/planner.h"
#include "passes/plan/simulator.h"

namespace recals::plan::test {
namespace {

/// Random changes and undos; after each, the simulator that starts anew must agree.
void walk(const StepGraph& graph, uint64_t seed, int steps, int most_changes) {
  Random random(seed);
  Simulator full(graph);
  const StepIndex& index = full.index();
  if (index.storages == 0) {
    return;
  }
  full.run(std::vector<Choice>(index.storages, Fate::Keep));
  std::vector<int64_t> limits;
  for (const PeakPoint& peak : full.peak()) {
    limits.push_back(chance(random, 15) ? kNoBudget : peak.bytes * draw(random, 30, 100) / 100);
  }

  IncrementalSimulator incremental(index, limits);
  for (int step = 0; step < steps; ++step) {
    std::vector<Change> changes;
    for (int i = static_cast<int>(draw(random, 1, most_changes)); i > 0; --i) {
      const int s = static_cast<int>(draw(random, 0, index.storages - 1));
      if (std::none_of(changes.begin(), changes.end(), [&](const Change& c) { return c.storage == s; })) {
        changes.push_back({s, any_choice(graph, s, random)});
      }
    }
    const std::vector<Choice> before = incremental.choices();
    incremental.change(changes);
    if (chance(random, 50)) {
      if (chance(random, 50)) {
        incremental.violation(); // undo must also work on a curve that is up to date
      }
      incremental.undo();
      ASSERT_EQ(incremental.choices(), before);
    }
    const bool fits = full.fits(incremental.choices(), limits, 1e300);
    full.run(incremental.choices());
    for (int d = 0; d < index.devices; ++d) {
      if (limits[d] != kNoBudget) {
        ASSERT_EQ(incremental.peak(d), full.peak()[d].bytes) << "seed " << seed << " step " << step;
      }
    }
    ASSERT_EQ(incremental.violation() == 0, fits) << "seed " << seed << " step " << step;
    ASSERT_NEAR(incremental.seconds(), full.extra_seconds(), 1e-9 * (1 + full.extra_seconds()));
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

TEST(Incremental, TakesWholeSetsOfChoices) {
  const StepGraph graph = u_shaped(3, 4096);
  Simulator full(graph);
  IncrementalSimulator incremental(full.index(), {1});
  for (uint64_t seed = 0; seed < 50; ++seed) {
    incremental.set_choices(any_choices(graph, seed));
    full.run(any_choices(graph, seed));
    EXPECT_EQ(incremental.peak(0), full.peak()[0].bytes);
  }
}

} // namespace
} // namespace recals::plan::test
