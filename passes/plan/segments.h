#pragma once

/// Where a step can be cut so that little crosses: the checkpoints that a person would set.

#include <vector>

#include "passes/plan/step_index.h"

namespace recals::plan {

/// Per storage: it crosses one of the `segments - 1` cuts of the forward. The cuts share the bytes that slots hold
/// evenly, give or take `slack` of a segment, within which each takes the place that the fewest bytes cross. A cut
/// without any place there is left out.
std::vector<uint8_t> crossing(const StepIndex& index, int segments, double slack);

} // namespace recals::plan
