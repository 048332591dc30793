#pragma once

/// Devices that the step is to run on and that this machine, or this torch, does not have. A plan needs no data, so
/// tensors there can be planned for; what needs their bytes fails with BadInput.

#include <optional>

#include <ATen/core/Tensor.h>
#include <torch/csrc/jit/api/module.h>

namespace recals::opt {

bool is_here(c10::Device device);

/// A tensor on a device that is not here: all of a tensor but the bytes.
at::Tensor tensor_without_data(
    c10::IntArrayRef sizes,
    const std::optional<std::vector<int64_t>>& strides,
    c10::ScalarType dtype,
    c10::Device device);

/// The device that `module` is planned for if that is not the one that its tensors are on, as in a file that was planned
/// with --target-device.
std::optional<c10::Device> planned_elsewhere(const torch::jit::Module& module);

/// Throws BadInput, naming the device, if the module has a tensor without data.
void check_has_data(const torch::jit::Module& module);

} // namespace recals::opt
