#pragma once

/// What no plan can be below.
///
/// Whatever the choices, a node of the forward has what it reads and makes; a kernel of the backward has its gradients, its
/// scratch memory, and what it has asked for; and what can be neither recomputed nor packed stays. Where the smallest plan
/// holds just that, it is proved to be the smallest, and the kernel that sets it is the one to change.

#include <vector>

#include "passes/plan/step_index.h"

namespace recals::plan {

/// Per device: bytes, and when. Policies are not looked at.
std::vector<PeakPoint> floor_of(const StepIndex& index);

} // namespace recals::plan
