#pragma once

/// What several JSON documents have in common.

#include <vector>

#include <nlohmann/json.hpp>

#include "passes/plan/step_graph.h"

namespace recals::plan {

/// {"name", "hash" (or null)}
nlohmann::ordered_json json_of(const CostSource& source);

/// {"measured", "derived", "bounded": calls, "bounded_ops": names}
nlohmann::ordered_json json_of(const ScratchFacts& scratch);

/// {pattern: policy}, in their order
nlohmann::ordered_json json_of(const std::vector<Pin>& pins);

} // namespace recals::plan
