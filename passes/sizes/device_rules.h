#pragma once

/// Ops that choose a kernel by device, and would choose another one on meta tensors than on the CPU.

#include <memory>

#include "runtime/program.h"

namespace recals {

/// `graph` compiled for a dry run that stands for the CPU.
std::shared_ptr<const Program> compile_for_meta(const std::shared_ptr<torch::jit::Graph>& graph);

} // namespace recals
