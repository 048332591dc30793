#pragma once

/// Equal blocks of a step, and what to do once for all of them.
///
/// Note [Repeats]
/// Two nodes are alike if they cost the same and write, read and save the same, where what is read is either the same
/// storage or was made equally far before, by nodes that are alike. A run of blocks of `period` nodes, each node alike the
/// one a period later, can be shortened: the same step with fewer blocks, and in its backward fewer of the rounds in which
/// the engine goes through them. A plan of the shorter step, repeated block by block, is a start for the whole one. It is
/// nothing more than a start: it is simulated in the whole step, repaired and annealed there like any other, so nothing
/// rests on the blocks' being alike.

#include <optional>
#include <vector>

#include "passes/plan/step_index.h"

namespace recals::plan {

/// `count` blocks of `period` nodes, from node `begin` on.
struct Repeat {
  int begin = 0;
  int period = 0;
  int count = 0;
};

/// The longest run of equal blocks; `count` is 0 if there is none.
Repeat longest_repeat(const StepIndex& index);

class Shortened {
 public:
  /// The step with `blocks` of the blocks of `repeat`. Empty if its backward does not go through them round by round.
  static std::optional<Shortened> make(const StepIndex& index, const Repeat& repeat, int blocks);

  const StepIndex& index() const {
    return shorter_;
  }

  enum class Way : uint8_t {
    Stretch, ///< what one block has, its neighbours in the whole step have
    Tile, ///< the blocks begin and end as in the shorter step; in between they are repeated in their order
  };
  /// A plan of the shorter step, repeated for the whole one.
  std::vector<Choice> repeated(const std::vector<Choice>& choices, Way way) const;

 private:
  Shortened(const StepIndex& index, const Repeat& repeat, int blocks, const StepGraph& graph)
      : index_(index), repeat_(repeat), blocks_(blocks), shorter_(graph) {}
  int cache_from(int shorter, int block, int shorter_block, Way way) const;

  const StepIndex& index_;
  Repeat repeat_;
  int blocks_;
  StepIndex shorter_;
};

} // namespace recals::plan
