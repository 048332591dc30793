#pragma once

/// --check: does a file, as it was saved, train within a budget?

#include <string>

#include "passes/registry.h"

namespace recals::opt {

struct CheckResult {
  std::string text; ///< a line per device
  bool within = true;
};

/// `job`: module, method, limits (empty: those of the plan in the file). `inputs`: as on the command line (none: those
/// that the rewritten module was planned for). Throws BadInput where there is nothing to check against.
CheckResult check(Job job, const std::vector<std::string>& inputs);

} // namespace recals::opt
