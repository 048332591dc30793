#include "passes/plan/floor.h"

#include <gtest/gtest.h>

#include "families.h"
#include "passes/plan/planner.h"
#include "passes/plan/simulator.h"

namespace recals::plan::test {
namespace {

TEST(Floor, IsWhatOneKernelTakes) {
  // a makes 10 bytes, b 20 from them; b's backward asks for both, holds a gradient of 20 and makes one of 10, with 5 of
  // scratch memory: 10 + 20 + 20 + 10 + 5.
  StepBuilder step;
  const int a = step.node("a", {}, {10});
  const int b = step.node("b", {step.out(a)}, {20});
  const int x = step.save(b, step.out(a));
  const int y = step.save(b, step.out(b));
  step.change(20);
  step.use(x);
  step.use(y);
  step.change(10);
  step.peak(5);
  step.release(x);
  step.release(y);
  step.change(-30);
  const PeakPoint floor = floor_of(StepIndex(step.graph))[0];
  EXPECT_EQ(floor.bytes, 65);
  EXPECT_TRUE(floor.in_backward);
  EXPECT_EQ(floor.index, 4);
  EXPECT_EQ(simulate(step.graph, {Fate::Recompute, Fate::Recompute}).peak[0].bytes, 65);
}

TEST(Floor, CountsWhatCannotBeDropped) {
  // In the forward of c there are what a made, which must not run again, and what c reads and makes: 100 + 1 + 1.
  StepBuilder step;
  const int a = step.node("a", {}, {100});
  const int b = step.node("b", {step.out(a)}, {1});
  const int c = step.node("c", {step.out(b)}, {1});
  step.save(b, step.out(a));
  step.reverse(0);
  EXPECT_EQ(floor_of(StepIndex(step.graph))[0].bytes, 101); // a may be dropped; b is made from it
  step.graph.storages[step.out(a)].recomputable = false;
  const PeakPoint floor = floor_of(StepIndex(step.graph))[0];
  EXPECT_EQ(floor.bytes, 102);
  EXPECT_EQ(floor.index, c);
}

/// No set of choices is below it, and some smallest plans are on it.
TEST(Floor, NoPlanIsBelow) {
  int proved = 0;
  for (uint64_t seed = 0; seed < 400; ++seed) {
    const StepGraph graph = seed % 2 == 0 ? anything(seed) : some_network(seed);
    Simulator simulator(graph);
    const StepIndex& index = simulator.index();
    const std::vector<PeakPoint> floor = floor_of(index);
    Random random(seed);
    for (int i = 0; i < 20; ++i) {
      std::vector<Choice> choices(index.storages);
      for (int s = 0; s < index.storages; ++s) {
        choices[s] = static_cast<Fate>(draw(random, 0, 2));
        choices[s].cache_from = chance(random, 50) ? Choice::kAlways : -1;
      }
      simulator.run(choices);
      for (int d = 0; d < index.devices; ++d) {
        ASSERT_GE(simulator.peak()[d].bytes, floor[d].bytes) << "seed " << seed;
        proved += simulator.peak()[d].bytes == floor[d].bytes ? 1 : 0;
      }
    }
  }
  EXPECT_GT(proved, 0);
}

TEST(Floor, IsSaidWhereNothingFits) {
  const StepGraph graph = u_shaped(3, 4096);
  const auto result = choose(graph, {1});
  ASSERT_TRUE(std::holds_alternative<Infeasible>(result));
  const Infeasible& infeasible = std::get<Infeasible>(result);
  ASSERT_EQ(infeasible.floor.size(), 1U);
  EXPECT_GT(infeasible.floor[0].bytes, 0);
  EXPECT_LE(infeasible.floor[0].bytes, infeasible.smallest[0]);
}

} // namespace
} // namespace recals::plan::test
