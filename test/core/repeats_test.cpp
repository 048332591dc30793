#include "passes/plan/repeats.h"

#include <gtest/gtest.h>

#include "families.h"
#include "passes/plan/incremental.h"
#include "passes/plan/planner.h"
#include "passes/plan/search.h"
#include "passes/plan/simulator.h"

namespace recals::plan::test {
namespace {

StepGraph layers(int count) {
  return transformer({count, 256, 64, 256, true, -1});
}

int64_t peak_of(const StepIndex& index, const std::vector<Choice>& choices) {
  IncrementalSimulator step(index, {0});
  step.set_choices(choices);
  return step.peak(0);
}

std::vector<Choice> every(int k, int storages) {
  std::vector<Choice> choices(storages);
  for (int s = 0; s < storages; s += k) {
    choices[s] = Fate::Recompute;
  }
  return choices;
}

TEST(Repeats, FindsTheLayersOfATransformer) {
  const StepGraph graph = layers(20);
  const Repeat repeat = longest_repeat(StepIndex(graph));
  // The first layer reads the embedding, as the others read the layer before. Each has 12 nodes.
  EXPECT_EQ(repeat.period, 12);
  EXPECT_GE(repeat.count, 19);
  EXPECT_LE(repeat.begin + repeat.period * repeat.count, static_cast<int>(graph.nodes.size()));
}

TEST(Repeats, NegativeTwin_BlocksThatAreNotAlike) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    const Repeat repeat = longest_repeat(StepIndex(random_network(seed, 100, 30, 1, false)));
    EXPECT_LE(repeat.period * repeat.count, 20) << seed;
  }
  // One layer of twenty saves a byte more.
  StepGraph graph = layers(20);
  const size_t middle = graph.nodes.size() / 2;
  graph.storages[graph.nodes[middle].writes[0]].bytes += 1;
  const Repeat repeat = longest_repeat(StepIndex(graph));
  EXPECT_EQ(repeat.period, 12);
  EXPECT_LE(repeat.count, 11);
}

TEST(Repeats, TheShorterStepIsTheNetworkWithFewerLayers) {
  const StepGraph graph = layers(20);
  const StepIndex index(graph);
  const Repeat repeat = longest_repeat(index);
  for (const int blocks : {2, 3, 7, repeat.count - 1}) {
    const std::optional<Shortened> shorter = Shortened::make(index, repeat, blocks);
    ASSERT_TRUE(shorter);
    const StepGraph small = layers(20 - (repeat.count - blocks));
    const StepIndex expected(small);
    const StepIndex& got = shorter->index();
    ASSERT_EQ(got.nodes, expected.nodes);
    ASSERT_EQ(got.storages, expected.storages);
    EXPECT_EQ(got.bytes, expected.bytes);
    EXPECT_EQ(got.producer, expected.producer);
    EXPECT_EQ(got.reads.entries, expected.reads.entries);
    EXPECT_EQ(got.slot_storage, expected.slot_storage);
    EXPECT_EQ(got.slot_node, expected.slot_node);
    ASSERT_EQ(got.backward.size(), expected.backward.size());
    for (size_t e = 0; e < got.backward.size(); ++e) {
      EXPECT_EQ(got.backward[e].kind, expected.backward[e].kind) << e;
      EXPECT_EQ(got.backward[e].bytes, expected.backward[e].bytes) << e;
      EXPECT_EQ(got.backward[e].slot, expected.backward[e].slot) << e;
    }
    for (const int k : {1, 2, 5}) {
      EXPECT_EQ(peak_of(got, every(k, got.storages)), peak_of(expected, every(k, expected.storages)));
    }
  }
  EXPECT_FALSE(Shortened::make(index, repeat, repeat.count));
  EXPECT_FALSE(Shortened::make(index, repeat, 1));
}

TEST(Repeats, EveryBlockGetsTheChoicesOfOne) {
  const StepGraph graph = layers(20);
  const StepIndex index(graph);
  const Repeat repeat = longest_repeat(index);
  const std::optional<Shortened> shorter = Shortened::make(index, repeat, 4);
  ASSERT_TRUE(shorter);
  // In the second of the four blocks all is dropped, and cached from its own last node on.
  const StepIndex& small = shorter->index();
  std::vector<Choice> choices(small.storages);
  const int last = repeat.begin + 2 * repeat.period - 1;
  for (int s = 0; s < small.storages; ++s) {
    const int at = small.producer[s] - repeat.begin;
    if (at >= 0 && at / repeat.period == 1) {
      choices[s] = Fate::Recompute;
      choices[s].cache_from = last;
    }
  }
  for (const Shortened::Way way : {Shortened::Way::Stretch, Shortened::Way::Tile}) {
    const std::vector<Choice> repeated = shorter->repeated(choices, way);
    int dropped = 0;
    for (int s = 0; s < index.storages; ++s) {
      const int at = index.producer[s] - repeat.begin;
      if (repeated[s].fate == Fate::Recompute) {
        ++dropped;
        ASSERT_GE(at, 0);
        // From the last node of its own block on, wherever that is.
        EXPECT_EQ(repeated[s].cache_from, repeat.begin + (at / repeat.period + 1) * repeat.period - 1);
      }
    }
    const int of_a_block = static_cast<int>(std::count_if(
        choices.begin(), choices.end(), [](const Choice& choice) { return choice.fate == Fate::Recompute; }));
    // A quarter of the blocks, or half of those that are not at the ends.
    const int blocks = dropped / of_a_block;
    EXPECT_EQ(dropped % of_a_block, 0);
    EXPECT_NEAR(blocks, way == Shortened::Way::Stretch ? repeat.count / 4 : (repeat.count - 2) / 2, 1);
  }
}

/// What a large step costs is what a smaller one of the same layers costs.
TEST(Repeats, LargeStepsArePlannedAsWellAsSmallOnes) {
  const auto forwards = [](int count) {
    const StepGraph graph = transformer({count, 2048, 512, 1024, true, -1});
    Simulator simulator(graph);
    simulator.run(std::vector<Choice>(graph.storages.size()));
    const Found found = Search(simulator.index()).find({simulator.peak()[0].bytes / 2});
    EXPECT_TRUE(found.fits);
    simulator.run(found.choices);
    double seconds = 0;
    for (const Node& node : graph.nodes) {
      seconds += node.seconds;
    }
    return simulator.extra_seconds() / seconds;
  };
  const double of_48 = forwards(48); // 581 nodes, planned as a whole
  EXPECT_LT(forwards(300), 1.03 * of_48);
}

} // namespace
} // namespace recals::plan::test
