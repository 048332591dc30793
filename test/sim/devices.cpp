#include "test/sim/devices.h"

#include <array>
#include <atomic>
#include <cstdlib>

#include <c10/util/Exception.h>

namespace recals::sim {

namespace {

thread_local c10::DeviceIndex this_device = 0;
thread_local std::array<c10::StreamId, kMostDevices> this_stream{};

std::atomic<c10::StreamId> last_stream{0};

c10::DeviceIndex count_from_environment() {
  const char* text = std::getenv("RECALS_SIM_DEVICES");
  if (text == nullptr) {
    return 4;
  }
  const int count = std::atoi(text);
  TORCH_CHECK(
      count >= 1 && count <= kMostDevices,
      "sim: RECALS_SIM_DEVICES is a number from 1 to ",
      int{kMostDevices},
      ", not '",
      text,
      "'");
  return static_cast<c10::DeviceIndex>(count);
}

} // namespace

c10::DeviceIndex device_count() {
  static const c10::DeviceIndex count = count_from_environment();
  return count;
}

c10::Device checked(c10::Device device) {
  TORCH_CHECK(device.type() == kSim, "sim: ", device, " is none of its devices");
  const auto index = device.has_index() ? device.index() : current_device();
  TORCH_CHECK(index >= 0 && index < device_count(), "sim: there is no ", device, ", only ", int{device_count()});
  return {kSim, index};
}

c10::DeviceIndex current_device() {
  return this_device;
}

void set_current_device(c10::DeviceIndex index) noexcept {
  this_device = index;
}

c10::Stream default_stream(c10::DeviceIndex index) {
  return c10::Stream(c10::Stream::DEFAULT, c10::Device(kSim, index));
}

c10::Stream new_stream(c10::DeviceIndex index) {
  return c10::Stream(c10::Stream::UNSAFE, c10::Device(kSim, index), ++last_stream);
}

c10::Stream current_stream(c10::DeviceIndex index) {
  return c10::Stream(c10::Stream::UNSAFE, c10::Device(kSim, index), this_stream.at(index));
}

void set_current_stream(c10::Stream stream) {
  this_stream.at(checked(stream.device()).index()) = stream.id();
}

} // namespace recals::sim
