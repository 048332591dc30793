#pragma once

/// The search behind `choose` and `pareto`. `docs/planner.md` explains it.

#include <map>
#include <memory>
#include <vector>

#include "passes/plan/archive.h"
#include "passes/plan/options.h"

namespace recals::plan {

struct SearchOptions {
  /// Sets of choices that annealing tries for each storage that has a choice.
  int tries_per_choice = 300;
  /// What bounds it for large steps, in units of IncrementalSimulator::work: about a second, and more for steps with
  /// thousands of storages.
  int64_t most_work = 40'000'000;
  int64_t most_work_per_storage = 3'000;
  /// Steps with more choices to make are not walked down level by level (Note [Anchors]), and their equal blocks are
  /// planned once (Note [Repeats]).
  size_t most_chained = 150;
  /// Steps with at most so many choices to make are searched for all budgets at once (Note [Small steps]).
  size_t most_archived = kSmall;
  /// Of these, those with at most so many sets of choices have all of them tried.
  double most_sets = 100'000;
};

inline int64_t work_of(const StepIndex& index, const SearchOptions& options) {
  return options.most_work + options.most_work_per_storage * index.storages;
}

struct Found {
  bool fits = false;
  std::vector<Choice> choices; ///< the cheapest found that fits; if none does, the smallest found
  int64_t work = 0; ///< of all simulators, see IncrementalSimulator::work
};

class Descent;

/// Answers one question after the other about one step. What it found on its way to one answer is there for the next.
class Search {
 public:
  explicit Search(const StepIndex& index, const SearchOptions& options = {});
  Search(const Search&) = delete;
  Search& operator=(const Search&) = delete;
  ~Search();

  /// Deterministic: the same question has the same answer, on any number of cores and at any load, whatever was asked
  /// before. If nothing fits, then budgets that are at least the peaks of the choices that come back do fit, for the
  /// devices that had a budget.
  /// With one such device a smaller budget never has a plan with a higher peak. With several the same holds of budgets that
  /// shrink in proportion (shares of the plain peaks, as many bytes for each, or multiples to the byte), for the device
  /// that is nearest to its budget: what it holds is never a larger share of what the larger budget was.
  Found find(const std::vector<int64_t>& budgets);

 private:
  using Limits = std::vector<int64_t>;

  Descent& descent(const Limits& unit);
  const Archive& archive(const std::vector<int>& devices, int64_t& work);
  Found find_down(const Limits& unit, const Limits& budgets);
  Found smallest_of_all(const Limits& budgets);

  const StepIndex& index_;
  const Options choices_;
  const SearchOptions options_;
  std::map<std::vector<int>, Archive> archives_; ///< by the devices that have limits; of small steps
  std::map<Limits, std::unique_ptr<Descent>> descents_; ///< by what their limits are to each other
};

/// Plans of one device from the plain step down to the smallest peak that is found, each smaller than the one before.
std::vector<std::vector<Choice>> frontier(const StepIndex& index, int device, const SearchOptions& options = {});

} // namespace recals::plan
