#include "runtime/rng_state.h"

#include <mutex>

#include <ATen/Context.h>
#include <ATen/Functions.h>

namespace recals {

namespace {

at::Generator generator_of(c10::Device device) {
  return at::globalContext().defaultGenerator(device);
}

} // namespace

int64_t RngState::bytes() {
  static const int64_t cpu = [] {
    auto generator = generator_of(c10::Device(c10::kCPU));
    std::lock_guard<std::mutex> lock(generator.mutex());
    return static_cast<int64_t>(generator.get_state().storage().nbytes());
  }();
  return cpu;
}

RngState RngState::of(c10::Device device, c10::DeviceType stands_for) {
  if (device.is_meta()) {
    const int64_t size = stands_for == c10::kCPU ? bytes() : 0;
    return {device, stands_for, at::empty({size}, at::TensorOptions().device(c10::kMeta).dtype(at::kByte))};
  }
  auto generator = generator_of(device);
  std::lock_guard<std::mutex> lock(generator.mutex());
  return {device, device.type(), generator.get_state()};
}

at::Generator RngState::copy_of_generator(c10::Device device) {
  auto generator = generator_of(device.is_meta() ? c10::Device(c10::kCPU) : device);
  std::lock_guard<std::mutex> lock(generator.mutex());
  return generator.clone();
}

RngState RngState::of(c10::Device device, const at::Generator& copy, c10::DeviceType stands_for) {
  return device.is_meta() ? of(device, stands_for) : RngState{device, device.type(), copy.get_state()};
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
