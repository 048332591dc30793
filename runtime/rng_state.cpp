#include "runtime/rng_state.h"

#include <map>
#include <mutex>

#include <ATen/Context.h>
#include <ATen/Functions.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

namespace recals {

namespace {

at::Generator generator_of(c10::Device device) {
  return at::globalContext().defaultGenerator(device);
}

at::Tensor state_of(c10::Device device) {
  auto generator = generator_of(device);
  std::lock_guard<std::mutex> lock(generator.mutex());
  return generator.get_state();
}

} // namespace

int64_t RngState::bytes(c10::Device device) {
  // Asked once a kind: asking makes such a state, which whoever counts the host's allocations would see.
  static std::mutex mutex;
  static std::map<c10::DeviceType, int64_t> known;
  std::lock_guard<std::mutex> lock(mutex);
  auto kind = known.find(device.type());
  if (kind == known.end()) {
    const auto* guard = c10::impl::device_guard_impl_registry[static_cast<size_t>(device.type())].load();
    const bool there = device.is_cpu() || (guard != nullptr && device.index() < guard->deviceCount());
    kind = known.emplace(device.type(), there ? static_cast<int64_t>(state_of(device).nbytes()) : 0).first;
  }
  return kind->second;
}

RngState RngState::of(c10::Device device, const DeviceTable& devices) {
  if (device.is_meta()) {
    // It is kept on the host, whose bytes count if the step uses it.
    const int host = devices.number_of(c10::kCPU);
    const int64_t size = host < 0 ? 0 : bytes(devices.real(device));
    const c10::Device on = host < 0 ? device : c10::Device(c10::kMeta, static_cast<c10::DeviceIndex>(host));
    return {device, at::empty({size}, at::TensorOptions().device(on).dtype(at::kByte))};
  }
  return {device, state_of(device)};
}

RngState RngState::now() const {
  return {device_, device_.is_meta() ? at::empty_like(state_) : state_of(device_)};
}

at::Generator RngState::copy_of_generator(c10::Device device) {
  auto generator = generator_of(device.is_meta() ? c10::Device(c10::kCPU) : device);
  std::lock_guard<std::mutex> lock(generator.mutex());
  return generator.clone();
}

RngState RngState::of(c10::Device device, const at::Generator& copy, const DeviceTable& devices) {
  return device.is_meta() ? of(device, devices) : RngState{device, copy.get_state()};
}

void RngState::restore() const {
  if (device_.is_meta()) {
    return;
  }
  auto generator = generator_of(device_);
  std::lock_guard<std::mutex> lock(generator.mutex());
  generator.set_state(state_);
}

} // namespace recals
