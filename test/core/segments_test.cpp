#include "passes/plan/segments.h"

#include <gtest/gtest.h>

#include "passes/plan/simulator.h"
#include "step_builder.h"

namespace recals::plan::test {
namespace {

std::vector<int> crossing_storages(const StepGraph& graph, int segments, double slack) {
  const StepIndex index(graph);
  const std::vector<uint8_t> crosses = crossing(index, Cuts(index).of(0, index.nodes, segments, slack));
  std::vector<int> storages;
  for (int s = 0; s < index.storages; ++s) {
    if (crosses[s]) {
      storages.push_back(s);
    }
  }
  return storages;
}

TEST(Segments, CutWhereLittleCrosses) {
  // A chain of 10 10 1 10 10 10 1 10: each node saves what it reads, so 61 bytes are saved in all.
  StepBuilder step;
  int last = -1;
  for (const int64_t bytes : {10, 10, 1, 10, 10, 10, 1, 10}) {
    const int n = step.node("op", last < 0 ? std::vector<int>{} : std::vector<int>{step.out(last)}, {bytes});
    if (last >= 0) {
      step.save(n, step.out(last));
    }
    last = n;
  }
  EXPECT_EQ(crossing_storages(step.graph, 1, 0.4), std::vector<int>{});
  // In two: between 52 * 0.3 and 52 * 0.7 saved bytes, that is after the third storage, which is the small one.
  EXPECT_EQ(crossing_storages(step.graph, 2, 0.4), std::vector<int>{2});
  // In three: the cuts lie around 17 and 35 bytes; only the first can take the small one.
  EXPECT_EQ(crossing_storages(step.graph, 3, 0.4), (std::vector<int>{2, 3}));
}

TEST(Segments, WhatIsReadBehindACutCrossesIt) {
  // skip is read by the last node: it crosses wherever the cut is.
  StepBuilder step;
  const int skip = step.node("skip", {}, {1});
  int n = step.node("a", {step.out(skip)}, {8});
  step.save(n, step.out(n));
  const int b = step.node("b", {step.out(n)}, {8});
  step.save(b, step.out(b));
  step.node("c", {step.out(b), step.out(skip)}, {8});
  EXPECT_EQ(crossing_storages(step.graph, 2, 0.4), (std::vector<int>{step.out(skip), step.out(n)}));
}

TEST(Segments, CutThatNoPlaceIsNearEnoughForIsLeftOut) {
  StepBuilder step;
  const int a = step.node("a", {}, {8});
  const int b = step.node("b", {step.out(a)}, {8});
  step.save(b, step.out(a));
  EXPECT_EQ(crossing_storages(step.graph, 50, 0.4), std::vector<int>{});
  EXPECT_EQ(crossing_storages(StepGraph{{"cpu"}, {}, {}, {}, {}, {}}, 4, 0.4), std::vector<int>{});
}

TEST(Segments, NestedSegmentsAreCachedWhenTheBackwardIsInTheirSegment) {
  // Eight nodes, each saves what it reads; two segments that are kept apart, each in two.
  StepBuilder step;
  int last = -1;
  for (int i = 0; i < 8; ++i) {
    const int n = step.node("op", last < 0 ? std::vector<int>{} : std::vector<int>{step.out(last)}, {10});
    if (last >= 0) {
      step.save(n, step.out(last));
    }
    last = n;
  }
  step.reverse(0);
  const StepIndex index(step.graph);
  const Options options(index);
  const Cuts cuts(index);
  ASSERT_EQ(cuts.of(0, 8, 2, 0.4), std::vector<int>{3}); // 70 bytes are saved: the cut is at 28 or a little above
  ASSERT_EQ(cuts.of(0, 3, 2, 0.4), std::vector<int>{1});
  ASSERT_EQ(cuts.of(3, 8, 2, 0.4), std::vector<int>{5});
  const std::vector<Choice> choices = nested(index, options, cuts, {{2, 2}, 0.4});
  // Storage 2 crosses the cut before node 3: kept. 0 crosses the cut in [0, 3), 4 that in [3, 8), which is the end.
  const int always = Choice::kAlways;
  std::vector<int> from;
  for (const Choice& choice : choices) {
    from.push_back(choice.fate == Fate::Keep ? -1 : choice.cache_from);
  }
  EXPECT_EQ(from, (std::vector<int>{3, 3, -1, 5, always, always, always, -1}));
  // 7 has neither slot nor reader, so there is nothing to choose.
  Simulator simulator(step.graph);
  simulator.run(choices);
  // In the first segment the use of 2's slot runs nothing, the use of 1's both; in the second 3 to 6, then 3 again.
  EXPECT_EQ(simulator.extra_seconds(), 2 + 5);
}

} // namespace
} // namespace recals::plan::test
