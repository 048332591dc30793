#pragma once

/// What a search may choose from.

#include <vector>

#include "passes/plan/step_index.h"

namespace recals::plan {

/// Note [Small steps]: they have at most so many choices to make.
constexpr size_t kSmall = 40;

struct Options {
  explicit Options(const StepIndex& index);

  std::vector<std::vector<Choice>> of; ///< per storage: what is allowed; without `cache_from`, which is free
  std::vector<int> storages; ///< those with a choice to make, ascending
  /// Nodes whose backward asks for a storage that has a choice, ascending: all that `cache_from` can tell apart.
  std::vector<int> asking;
  /// The plain step, as far as the policies allow it: what MUST or should be recomputed is.
  std::vector<Choice> plain;
  /// Per storage: equal for those that are worth about as much, as equal blocks have them.
  std::vector<int> kind;
  int kinds = 0;

  bool allows(int storage, Fate fate) const;
  /// `of`, with every `cache_from` that makes a difference.
  std::vector<Choice> every(const StepIndex& index, int storage) const;
  /// How many sets of choices there are, with every `cache_from` that makes a difference.
  double sets(const StepIndex& index) const;
};

} // namespace recals::plan
