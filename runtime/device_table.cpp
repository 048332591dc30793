#include "runtime/device_table.h"

#include <algorithm>

#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/util/Exception.h>

#include "runtime/devices_here.h"

namespace recals {

namespace {

c10::Device stand_in_of(int number) {
  return number == 0 ? c10::Device(c10::kMeta) : c10::Device(c10::kMeta, static_cast<c10::DeviceIndex>(number));
}

} // namespace

c10::Device DeviceTable::with_index(c10::Device device) {
  if (device.is_cpu()) {
    return c10::kCPU;
  }
  if (device.has_index()) {
    return device;
  }
  const bool any = devices_here(device.type()) > 0;
  return {device.type(), any ? c10::impl::getDeviceGuardImpl(device.type())->getDevice().index() : c10::DeviceIndex(0)};
}

int DeviceTable::number_of(c10::Device device) const {
  const auto found = std::find(devices_.begin(), devices_.end(), with_index(device));
  return found == devices_.end() ? -1 : static_cast<int>(found - devices_.begin());
}

int DeviceTable::add(c10::Device device) {
  const int known = number_of(device);
  if (known >= 0) {
    return known;
  }
  devices_.push_back(with_index(device));
  return static_cast<int>(devices_.size()) - 1;
}

c10::Device DeviceTable::stand_in(c10::Device device) {
  if (device.is_meta()) {
    return device;
  }
  return stand_in_of(add(device));
}

c10::Device DeviceTable::stand_in(c10::Device device) const {
  if (device.is_meta()) {
    return device;
  }
  const int number = number_of(device);
  TORCH_CHECK(number >= 0, "recals: the step does not use ", device);
  return stand_in_of(number);
}

c10::Device DeviceTable::real(c10::Device device) const {
  if (!device.is_meta() || devices_.empty()) {
    return device;
  }
  return devices_.at(device.has_index() ? device.index() : 0);
}

} // namespace recals
