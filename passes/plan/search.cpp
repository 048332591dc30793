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

} // namespace

Search::Search(const StepIndex& index, const SearchOptions& options)
    : index_(index), choices_(index), options_(options) {}

Search::~Search() = default;

Descent& Search::descent(const Limits& unit) {
  std::unique_ptr<Descent>& descent = descents_[unit];
  if (!descent) {
    descent = std::make_unique<Descent>(index_, choices_, unit, options_);
  }
  return *descent;
}

const Archive& Search::archive(const std::vector<int>& devices, int64_t& work) {
  auto it = archives_.find(devices);
  if (it == archives_.end()) {
    it = archives_.emplace(devices, plans_of_small_step(index_, choices_, devices, options_, work)).first;
  }
  return it->second;
}

Found Search::find_down(const Limits& unit, const Limits& budgets) {
  Descent& descent = this->descent(unit);
  if (std::optional<Descent::Point> point = descent.plan(descent.level_within(budgets))) {
    return {true, std::move(point->choices), descent.work()};
  }
  return {false, descent.now().choices, descent.work()};
}

/// The smallest peaks found; depends on which devices have a budget, not on what it is: each device with as little above
/// its own minimum as it takes to have all at once.
Found Search::smallest_of_all(const Limits& budgets) {
  Limits least(index_.devices, kNoBudget);
  int64_t work = 0;
  for (int d = 0; d < index_.devices; ++d) {
    if (budgets[d] != kNoBudget) {
      Descent& descent = this->descent(unit_of(index_, d));
      least[d] = descent.end().peak;
      work += descent.work();
    }
  }
  Descent& descent = this->descent(least);
  const std::vector<Choice>& choices = descent.end().choices;
  return {false, choices, work + descent.work()};
}

Found Search::find(const std::vector<int64_t>& budgets) {
  IncrementalSimulator step(index_, budgets);
  step.set_choices(choices_.plain);
  if (step.violation() == 0) {
    return {true, step.choices()};
  }
  if (choices_.storages.empty()) {
    return {false, step.choices()};
  }
  std::vector<int> limited;
  for (int d = 0; d < index_.devices; ++d) {
    if (budgets[d] != kNoBudget) {
      limited.push_back(d);
    }
  }
  if (choices_.storages.size() <= options_.most_archived) {
    int64_t work = 0;
    const Archive& plans = archive(limited, work);
    const Archived* const found = plans.cheapest_within(budgets);
    return {found != nullptr, (found ? *found : plans.smallest()).choices, work};
  }
  if (limited.size() == 1) {
    return find_down(unit_of(index_, limited[0]), budgets);
  }
  Limits plain(index_.devices, kNoBudget);
  for (const int d : limited) {
    plain[d] = step.peak(d);
  }
  Found found = find_down(unit_of(budgets, plain), budgets);
  if (!found.fits) {
    // Together they may fit in other proportions. What is smallest does not depend on the budgets, nor is it made to fill
    // them: less of all would have a higher peak then.
    const int64_t work = found.work;
    found = smallest_of_all(budgets);
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
  do {
    plans.push_back(descent.now().choices);
  } while (descent.next());
  plans.back() = descent.polished_end().choices;
  return plans;
}

} // namespace recals::plan
