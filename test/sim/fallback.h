#pragma once

/// Every kernel of the devices is the host's kernel, run on the devices' memory. Note [The host's kernels] is in
/// fallback.cpp.

#include <ATen/core/dispatch/Dispatcher.h>

namespace recals::sim {

void run_on_host(const c10::OperatorHandle& op, torch::jit::Stack* stack);

} // namespace recals::sim
