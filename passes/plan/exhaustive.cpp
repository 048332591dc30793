#include "passes/plan/exhaustive.h"

#include <algorithm>
#include <limits>

#include "passes/plan/incremental.h"
#include "passes/plan/planner.h"

namespace recals::plan {
namespace {

/// What there is to choose from for one storage, with every `cache_from` that makes a difference.
std::vector<Choice> with_cache_from(const StepIndex& index, const Options& options, int storage) {
  std::vector<Choice> choices;
  for (Choice choice : options.of[storage]) {
    if (choice.fate == Fate::Keep) {
      choices.push_back(choice);
      continue;
    }
    const auto behind = std::lower_bound(options.asking.begin(), options.asking.end(), index.producer[storage]);
    for (auto node = behind; node != options.asking.end(); ++node) {
      choice.cache_from = *node;
      choices.push_back(choice);
    }
    choice.cache_from = -1;
    choices.push_back(choice);
    if (behind == options.asking.end()) {
      continue; // nothing behind it asks, so "always" is "never"
    }
    choices[choices.size() - 2].cache_from = Choice::kAlways; // what the last node asks for is all
  }
  return choices;
}

} // namespace

std::optional<Found> try_all(
    const StepIndex& index,
    const Options& options,
    const std::vector<int64_t>& budgets,
    double most_sets) {
  std::vector<std::vector<Choice>> of;
  double sets = 1;
  for (const int s : options.storages) {
    of.push_back(with_cache_from(index, options, s));
    sets *= static_cast<double>(of.back().size());
    if (sets > most_sets) {
      return std::nullopt;
    }
  }
  IncrementalSimulator step(index, budgets);
  std::vector<Change> changes;
  for (size_t i = 0; i < of.size(); ++i) {
    changes.push_back({options.storages[i], of[i][0]});
  }
  step.change(changes);
  const auto peaks = [&] {
    double sum = 0;
    for (int d = 0; d < index.devices; ++d) {
      sum += budgets[d] == kNoBudget ? 0 : static_cast<double>(step.peak(d));
    }
    return sum;
  };
  Found best;
  int64_t best_cost = std::numeric_limits<int64_t>::max();
  double best_peaks = std::numeric_limits<double>::infinity();
  std::vector<size_t> at(of.size(), 0);
  for (bool more = true; more;) {
    const bool fits = step.violation() == 0;
    if (fits ? !best.fits || step.cost() <= best_cost : !best.fits) {
      const double sum = peaks();
      const bool first = fits && !best.fits;
      const bool is_better = fits ? step.cost() < best_cost || sum < best_peaks
                                  : sum < best_peaks || (sum == best_peaks && step.cost() < best_cost);
      if (first || is_better) {
        best = {fits, step.choices()};
        best_cost = step.cost();
        best_peaks = sum;
      }
    }
    changes.clear();
    more = false;
    for (size_t i = 0; i < of.size() && !more; ++i) {
      at[i] = (at[i] + 1) % of[i].size();
      more = at[i] > 0;
      changes.push_back({options.storages[i], of[i][at[i]]});
    }
    step.change(changes);
  }
  const auto limited = std::count_if(budgets.begin(), budgets.end(), [](int64_t b) { return b != kNoBudget; });
  return best.fits || limited == 1 ? std::optional<Found>(std::move(best)) : std::nullopt;
}

} // namespace recals::plan
