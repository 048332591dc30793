#include "passes/plan/segments.h"

#include <gtest/gtest.h>

#include "step_builder.h"

namespace recals::plan::test {
namespace {

std::vector<int> crossing_storages(const StepGraph& graph, int segments, double slack) {
  const StepIndex index(graph);
  const std::vector<uint8_t> crosses = crossing(index, segments, slack);
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

} // namespace
} // namespace recals::plan::test
