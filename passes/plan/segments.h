#pragma once

/// Where a step can be cut so that little crosses, and the plans that follow from cuts: the checkpoints that a person
/// would set, one inside the other.

#include <vector>

#include "passes/plan/options.h"

namespace recals::plan {

/// Answers where to cut, for any part of the forward.
class Cuts {
 public:
  explicit Cuts(const StepIndex& index);

  /// Cuts of the nodes [begin, end) into `segments`, ascending; a cut is the first node behind it. They share the bytes
  /// that slots hold evenly, give or take `slack` of a segment, within which each takes the place that the fewest bytes
  /// cross. A cut without any place there is left out.
  std::vector<int> of(int begin, int end, int segments, double slack) const;

 private:
  std::vector<int64_t> crossing_; ///< per node: bytes made before it and read by it or later
  std::vector<double> saved_; ///< per node: bytes with a slot that are made before it
};

/// Per storage: it is made before one of the cuts and read behind it.
std::vector<uint8_t> crossing(const StepIndex& index, const std::vector<int>& cuts);

/// How to cut into segments, these into smaller ones, and so on.
struct Nesting {
  std::vector<int> segments; ///< per level; empty: all in one
  double slack = 0.4;
};

/// The plan that keeps what crosses the cuts of the first level and recomputes everything else. What crosses a deeper cut
/// is cached once the backward is in the segment that it cuts; what crosses none, in its innermost one. So a replay
/// that begins at a kept storage leaves checkpoints behind, and those are where the next ones begin.
std::vector<Choice> nested(const StepIndex& index, const Options& options, const Cuts& cuts, const Nesting& nesting);

} // namespace recals::plan
