/// Chains whose best plans are known from dynamic programming.

#include <cstdio>
#include <limits>

#include <gtest/gtest.h>

#include "families.h"
#include "passes/plan/chain.h"
#include "passes/plan/planner.h"

namespace recals::plan::test {
namespace {

/// Blocks of one second that hand on `boundary` bytes and save `internals` for themselves.
StepGraph blocks(int count, int64_t boundary, int64_t internals) {
  StepBuilder b;
  int last = -1;
  for (int i = 0; i < count; ++i) {
    const int n =
        b.node("block", last < 0 ? std::vector<int>{} : std::vector<int>{b.out(last)}, {boundary, internals}, 1);
    if (last >= 0) {
      b.save(n, b.out(last));
    }
    b.save(n, b.out(n, 1));
    last = n;
  }
  b.graph.storages[b.out(last)].output = true;
  b.reverse();
  return std::move(b.graph);
}

/// Seconds of recomputation that whole blocks need at least: E(i, j, m) of Note [Chain], in units of `boundary`, by its
/// definition. `saved`: what a block makes and a backward needs; `backward`: what the backward of a block holds.
class BlockOptimum {
 public:
  BlockOptimum(int blocks, int saved, int backward, int memory)
      : saved_(saved), backward_(backward), memory_(memory + 1), table_(blocks + 1) {
    for (int length = 0; length <= blocks; ++length) {
      table_[length].assign(memory_, std::numeric_limits<double>::infinity());
      for (int m = 0; m < memory_; ++m) {
        table_[length][m] = solve(length, m);
      }
    }
  }
  double seconds(int blocks, int memory) const {
    return table_[blocks][memory];
  }

 private:
  double solve(int length, int m) const {
    if (length == 0) {
      return 0;
    }
    double best = std::numeric_limits<double>::infinity();
    if (m >= backward_ && (length == 1 || m >= saved_)) {
      best = length == 1 ? 0 : table_[length - 1][m - saved_];
    }
    for (int k = 1; k < length && k <= m; ++k) {
      best = std::min(best, k + table_[k][m] + table_[length - k][m - 1]);
    }
    return best;
  }

  int saved_;
  int backward_;
  int memory_;
  std::vector<std::vector<double>> table_; ///< [blocks][memory]
};

TEST(Chain, BlockOptimumIsThatOfRevolve) {
  // Three stages that save one unit each, and a backward that holds that.
  const BlockOptimum one(3, 1, 1, 8);
  EXPECT_EQ(one.seconds(3, 3), 0); // everything saved
  // A checkpoint before the third stage; when that is done, the first two run again and save.
  EXPECT_EQ(one.seconds(3, 2), 2);
  EXPECT_EQ(one.seconds(3, 1), std::numeric_limits<double>::infinity()); // no checkpoint beside what a stage saves
}

TEST(Chain, UniformBlocksReachTheDynamicProgrammingOptimum) {
  for (const auto& [count, internals] : {std::pair{24, 8}, {48, 16}, {96, 8}}) {
    constexpr int64_t kUnit = 64;
    const StepGraph graph = blocks(count, kUnit, internals * kUnit);
    const int64_t plain = simulate(graph, std::vector<Choice>(graph.storages.size())).peak[0].bytes;
    // The backward of a block holds its internals and the gradients of what it read and wrote.
    const BlockOptimum optimum(count, internals + 1, internals + 2, static_cast<int>(plain / kUnit));
    for (const double percent : {50.0, 25.0, 12.5}) {
      const int64_t budget = static_cast<int64_t>(static_cast<double>(plain) * percent / 100);
      const auto result = choose(graph, {budget});
      ASSERT_TRUE(std::holds_alternative<Plan>(result)) << count << " blocks at " << percent;
      const double mine = std::get<Plan>(result).predicted.extra_seconds();
      const double best = optimum.seconds(count, static_cast<int>(budget / kUnit));
      std::printf(
          "%d blocks, internals %dx, %.1f %%: +%.1f %% of the step, optimum of whole blocks +%.1f %%\n",
          count,
          internals,
          percent,
          100 * mine / (3 * count),
          100 * best / (3 * count));
      EXPECT_LE(mine, best * 1.02 + 1);
    }
  }
}

TEST(Chain, PlansOfTheTableFitAndCostWhatItSays) {
  // Pointwise links, as large as what they save: plans must be nested.
  StepBuilder step;
  int last = -1;
  for (int i = 0; i < 40; ++i) {
    const int n = step.node("op", last < 0 ? std::vector<int>{} : std::vector<int>{step.out(last)}, {100}, 1);
    if (last >= 0) {
      step.save(n, step.out(last));
    }
    last = n;
  }
  step.reverse();
  const StepIndex index(step.graph);
  const Options options(index);
  const Chain chain(index, options, Cuts(index), 0, 96);
  const int64_t plain = simulate(step.graph, std::vector<Choice>(index.storages)).peak[0].bytes;
  double last_seconds = 0;
  int nested = 0;
  for (int percent = 90; percent >= 15; percent -= 5) {
    const std::vector<Choice> choices = chain.plan(plain * percent / 100);
    ASSERT_FALSE(choices.empty()) << percent;
    const Simulation s = simulate(step.graph, choices);
    // Within two links: the table counts in steps of memory and knows no transients.
    EXPECT_LE(s.peak[0].bytes, plain * percent / 100 + 2 * 100) << percent;
    EXPECT_GE(s.extra_seconds(), last_seconds);
    last_seconds = s.extra_seconds();
    nested += std::count_if(s.runs.begin(), s.runs.end(), [](int runs) { return runs > 1; }) > 0;
  }
  EXPECT_GT(nested, 0);
  EXPECT_TRUE(chain.plan(100).empty());
}

} // namespace
} // namespace recals::plan::test
