#include <gtest/gtest.h>

#include "reference_simulator.h"
#include "step_builder.h"

namespace recals::plan::test {
namespace {

void expect_same(const Simulation& fast, const Simulation& slow, uint64_t seed) {
  SCOPED_TRACE("seed " + std::to_string(seed));
  ASSERT_EQ(fast.peak.size(), slow.peak.size());
  for (size_t d = 0; d < fast.peak.size(); ++d) {
    EXPECT_EQ(fast.peak[d].bytes, slow.peak[d].bytes);
    EXPECT_EQ(fast.peak[d].in_backward, slow.peak[d].in_backward);
    EXPECT_EQ(fast.peak[d].index, slow.peak[d].index);
    EXPECT_EQ(fast.peak[d].replayed_node, slow.peak[d].replayed_node);
  }
  EXPECT_EQ(fast.held, slow.held);
  EXPECT_EQ(fast.replayed, slow.replayed);
  EXPECT_EQ(fast.recompute_seconds, slow.recompute_seconds);
  EXPECT_EQ(fast.recomputed_bytes, slow.recomputed_bytes);
  EXPECT_EQ(fast.runs, slow.runs);
  EXPECT_EQ(fast.by_recipe, slow.by_recipe);
  EXPECT_EQ(fast.pack_seconds, slow.pack_seconds);
  ASSERT_EQ(fast.curve.size(), slow.curve.size());
  for (size_t i = 0; i < fast.curve.size(); ++i) {
    EXPECT_EQ(fast.curve[i].in_backward, slow.curve[i].in_backward);
    EXPECT_EQ(fast.curve[i].index, slow.curve[i].index);
    EXPECT_EQ(fast.curve[i].live, slow.curve[i].live) << "event " << i;
    EXPECT_EQ(fast.curve[i].most, slow.curve[i].most) << "event " << i;
  }
}

TEST(SimulateRandom, EqualsTheReference) {
  int with_recompute = 0;
  int in_replay = 0;
  int nested = 0;
  int packed = 0;
  int by_recipe = 0;
  for (uint64_t seed = 0; seed < 6000 && !HasFailure(); ++seed) {
    const StepGraph graph = anything(seed);
    const std::vector<Choice> choices = any_choices(graph, seed);
    ReferenceSimulator reference(graph, choices);
    const Simulation slow = reference.run(true);
    expect_same(simulate(graph, choices, true), slow, seed);
    const bool all_retained = std::all_of(
        choices.begin(), choices.end(), [](const Choice& choice) { return choice.cache_from == Choice::kAlways; });
    const auto twice = [](int runs) { return runs > 1; };
    const bool runs_twice = std::any_of(slow.runs.begin(), slow.runs.end(), twice);
    EXPECT_FALSE(all_retained && runs_twice) << "seed " << seed;
    with_recompute += !slow.replayed.empty();
    in_replay += slow.peak[0].replayed_node >= 0;
    nested += runs_twice;
    packed += slow.pack_seconds > 0;
    by_recipe += std::count(slow.by_recipe.begin(), slow.by_recipe.end(), true) > 0;
  }
  // The comparison is worth nothing if the graphs are dull.
  EXPECT_GT(with_recompute, 2000);
  EXPECT_GT(in_replay, 200);
  EXPECT_GT(nested, 200);
  EXPECT_GT(packed, 1000);
  EXPECT_GT(by_recipe, 200);
}

} // namespace
} // namespace recals::plan::test
