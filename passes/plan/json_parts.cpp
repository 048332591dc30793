#include "passes/plan/json_parts.h"

#include "passes/plan/pins.h"

namespace recals::plan {

using Json = nlohmann::ordered_json;

Json json_of(const CostSource& source) {
  return {{"name", source.name}, {"hash", source.hash.empty() ? Json(nullptr) : Json(source.hash)}};
}

Json json_of(const ScratchFacts& scratch) {
  return {
      {"measured", scratch.measured},
      {"derived", scratch.derived},
      {"bounded", scratch.bounded},
      {"bounded_ops", scratch.bounded_ops},
  };
}

Json json_of(const std::vector<Pin>& pins) {
  Json object = Json::object();
  for (const Pin& pin : pins) {
    object[pin.pattern] = name_of(pin.policy);
  }
  return object;
}

} // namespace recals::plan
