#include "passes/plan/archive.h"

#include <algorithm>
#include <limits>

namespace recals::plan {
namespace {

bool within(const std::vector<int64_t>& peaks, const std::vector<int64_t>& limits) {
  for (size_t i = 0; i < peaks.size(); ++i) {
    if (peaks[i] > limits[i]) {
      return false;
    }
  }
  return true;
}

} // namespace

bool Archive::add(IncrementalSimulator& step) {
  const int64_t cost = step.cost();
  for (size_t i = 0; i < devices_.size(); ++i) {
    peaks_[i] = step.peak(devices_[i]);
  }
  auto at = plans_.begin();
  for (; at != plans_.end() && at->cost <= cost; ++at) {
    if (within(at->peaks, peaks_)) {
      return false;
    }
  }
  // Only what costs as much or more can be beaten.
  auto first = at;
  while (first != plans_.begin() && std::prev(first)->cost == cost) {
    --first;
  }
  const auto offset = first - plans_.begin();
  plans_.erase(
      std::remove_if(first, plans_.end(), [&](const Archived& plan) { return within(peaks_, plan.peaks); }),
      plans_.end());
  plans_.insert(plans_.begin() + offset, {peaks_, cost, step.choices(), true});
  return true;
}

std::optional<std::vector<Choice>> Archive::take_new() {
  const auto it = std::find_if(plans_.begin(), plans_.end(), [](const Archived& plan) { return plan.is_new; });
  if (it == plans_.end()) {
    return std::nullopt;
  }
  it->is_new = false;
  return it->choices;
}

/// Whether cost and peaks are those of a plan.
bool Archive::is_at(IncrementalSimulator& step, const Archived& plan) const {
  bool same = step.cost() == plan.cost;
  for (size_t i = 0; i < devices_.size() && same; ++i) {
    same = step.peak(devices_[i]) == plan.peaks[i];
  }
  return same;
}

void Archive::simplify(IncrementalSimulator& step, const Options& options) {
  std::vector<Change> change(1);
  for (Archived& plan : plans_) {
    step.set_choices(plan.choices);
    const auto try_instead = [&](int storage, const Choice& choice) {
      change[0] = {storage, choice};
      step.change(change);
      if (is_at(step, plan)) {
        plan.choices[storage] = choice;
        return true;
      }
      step.undo();
      return false;
    };
    for (const int s : options.storages) {
      Choice choice = plan.choices[s];
      if (choice.fate == Fate::Keep || (options.allows(s, Fate::Keep) && try_instead(s, Fate::Keep)) ||
          choice.cache_from == Choice::kAlways) {
        continue;
      }
      choice.cache_from = Choice::kAlways;
      try_instead(s, choice);
    }
  }
}

const Archived* Archive::cheapest_within(const std::vector<int64_t>& budgets) const {
  for (const Archived& plan : plans_) {
    bool fits = true;
    for (size_t i = 0; i < devices_.size(); ++i) {
      fits &= plan.peaks[i] <= budgets[devices_[i]];
    }
    if (fits) {
      return &plan;
    }
  }
  return nullptr;
}

const Archived& Archive::smallest() const {
  std::vector<int64_t> least = plans_.front().peaks;
  for (const Archived& plan : plans_) {
    for (size_t i = 0; i < least.size(); ++i) {
      least[i] = std::min(least[i], plan.peaks[i]);
    }
  }
  const Archived* best = nullptr;
  double best_share = std::numeric_limits<double>::infinity();
  for (const Archived& plan : plans_) {
    double share = 0;
    for (size_t i = 0; i < least.size(); ++i) {
      share = std::max(share, static_cast<double>(plan.peaks[i]) / static_cast<double>(std::max<int64_t>(least[i], 1)));
    }
    if (share < best_share) {
      best_share = share;
      best = &plan;
    }
  }
  return *best;
}

} // namespace recals::plan
