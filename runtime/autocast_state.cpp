#include "runtime/autocast_state.h"

#include <ATen/autocast_mode.h>

namespace recals {

namespace autocast = at::autocast;

AutocastState AutocastState::current() {
  AutocastState state;
  for (auto type : {c10::DeviceType::CPU, c10::DeviceType::CUDA}) {
    state.devices.push_back({type, autocast::is_autocast_enabled(type), autocast::get_autocast_dtype(type)});
  }
  state.cache_enabled = autocast::is_autocast_cache_enabled();
  return state;
}

void AutocastState::set() const {
  for (const auto& device : devices) {
    autocast::set_autocast_enabled(device.type, device.enabled);
    autocast::set_autocast_dtype(device.type, device.dtype);
  }
  autocast::set_autocast_cache_enabled(cache_enabled);
}

} // namespace recals
