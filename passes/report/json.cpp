#include <nlohmann/json.hpp>

#include "passes/plan/json_parts.h"
#include "passes/report/report.h"

namespace recals {
namespace {

using Json = nlohmann::ordered_json;

Json json_of(const Place& place) {
  return {
      {"phase", name_of(place.phase)},
      {"op", place.op},
      {"forward_op", place.forward_op},
      {"module", place.module},
      {"where", place.where},
  };
}

Json json_of(const std::vector<Share>& shares) {
  Json list = Json::array();
  for (const auto& share : shares) {
    list.push_back({{"name", share.name}, {"held", share.held}, {"peak", share.peak}});
  }
  return list;
}

Json json_of(const DeviceReport& device) {
  Json curve = Json::array();
  for (const auto& point : device.curve) {
    Json entry = json_of(point.place);
    entry["seconds"] = point.seconds;
    entry["live"] = point.live;
    entry["most"] = point.most;
    curve.push_back(std::move(entry));
  }
  return {
      {"name", device.name},
      {"peak", device.peak},
      {"held", device.held},
      {"budget", device.budget < 0 ? Json(nullptr) : Json(device.budget)},
      {"plain_peak", device.plain_peak < 0 ? Json(nullptr) : Json(device.plain_peak)},
      {"overlap", device.overlap.empty() ? Json(nullptr) : Json(device.overlap)},
      {"peak_at", json_of(device.peak_at)},
      {"peak_point", device.peak_point},
      {"by_use", json_of(device.uses)},
      {"by_module", json_of(device.modules)},
      {"by_op", json_of(device.ops)},
      {"by_dtype", json_of(device.dtypes)},
      {"curve", std::move(curve)},
  };
}

} // namespace

std::string to_json(const Report& report) {
  Json devices = Json::array();
  for (const auto& device : report.devices) {
    devices.push_back(json_of(device));
  }
  Json storages = Json::array();
  for (const auto& storage : report.storages) {
    storages.push_back({
        {"name", storage.name},
        {"device", storage.device},
        {"bytes", storage.bytes},
        {"dtype", storage.dtype},
        {"op", storage.made.op},
        {"module", storage.made.module},
        {"where", storage.made.where},
        {"use", name_of(storage.use)},
        {"slots", storage.slots},
        {"at_peak", storage.at_peak},
    });
  }
  const Json document = {
      {"format", 1},
      {"devices", std::move(devices)},
      {"storages", std::move(storages)},
      {"seconds",
       {{"forward", report.forward_seconds},
        {"backward", report.backward_seconds},
        {"recompute", report.recompute_seconds}}},
      {"scratch", plan::json_of(report.scratch)},
      {"cost_model",
       {{"name", report.cost_model.name},
        {"hash", report.cost_model.hash.empty() ? Json(nullptr) : Json(report.cost_model.hash)}}},
  };
  // Names come from source files: bytes that are no UTF-8 must not throw here.
  return document.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

} // namespace recals
