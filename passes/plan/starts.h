#pragma once

/// Where searches begin: nestings of segments, repaired to fit the limits of a simulator.

#include <vector>

#include "passes/plan/chain.h"
#include "passes/plan/improve.h"
#include "passes/plan/segments.h"

namespace recals::plan {

class Starts {
 public:
  /// `devices`: those that will have limits.
  Starts(const StepIndex& index, const Options& options, const std::vector<int>& devices);

  /// The plain step, but with what nobody saves recomputed: where nothing is dropped this makes no difference, and where
  /// something is, greedy drops need not hold what they are made from.
  std::vector<Choice> plain() const;

  /// The best few for `limits` (per device; those of the simulator), best first. `work` bounds it.
  std::vector<State> best(
      IncrementalSimulator& step,
      Improver& improver,
      const std::vector<int64_t>& limits,
      int64_t work) const;

 private:
  struct Raw {
    State state;
    std::vector<uint8_t> frozen; ///< checkpoints; empty where a greedy search between them has no use
  };
  std::vector<Raw> raw(IncrementalSimulator& step, const std::vector<int64_t>& limits, int64_t until) const;

  const StepIndex& index_;
  const Options& options_;
  Cuts cuts_;
  std::vector<int> devices_;
  std::vector<Chain> chains_; ///< per entry of `devices_`
};

} // namespace recals::plan
