// The kernels: run_on_host for all, but for the few that make or mean something of their own.
#include <ATen/EmptyTensor.h>
#include <torch/library.h>

#include "test/sim/devices.h"
#include "test/sim/fallback.h"
#include "test/sim/memory.h"

namespace recals::sim {

namespace {

constexpr c10::DispatchKeySet kKeys(c10::DispatchKey::PrivateUse1);

c10::Device device_or_current(std::optional<c10::Device> device) {
  return device ? checked(*device) : c10::Device(kSim, current_device());
}

at::Tensor empty(
    at::IntArrayRef size,
    std::optional<c10::ScalarType> dtype,
    std::optional<c10::Layout>,
    std::optional<c10::Device> device,
    std::optional<bool>,
    std::optional<c10::MemoryFormat> format) {
  const c10::DeviceGuard on_the_device(device_or_current(device));
  return at::detail::empty_generic(size, allocator(), kKeys, c10::dtype_or_default(dtype), format);
}

at::Tensor empty_strided(
    at::IntArrayRef size,
    at::IntArrayRef stride,
    std::optional<c10::ScalarType> dtype,
    std::optional<c10::Layout>,
    std::optional<c10::Device> device,
    std::optional<bool>) {
  const c10::DeviceGuard on_the_device(device_or_current(device));
  return at::detail::empty_strided_generic(size, stride, allocator(), kKeys, c10::dtype_or_default(dtype));
}

/// Between any two devices.
at::Tensor copy_from(const at::Tensor& source, const at::Tensor& target, bool non_blocking) {
  static const auto copy = c10::Dispatcher::singleton().findSchemaOrThrow("aten::copy_", "");
  torch::jit::Stack stack{target, source, non_blocking};
  run_on_host(copy, &stack);
  return target;
}

at::Tensor copy_from_and_resize(const at::Tensor& source, const at::Tensor& target) {
  target.resize_(source.sizes());
  return copy_from(source, target, /*non_blocking=*/false);
}

/// The composite of the host draws from the host's generator.
std::tuple<at::Tensor, at::Tensor> native_dropout(const at::Tensor& input, double p, std::optional<bool> train) {
  if (!train.value_or(true)) {
    return {input.clone(), at::ones_like(input, input.options().dtype(at::kBool))};
  }
  auto mask = at::empty_like(input, input.options().dtype(at::kBool));
  mask.bernoulli_(1 - p);
  auto output = input.mul(mask);
  output.mul_(p == 1 ? 0. : 1. / (1 - p));
  return {std::move(output), std::move(mask)};
}

void record_tensor(at::Tensor& tensor, c10::Stream stream) {
  record_stream(tensor.storage().data_ptr(), stream);
}

/// Ops that torch would put together from others, with temporaries on the device. Here each is one kernel.
std::vector<std::string> composites() {
  // Those with a device may make tensors elsewhere, and copy_ knows of two devices: torch's composites do that right.
  // What draws without an argument for a generator is made of what has one.
  const auto left_to_torch = [](const c10::FunctionSchema& schema, const c10::OperatorHandle& op) {
    bool generator = false;
    for (const auto& argument : schema.arguments()) {
      const auto type = argument.type()->repr_str();
      if (type.find("Device") != std::string::npos) {
        return true;
      }
      generator = generator || type.find("Generator") != std::string::npos;
    }
    return (op.hasTag(at::Tag::nondeterministic_seeded) && !generator) || schema.name() == "aten::copy_";
  };
  std::vector<std::string> names;
  for (const auto& name : c10::Dispatcher::singleton().getAllOpNames()) {
    if (name.name.rfind("aten::", 0) != 0) {
      continue;
    }
    const auto op = c10::Dispatcher::singleton().findSchema(name);
    if (!op) {
      continue;
    }
    const auto has = [&](c10::DispatchKey key) { return op->hasKernelForDispatchKey(key); };
    const bool one_kernel = has(c10::DispatchKey::CompositeImplicitAutograd)
        ? has(c10::DispatchKey::CPU)
        : has(c10::DispatchKey::CompositeExplicitAutograd) ||
            has(c10::DispatchKey::CompositeExplicitAutogradNonFunctional);
    if (one_kernel && !left_to_torch(op->schema(), *op)) {
      names.push_back(name.name + (name.overload_name.empty() ? "" : "." + name.overload_name));
    }
  }
  return names;
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&run_on_host>());
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", empty);
  m.impl("empty_strided", empty_strided);
  m.impl("_copy_from", copy_from);
  m.impl("_copy_from_and_resize", copy_from_and_resize);
  m.impl("native_dropout", native_dropout);
  m.impl("record_stream", record_tensor);
  for (const auto& name : composites()) {
    m.impl(name.c_str(), torch::CppFunction::makeFromBoxedFunction<&run_on_host>());
  }
}

} // namespace

} // namespace recals::sim
