#pragma once

/// The optimum of steps that are small enough to try everything.

#include <cstdint>
#include <optional>
#include <vector>

#include "passes/plan/options.h"
#include "passes/plan/search.h"

namespace recals::plan {

/// The cheapest plan that fits, the one with the smaller peaks if two are equal; if none fits and one device has a budget,
/// a plan with the smallest peak. Empty if there are more than `most_sets` sets of choices, or if none fits the budgets of
/// several devices.
std::optional<Found> try_all(
    const StepIndex& index,
    const Options& options,
    const std::vector<int64_t>& budgets,
    double most_sets);

} // namespace recals::plan
