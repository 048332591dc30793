#pragma once

/// The optimum of steps that are small enough to try everything.

#include <cstdint>

#include "passes/plan/archive.h"
#include "passes/plan/options.h"

namespace recals::plan {

/// Adds every set of choices (Options::sets says how many there are) to the archive. Returns the simulator's work.
int64_t try_all(const StepIndex& index, const Options& options, Archive& archive);

} // namespace recals::plan
