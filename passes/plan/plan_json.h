#pragma once

/// Plan as JSON, format version 1. Bytes are integers; nothing is rounded.
///
/// { "format": 1, "devices": [{"name", "budget" (bytes or null), "peak", "held", "plain_peak", "plain_held"}],
///   "recompute_seconds" (all runs), "pack_seconds", "plain_forward_seconds", "plain_backward_seconds",
///   "cost_model": {"name", "hash" (or null)}, "recomputed_bytes", "pins": {pattern: policy}, in their order
///   "regions": [{"first", "last", "module"}],
///   "storages": [{"name", "bytes", "device", "op", "where", "module", "internal", "slots",
///     "fate" ("keep", "recompute", "pack"), "packed_as" (kind or null), "packed_bytes" (or null),
///     "cache_from" (a node, see Choice; null: always), "policy", "pin" (the pattern that it comes from; both or null),
///     "reason"}],
///   "nodes_replayed": [{"index", "op", "where", "module", "seconds" (one run), "runs", "by_recipe"}] }

#include <optional>
#include <string>

#include "passes/plan/planner.h"

namespace recals::plan {

/// Bytes per device of the plain step.
struct PlainStep {
  std::vector<int64_t> peak;
  std::vector<int64_t> held;
};

/// `plain`: where it is not the step of the graph that keeps everything (ops in place).
std::string to_json(
    const StepGraph& graph,
    const Plan& plan,
    const std::vector<int64_t>& budgets,
    const std::optional<PlainStep>& plain = std::nullopt);

/// The budgets that a plan was made for, per device in its order; kNoBudget for none. `json`: what `to_json` gave.
std::vector<int64_t> budgets_in(const std::string& json);

} // namespace recals::plan
