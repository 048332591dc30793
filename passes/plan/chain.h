#pragma once

/// The best nested plans of the step taken as a chain.
///
/// Note [Chain]
/// The forward is cut into segments where little crosses, and these are taken for the stages of a chain: stage i takes
/// `seconds`, what its backward needs saved is `saved` bytes, what crosses into stage k of what the stages i..k-1 have
/// made is crossing(i, k) bytes. Let E(i, j, m) be the least time beyond one run of the stages i..j to get through their
/// backward with m bytes, when what enters stage i is at hand:
///
///   E(i, j, m) = min of  E(i+1, j, m - saved(i))                                              stage i saves all it needs
///                        min over k of  E(k, j, m - crossing(i, k)) + time(i..k-1) + E(i, k-1, m)    runs i..k-1 again
///
/// as far as the backward of j and its gradients fit (nested checkpointing of chains, Griewank and Walther's REVOLVE with
/// stages of different sizes). The table is filled for all m at once, so one table serves all budgets.
/// As a plan for the step this is a start: skip connections cross more than a chain knows, and within a stage not
/// everything must have one fate.

#include <vector>

#include "passes/plan/options.h"
#include "passes/plan/segments.h"

namespace recals::plan {

class Chain {
 public:
  /// `device`: whose bytes count. At most `most_stages` stages.
  Chain(const StepIndex& index, const Options& options, const Cuts& cuts, int device, int most_stages);

  /// The plan for a peak of about `bytes`; empty if the chain has none.
  std::vector<Choice> plan(int64_t bytes) const;

 private:
  static constexpr int kMemory = 128; ///< steps of memory
  static constexpr float kImpossible = 1e30F;

  struct Cell {
    float extra = kImpossible;
    int split = 0; ///< 0: stage i saves all it needs; k: checkpoint before stage k
  };

  void cut(const Cuts& cuts, int most_stages);
  void measure(int device);
  void fill();
  int in_steps(int64_t bytes) const;
  const Cell& cell(int i, int j, int memory) const {
    return cells_[(static_cast<size_t>(i) * stages_ + j) * (kMemory + 1) + memory];
  }
  Cell& cell(int i, int j, int memory) {
    return cells_[(static_cast<size_t>(i) * stages_ + j) * (kMemory + 1) + memory];
  }
  int crossing(int i, int k) const {
    return crossing_[static_cast<size_t>(i) * (stages_ + 1) + k];
  }
  void follow(int i, int j, int memory, bool first, int end, std::vector<Choice>& choices) const;
  void put(int storage, bool keep, int cache_from, std::vector<Choice>& choices) const;

  const StepIndex& index_;
  const Options& options_;
  int stages_ = 0;
  std::vector<int> begin_; ///< per stage: its first node; one more: the number of nodes
  std::vector<int> stage_of_; ///< per node
  std::vector<double> seconds_; ///< prefix sums per stage
  int64_t unit_ = 1; ///< bytes per step of memory
  // In steps of memory.
  std::vector<int> saved_; ///< per stage
  std::vector<int> backward_; ///< per stage: what it saved for itself, gradients and temporaries at its backward
  std::vector<int> crossing_; ///< [stage i][stage k]: made in i..k-1 and read in k or later
  std::vector<Cell> cells_;
};

} // namespace recals::plan
