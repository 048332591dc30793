#include "passes/plan/small.h"

#include <algorithm>
#include <array>
#include <random>
#include <tuple>

#include "passes/plan/exhaustive.h"
#include "passes/plan/floor.h"
#include "passes/plan/planner.h"
#include "passes/plan/starts.h"

namespace recals::plan {
namespace {

/// Rounds of annealing that find nothing, after which nothing more is expected.
constexpr int kQuietRounds = 3;
constexpr std::array<double, 3> kHeats{0.003, 0.03, kHot};
/// The farthest that limits lie below a peak, in percent of it.
constexpr int kBelow = 10;
constexpr int kBelowSmallest = 30;

std::vector<int64_t> limits_of(const StepIndex& index, const std::vector<int>& devices, int64_t bytes) {
  std::vector<int64_t> limits(index.devices, kNoBudget);
  for (const int d : devices) {
    limits[d] = bytes;
  }
  return limits;
}

class SmallSearch {
 public:
  SmallSearch(const StepIndex& index, const Options& options, const SearchOptions& search, Archive& archive)
      : options_(options),
        search_(search),
        archive_(archive),
        devices_(archive.devices()),
        limits_(limits_of(index, devices_, 1)),
        step_(index, limits_),
        improver_(options, step_),
        starts_(index, options, devices_) {
    for (const int s : options.storages) {
      every_.push_back(options.every(index, s));
    }
    for (const PeakPoint& floor : floor_of(index)) {
      floor_.push_back(floor.bytes);
    }
    improver_.observe([this] { add(); });
  }

  void run() {
    begin();
    // Of several devices there are more plans that none beats.
    const int64_t until = search_.most_work * static_cast<int64_t>(1 + devices_.size()) / 2;
    const auto choices = static_cast<int64_t>(options_.storages.size());
    for (int quiet = 0; quiet < kQuietRounds && step_.work() < until; ++quiet) {
      explore_pairs(step_.work() + until / 4);
      for (int64_t i = 0; i < choices && step_.work() < until; ++i) {
        added_ = false;
        anneal();
        quiet = added_ ? -1 : quiet;
      }
    }
    explore_pairs(until + until / 8);
    archive_.simplify(step_, options_);
  }

  int64_t work() const {
    return step_.work();
  }

 private:
  void add() {
    added_ |= archive_.add(step_);
  }
  int draw(size_t count) {
    return static_cast<int>(random_() % count);
  }

  void begin() {
    step_.set_choices(options_.plain);
    archive_.add(step_);
    const Archived plain = archive_.plans().front();
    step_.set_choices(starts_.plain());
    archive_.add(step_);
    for (int percent = 95; percent > 10; percent -= 10) {
      for (size_t i = 0; i < devices_.size(); ++i) {
        limits_[devices_[i]] = std::max<int64_t>(plain.peaks[i] * percent / 100, 1);
      }
      step_.set_limits(limits_);
      for (const State& state : starts_.best(step_, improver_, limits_, search_.most_work / 200)) {
        step_.set_choices(state.choices);
        archive_.add(step_);
      }
    }
  }

  /// From a plan of the archive, towards less memory on one device.
  void anneal() {
    const std::vector<Archived>& plans = archive_.plans();
    const size_t less = draw(devices_.size());
    const Archived* from = &plans[draw(plans.size())];
    const auto lowest = std::min_element(plans.begin(), plans.end(), [&](const Archived& a, const Archived& b) {
      return a.peaks[less] < b.peaks[less];
    });
    const bool below_all = draw(2) == 0 && lowest->peaks[less] > floor_[devices_[less]];
    if (below_all) {
      from = &*lowest;
    }
    const Archived& other = plans[draw(plans.size())];
    for (size_t i = 0; i < devices_.size(); ++i) {
      int64_t limit = from->peaks[i];
      if (i == less) {
        limit -= 1 + limit * draw(below_all ? kBelowSmallest : kBelow) / 100;
      } else if (draw(2) == 0) {
        limit = std::max(limit, other.peaks[i]);
      }
      limits_[devices_[i]] = std::max<int64_t>(limit, 1);
    }
    step_.set_limits(limits_);
    step_.set_choices(below_all && draw(3) == 0 ? with_nothing_retained(from->choices) : from->choices);
    const auto tries = static_cast<int64_t>(search_.tries_per_choice) / 3 *
        static_cast<int64_t>(options_.storages.size() + 4); // the 4 as in Descent::effort
    improver_.anneal({{tries, search_.most_work}, kHeats[draw(kHeats.size())], random_(), false, {}});
  }

  std::vector<Choice> with_nothing_retained(std::vector<Choice> choices) {
    const bool all = draw(2) == 0;
    for (const int s : options_.storages) {
      if (all && options_.allows(s, Fate::Recompute)) {
        choices[s] = Fate::Recompute;
      }
      if (choices[s].fate != Fate::Keep) {
        choices[s].cache_from = -1;
      }
    }
    return choices;
  }

  /// Pairs of changes to what is new in the archive, and to what comes of that.
  void explore_pairs(int64_t until) {
    while (step_.work() < until) {
      const std::optional<std::vector<Choice>> from = archive_.take_new();
      if (!from) {
        return;
      }
      // Every byte of every moment is above these, so that what differs in memory differs in its violation.
      step_.set_limits(limits_ = limits_of(step_.index(), devices_, 1));
      step_.set_choices(*from);
      explore_pairs(*from);
    }
  }

  void explore_pairs(const std::vector<Choice>& from) {
    const std::vector<Change> singles = different_changes(from);
    std::vector<Change> change(1);
    for (size_t a = 0; a < singles.size(); ++a) {
      const int s = singles[a].storage;
      change[0] = singles[a];
      step_.change(change);
      for (size_t b = a + 1; b < singles.size(); ++b) {
        if (singles[b].storage != s) {
          change[0] = singles[b];
          step_.change(change);
          archive_.add(step_);
          step_.undo();
        }
      }
      change[0] = {s, from[s]};
      step_.change(change);
    }
  }

  /// Changes of one choice that make a difference; of those that make the same one, for one storage, the first.
  std::vector<Change> different_changes(const std::vector<Choice>& from) {
    const auto outcome = [&] {
      int64_t peaks = 0;
      for (const int d : devices_) {
        peaks += step_.peak(d);
      }
      return std::tuple(peaks, step_.violation(), step_.cost());
    };
    std::vector<Change> changes;
    std::vector<Change> change(1);
    for (size_t i = 0; i < every_.size(); ++i) {
      const int s = options_.storages[i];
      std::vector seen{outcome()};
      for (const Choice& choice : every_[i]) {
        if (choice == from[s]) {
          continue;
        }
        change[0] = {s, choice};
        step_.change(change);
        archive_.add(step_);
        const auto what = outcome();
        if (std::find(seen.begin(), seen.end(), what) == seen.end()) {
          seen.push_back(what);
          changes.push_back(change[0]);
        }
        step_.undo();
      }
    }
    return changes;
  }

  const Options& options_;
  const SearchOptions& search_;
  Archive& archive_;
  const std::vector<int>& devices_;
  std::vector<int64_t> limits_;
  IncrementalSimulator step_;
  Improver improver_;
  Starts starts_;
  std::vector<std::vector<Choice>> every_; ///< per entry of Options::storages
  std::vector<int64_t> floor_; ///< per device of the step
  std::mt19937_64 random_; // NOLINT(cert-msc51-cpp): the same each time, on purpose
  bool added_ = false;
};

} // namespace

Archive plans_of_small_step(
    const StepIndex& index,
    const Options& options,
    const std::vector<int>& devices,
    const SearchOptions& search,
    int64_t& work) {
  Archive archive(devices);
  if (options.sets(index) <= search.most_sets) {
    work += try_all(index, options, archive);
  } else {
    SmallSearch small(index, options, search, archive);
    small.run();
    work += small.work();
  }
  return archive;
}

} // namespace recals::plan
