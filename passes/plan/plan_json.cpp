#include "passes/plan/plan_json.h"

#include <nlohmann/json.hpp>

#include "passes/plan/json_parts.h"
#include "passes/plan/pins.h"

namespace recals::plan {
namespace {

/// The innermost module that all nodes of the region are in: "layer1" for "layer1.0.conv" and "layer1.1".
std::string module_of(const StepGraph& graph, const Region& region) {
  std::string common = graph.nodes[region.first].module;
  for (int n = region.first; n <= region.last; ++n) {
    const std::string& module = graph.nodes[n].module;
    const auto holds_it = [&] {
      return common.empty() ||
          (module.compare(0, common.size(), common) == 0 &&
           (module.size() == common.size() || module[common.size()] == '.'));
    };
    while (!holds_it()) {
      const size_t dot = common.rfind('.');
      common.resize(dot == std::string::npos ? 0 : dot);
    }
  }
  return common;
}

const char* name_of(Fate fate) {
  switch (fate) {
    case Fate::Keep:
      return "keep";
    case Fate::Recompute:
      return "recompute";
    case Fate::Pack:
      return "pack";
  }
  return "";
}

} // namespace

std::string to_json(
    const StepGraph& graph,
    const Plan& plan,
    const std::vector<int64_t>& budgets,
    const std::optional<PlainStep>& plain_step) {
  using Json = nlohmann::ordered_json;
  const Simulation plain = simulate(graph, std::vector<Choice>(graph.storages.size(), Fate::Keep));

  Json devices = Json::array();
  for (size_t d = 0; d < graph.devices.size(); ++d) {
    const bool limited = d < budgets.size() && budgets[d] != kNoBudget;
    devices.push_back({
        {"name", graph.devices[d]},
        {"budget", limited ? Json(budgets[d]) : Json(nullptr)},
        {"peak", plan.predicted.peak[d].bytes},
        {"held", plan.predicted.held[d]},
        {"plain_peak", plain_step ? plain_step->peak[d] : plain.peak[d].bytes},
        {"plain_held", plain_step ? plain_step->held[d] : plain.held[d]},
    });
  }

  double forward_seconds = 0;
  for (const Node& node : graph.nodes) {
    forward_seconds += node.seconds;
  }

  Json regions = Json::array();
  for (const Region& region : plan.regions) {
    regions.push_back({
        {"first", region.first},
        {"last", region.last},
        {"module", module_of(graph, region)},
    });
  }

  std::vector<int> slots(graph.storages.size(), 0);
  for (const Slot& slot : graph.slots) {
    ++slots[slot.storage];
  }
  Json storages = Json::array();
  for (size_t s = 0; s < graph.storages.size(); ++s) {
    const Storage& storage = graph.storages[s];
    const Node& producer = graph.nodes[storage.producer];
    const Choice& choice = plan.choices[s];
    const bool packed = choice.fate == Fate::Pack;
    const bool from_a_node = choice.fate != Fate::Keep && choice.cache_from != Choice::kAlways;
    storages.push_back({
        {"name", storage.name},
        {"bytes", storage.bytes},
        {"device", graph.devices[storage.device]},
        {"op", producer.op},
        {"where", producer.where},
        {"module", producer.module},
        {"internal", storage.internal},
        {"slots", slots[s]},
        {"fate", name_of(plan.choices[s].fate)},
        {"packed_as", packed ? Json(storage.packs[choice.pack].kind) : Json(nullptr)},
        {"packed_bytes", packed ? Json(storage.packs[choice.pack].bytes) : Json(nullptr)},
        {"cache_from", from_a_node ? Json(choice.cache_from) : Json(nullptr)},
        {"policy", storage.pin < 0 ? Json(nullptr) : Json(name_of(storage.policy))},
        {"pin", storage.pin < 0 ? Json(nullptr) : Json(graph.pins[storage.pin].pattern)},
        {"reason", plan.reasons[s]},
    });
  }

  Json replayed = Json::array();
  for (size_t i = 0; i < plan.predicted.replayed.size(); ++i) {
    const int n = plan.predicted.replayed[i];
    const bool by_recipe = plan.predicted.by_recipe[i];
    const Node& node = graph.nodes[n];
    replayed.push_back({
        {"index", n},
        {"op", node.op},
        {"where", node.where},
        {"module", node.module},
        {"seconds", by_recipe ? node.recipe.seconds : node.seconds},
        {"runs", plan.predicted.runs[i]},
        {"by_recipe", by_recipe},
    });
  }

  const Json document = {
      {"format", 1},
      {"devices", devices},
      {"recompute_seconds", plan.predicted.recompute_seconds},
      {"pack_seconds", plan.predicted.pack_seconds},
      {"plain_forward_seconds", forward_seconds},
      {"plain_backward_seconds", graph.backward_seconds},
      {"cost_model", json_of(graph.cost_model)},
      {"bounded_ops", graph.scratch.bounded_ops},
      {"recomputed_bytes", plan.predicted.recomputed_bytes},
      {"pins", json_of(graph.pins)},
      {"regions", regions},
      {"storages", storages},
      {"nodes_replayed", replayed},
  };
  // Names come from source files: bytes that are no UTF-8 must not throw here.
  return document.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::vector<int64_t> budgets_in(const std::string& json) {
  std::vector<int64_t> budgets;
  const auto document = nlohmann::json::parse(json);
  for (const auto& device : document.at("devices")) {
    const auto& budget = device.at("budget");
    budgets.push_back(budget.is_null() ? kNoBudget : budget.get<int64_t>());
  }
  return budgets;
}

} // namespace recals::plan
