#pragma once

/// Ops that choose a kernel by device, and would choose another one on meta tensors than on the device.

#include <memory>

#include "runtime/program.h"

namespace recals {

/// `graph` compiled for a dry run that stands for `device`: the CPU or CUDA.
std::shared_ptr<const Program> compile_for_meta(
    const std::shared_ptr<torch::jit::Graph>& graph,
    c10::DeviceType device = c10::kCPU);

} // namespace recals
