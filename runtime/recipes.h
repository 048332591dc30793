#pragma once

/// Cheaper ways to run an op again, to the same bits, from what it has saved for its backward.

#include <string>

#include <ATen/core/Tensor.h>

#include "recals/export.h"

namespace recals {

struct Recipe {
  int internal = 0; ///< the number of the saved tensor among the op's internals
  /// `input`: the op's first tensor; `saved`: that internal. Returns the op's output.
  at::Tensor (*run)(const at::Tensor& input, const at::Tensor& saved) = nullptr;
};

/// Null if the op has none.
RECALS_API const Recipe* recipe_of(const std::string& op);

} // namespace recals
