#include "passes/plan/search.h"

#include <algorithm>
#include <cstdlib>

#include "passes/plan/descent.h"
#include "passes/plan/planner.h"
#include "passes/plan/small.h"

namespace recals::plan {
namespace {

using Limits = std::vector<int64_t>;

std::vector<int64_t> unit_of(const StepIndex& index, int device) {
  std::vector<int64_t> unit(index.devices, kNoBudget);
  unit[device] = 1;
  return unit;
}

/// What budgets are to each other: as they are, or, where they are the same share of the plain peaks but for the rounding
/// to bytes, as these are.
const Limits& unit_of(const Limits& budgets, const Limits& plain) {
  double most = 0;
  for (size_t d = 0; d < budgets.size(); ++d) {
    if (budgets[d] != kNoBudget && plain[d] > 0) {
      most = std::max(most, static_cast<double>(budgets[d]) / static_cast<double>(plain[d]));
    }
  }
  for (size_t d = 0; d < budgets.size(); ++d) {
    if (budgets[d] != kNoBudget &&
        std::abs(most * static_cast<double>(plain[d]) - static_cast<double>(budgets[d])) > 1) {
      return budgets;
    }
  }
  return plain;
}

Found search_down(
    const StepIndex& index,
    const Options& options,
    const Limits& unit,
    const Limits& budgets,
    const SearchOptions& search) {
  Descent descent(index, options, unit, search);
  if (std::optional<Descent::Point> point = descent.plan(descent.level_within(budgets))) {
    return {true, std::move(point->choices), descent.work()};
  }
  return {false, descent.lowest().choices, descent.work()};
}

/// The smallest peaks found; depends on which devices have a budget, not on what it is: each device with as little above
/// its own minimum as it takes to have all at once.
Found smallest_of_all(
    const StepIndex& index,
    const Options& options,
    const Limits& budgets,
    const SearchOptions& search) {
  Limits least(index.devices, kNoBudget);
  int64_t work = 0;
  for (int d = 0; d < index.devices; ++d) {
    if (budgets[d] != kNoBudget) {
      Descent descent(index, options, unit_of(index, d), search);
      least[d] = descent.end().peak;
      work += descent.work();
    }
  }
  Descent descent(index, options, least, search);
  const std::vector<Choice>& choices = descent.end().choices;
  return {false, choices, work + descent.work()};
}

} // namespace

Found search(const StepIndex& index, const std::vector<int64_t>& budgets, const SearchOptions& search) {
  const Options options(index);
  IncrementalSimulator step(index, budgets);
  step.set_choices(options.plain);
  if (step.violation() == 0) {
    return {true, step.choices()};
  }
  if (options.storages.empty()) {
    return {false, step.choices()};
  }
  std::vector<int> limited;
  for (int d = 0; d < index.devices; ++d) {
    if (budgets[d] != kNoBudget) {
      limited.push_back(d);
    }
  }
  if (options.storages.size() <= search.most_archived) {
    int64_t work = 0;
    const Archive archive = plans_of_small_step(index, options, limited, search, work);
    const Archived* const found = archive.cheapest_within(budgets);
    return {found != nullptr, (found ? *found : archive.smallest()).choices, work};
  }
  if (limited.size() == 1) {
    return search_down(index, options, unit_of(index, limited[0]), budgets, search);
  }
  Limits plain(index.devices, kNoBudget);
  for (const int d : limited) {
    plain[d] = step.peak(d);
  }
  Found found = search_down(index, options, unit_of(budgets, plain), budgets, search);
  if (!found.fits) {
    // Together they may fit in other proportions. What is smallest does not depend on the budgets, nor is it made to fill
    // them: less of all would have a higher peak then.
    const int64_t work = found.work;
    found = smallest_of_all(index, options, budgets, search);
    step.set_choices(found.choices);
    found.fits = step.violation() == 0;
    found.work += work;
  }
  return found;
}

std::vector<std::vector<Choice>> frontier(const StepIndex& index, int device, const SearchOptions& search) {
  const Options options(index);
  std::vector<std::vector<Choice>> plans;
  if (options.storages.size() <= search.most_archived) {
    int64_t work = 0;
    const Archive archive = plans_of_small_step(index, options, {device}, search, work);
    for (const Archived& plan : archive.plans()) {
      plans.push_back(plan.choices);
    }
    return plans;
  }
  Descent descent(index, options, unit_of(index, device), search);
  plans.push_back(descent.lowest().choices);
  while (descent.next()) {
    plans.push_back(descent.lowest().choices);
  }
  return plans;
}

} // namespace recals::plan
