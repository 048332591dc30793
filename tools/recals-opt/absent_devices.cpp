#include "tools/recals-opt/absent_devices.h"

#include <algorithm>

#include <ATen/ATen.h>
#include <nlohmann/json.hpp>

#include "passes/lower/lower.h"
#include "runtime/devices_here.h"
#include "tools/recals-opt/errors.h"

namespace recals::opt {

namespace {

std::vector<at::Tensor> tensors_of(const torch::jit::Module& module) {
  std::vector<at::Tensor> tensors;
  for (const auto& parameter : module.parameters()) {
    tensors.push_back(parameter);
  }
  for (const auto& buffer : module.buffers()) {
    tensors.push_back(buffer);
  }
  return tensors;
}

} // namespace

bool is_here(c10::Device device) {
  if (device.is_cpu() || device.is_meta()) {
    return true;
  }
  return devices_here(device.type()) > std::max<c10::DeviceIndex>(device.index(), 0);
}

at::Tensor tensor_without_data(
    c10::IntArrayRef sizes,
    const std::optional<std::vector<int64_t>>& strides,
    c10::ScalarType dtype,
    c10::Device device) {
  const auto options = at::TensorOptions().dtype(dtype);
  const auto like = strides ? at::empty_strided(sizes, *strides, options.device(c10::kMeta))
                            : at::empty(sizes, options.device(c10::kMeta));
  if (!device.has_index()) {
    device.set_index(0);
  }
  auto tensor = at::detail::make_tensor<c10::TensorImpl>(
      c10::Storage(
          c10::Storage::use_byte_size_t(),
          like.storage().nbytes(),
          c10::DataPtr(nullptr, device),
          /*allocator=*/nullptr,
          /*resizable=*/false),
      c10::DispatchKeySet(options.device(device).computeDispatchKey()),
      like.dtype());
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(like.sizes(), like.strides());
  return tensor;
}

std::optional<c10::Device> planned_elsewhere(const torch::jit::Module& module) {
  if (!is_lowered(module)) {
    return std::nullopt;
  }
  const auto devices = nlohmann::json::parse(plan_of(module)).at("devices");
  if (devices.size() != 1) {
    return std::nullopt; // a target stands for one device
  }
  const c10::Device planned(devices[0].at("name").get<std::string>());
  for (const auto& tensor : tensors_of(module)) {
    if (tensor.device() == planned) {
      return std::nullopt;
    }
  }
  return planned.is_cpu() ? std::nullopt : std::optional<c10::Device>(planned);
}

void check_has_data(const torch::jit::Module& module) {
  for (const auto& tensor : tensors_of(module)) {
    if (!is_here(tensor.device())) {
      throw BadInput(
          "a module with tensors on " + tensor.device().str() +
          ", which is not here, has no data to write; plan for it with tensors on the CPU and --target-device");
    }
  }
}

} // namespace recals::opt
