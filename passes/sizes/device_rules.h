#pragma once

/// Ops that choose a kernel by device, and would choose another one on meta tensors than on the device.

#include <memory>

#include "runtime/program.h"

namespace recals {

/// What runs on meta in place of `node` where meta devices stand for `devices`; most nodes run as they are.
torch::jit::Operation operation_on_meta(const torch::jit::Node& node, const DeviceTable& devices);

/// `graph` compiled for a dry run in which meta devices stand for `devices`. Throws c10::Error if it names another device.
std::shared_ptr<const Program> compile_for_meta(
    const std::shared_ptr<torch::jit::Graph>& graph,
    const DeviceTable& devices);

} // namespace recals
