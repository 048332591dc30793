#include "passes/plan/search.h"

#include <algorithm>

#include "passes/plan/descent.h"
#include "passes/plan/exhaustive.h"
#include "passes/plan/planner.h"

namespace recals::plan {
namespace {

using Limits = std::vector<int64_t>;

Found search_one(
    const StepIndex& index,
    const Options& options,
    int device,
    int64_t budget,
    const SearchOptions& search) {
  Descent descent(index, options, device, search);
  if (std::optional<Descent::Point> point = descent.plan(budget)) {
    return {true, std::move(point->choices)};
  }
  return {false, descent.lowest().choices};
}

/// The two best starts for some limits, annealed; and where these do not fit, more and hotter, while that is cheap.
State cheapest(
    const Options& options,
    const Starts& starts,
    IncrementalSimulator& step,
    const Limits& limits,
    const SearchOptions& search) {
  Improver improver(options, step);
  const int64_t work = work_of(step.index(), search);
  const std::vector<State> from = starts.best(step, improver, limits, work / 4);
  const Effort each{
      static_cast<int64_t>(search.tries_per_choice) * static_cast<int64_t>(options.storages.size() + 4) / 2, work / 4};
  State best = from.front();
  const size_t attempts = std::clamp<size_t>(50000 / static_cast<size_t>(std::max<int64_t>(each.tries, 1)), 2, 12);
  for (size_t i = 0; i < attempts && (i < std::min<size_t>(from.size(), 2) || !best.fits()); ++i) {
    State state = from[i % from.size()];
    if (!state.fits()) {
      step.set_choices(state.choices);
      state = improver.anneal({each, i < 2 ? kHot : kVeryHot, i, true, -1, -1});
    }
    step.set_choices(state.choices);
    step.set_choices(improver.anneal({each, kCold, i, false, -1, -1}).choices);
    improver.keep_what_fits(work / 10);
    state = state_of(step);
    best = better(state, best) ? state : best;
  }
  return best;
}

/// The smallest peaks found; depends on which devices have a budget, not on what it is.
State smallest_of_all(
    const StepIndex& index,
    const Options& options,
    const Starts& starts,
    const Limits& budgets,
    const SearchOptions& search) {
  Limits least(index.devices, kNoBudget);
  for (int d = 0; d < index.devices; ++d) {
    if (budgets[d] != kNoBudget) {
      Descent descent(index, options, d, search);
      while (descent.next()) {
      }
      least[d] = descent.lowest().peak;
    }
  }
  // Each device with as little above its own minimum as it takes to have all at once.
  for (double more = 0;; more = more * 1.5 + 0.01) {
    Limits limits = least;
    for (int64_t& limit : limits) {
      if (limit != kNoBudget) {
        limit += static_cast<int64_t>(static_cast<double>(limit + 1) * more);
      }
    }
    IncrementalSimulator step(index, limits);
    State state = cheapest(options, starts, step, limits, search);
    if (state.fits()) {
      return state;
    }
  }
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
  // Budgets that fit one device each and not each other are hard to tell from those that fit: more is tried.
  const double most_sets = limited.size() > 1 ? 8 * search.most_sets : search.most_sets;
  if (std::optional<Found> found = try_all(index, options, budgets, most_sets)) {
    return std::move(*found);
  }
  if (limited.size() == 1) {
    return search_one(index, options, limited[0], budgets[limited[0]], search);
  }
  const Starts starts(index, options, limited);
  State best = cheapest(options, starts, step, budgets, search);
  if (!best.fits()) {
    // Annealing may have missed what another way finds, and what is smallest must not depend on the budgets.
    const State smallest = smallest_of_all(index, options, starts, budgets, search);
    step.set_choices(smallest.choices);
    best = state_of(step);
    if (best.fits()) {
      Improver improver(options, step);
      improver.keep_what_fits(work_of(index, search) / 10);
      best = state_of(step);
    }
  }
  return {best.fits(), std::move(best.choices)};
}

std::vector<std::vector<Choice>> frontier(const StepIndex& index, int device, const SearchOptions& search) {
  const Options options(index);
  Descent descent(index, options, device, search);
  std::vector<std::vector<Choice>> plans{descent.lowest().choices};
  while (descent.next()) {
    plans.push_back(descent.lowest().choices);
  }
  return plans;
}

} // namespace recals::plan
