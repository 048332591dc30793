#pragma once

/// Steps with few choices to make: one search for all budgets.
///
/// Note [Small steps]
/// Where there are few choices, tries are cheap and neighbouring budgets have much the same plans. So whatever is tried
/// goes into an Archive, and the plan for a budget is the cheapest of it that fits. The search knows no budget: it goes on
/// from plans of the archive, with limits that lie below theirs, until nothing is found any more. What it finds for one
/// device at the expense of another is there for whoever asks for that.
///
/// Two ways to find more take turns:
/// - *Pairs*: for each plan that is new in the archive, all changes of one choice, every `cache_from` included, and all
///   pairs of those that make a difference. A good plan is then not one exchange away from a better one.
/// - *Annealing*, half of it below the smallest peaks: whether there is a plan at all is harder to tell than what is
///   cheap. Limits well below what can be had help: they press on every moment, not on the highest one alone. And it
///   begins now and then with nothing retained: at the smallest peaks most things are made anew each time.

#include <vector>

#include "passes/plan/archive.h"
#include "passes/plan/options.h"
#include "passes/plan/search.h"

namespace recals::plan {

/// Plans for all budgets of `devices` (ascending; not empty): the best ones if there are no more than
/// SearchOptions::most_sets sets of choices, else the best ones found. `work`: what its simulator did is added to it.
Archive plans_of_small_step(
    const StepIndex& index,
    const Options& options,
    const std::vector<int>& devices,
    const SearchOptions& search,
    int64_t& work);

} // namespace recals::plan
