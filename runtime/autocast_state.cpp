#include "runtime/autocast_state.h"

#include <algorithm>
#include <array>
#include <sstream>

#include <ATen/autocast_mode.h>
#include <c10/core/Device.h>

#include "runtime/describe.h"

namespace recals {

namespace autocast = at::autocast;

AutocastState AutocastState::current() {
  AutocastState state;
  for (auto type : autocast::_AUTOCAST_SUPPORTED_DEVICES) {
    state.devices.push_back({type, autocast::is_autocast_enabled(type), autocast::get_autocast_dtype(type)});
  }
  state.cache_enabled = autocast::is_autocast_cache_enabled();
  return state;
}

void AutocastState::set() const {
  for (const auto& device : devices) {
    if (autocast::is_autocast_enabled(device.type) != device.enabled) {
      autocast::set_autocast_enabled(device.type, device.enabled);
    }
    if (autocast::get_autocast_dtype(device.type) != device.dtype) {
      autocast::set_autocast_dtype(device.type, device.dtype);
    }
  }
  autocast::set_autocast_cache_enabled(cache_enabled);
}

namespace {

constexpr std::string_view kBegin = " under autocast(";
constexpr std::string_view kUncached = ", uncached";
constexpr std::array kDtypes{c10::kBFloat16, c10::kHalf, c10::kFloat, c10::kDouble};

} // namespace

std::string AutocastState::text(const std::set<c10::DeviceType>& types) const {
  std::string casts;
  for (const auto& device : devices) {
    if (device.enabled && types.count(device.type) != 0) {
      casts += (casts.empty() ? "" : ", ") + c10::DeviceTypeName(device.type, /*lower_case=*/true) + ": " +
          dtype_name(device.dtype);
    }
  }
  if (casts.empty()) {
    return "";
  }
  return std::string(kBegin) + casts + std::string(cache_enabled ? "" : kUncached) + ")";
}

std::pair<std::string, std::optional<AutocastState>> AutocastState::parse(const std::string& text) {
  const auto begin = text.rfind(kBegin);
  if (begin == std::string::npos || text.back() != ')') {
    return {text, std::nullopt};
  }
  auto casts = text.substr(begin + kBegin.size(), text.size() - 1 - begin - kBegin.size());
  AutocastState state;
  if (const auto uncached = casts.find(kUncached); uncached != std::string::npos) {
    state.cache_enabled = false;
    casts.erase(uncached);
  }
  std::istringstream words(casts);
  std::string device, dtype;
  while (words >> device >> dtype) {
    for (auto* word : {&device, &dtype}) {
      if (word->back() == ':' || word->back() == ',') {
        word->pop_back();
      }
    }
    const auto found =
        std::find_if(kDtypes.begin(), kDtypes.end(), [&](auto known) { return dtype_name(known) == dtype; });
    TORCH_CHECK(found != kDtypes.end(), "recals: '", text, "' names an autocast that this version does not know");
    state.devices.push_back({c10::Device(device).type(), true, *found});
  }
  return {text.substr(0, begin), state};
}

} // namespace recals
