#include "passes/plan/search.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <queue>
#include <random>

#include "passes/plan/incremental.h"
#include "passes/plan/planner.h"
#include "passes/plan/segments.h"

namespace recals::plan {
namespace {

using Limits = std::vector<int64_t>;

constexpr double kForwardTicks = static_cast<double>(int64_t{1} << 50);

/// Where annealing begins, in forwards that it would pay to get on. Cold: a good plan is near. Hot: anything goes.
constexpr double kCold = 0.001;
constexpr double kHot = 0.3;
constexpr double kVeryHot = 1;

struct State {
  std::vector<Fate> fates;
  int64_t ticks = 0;
  double violation = 0;

  bool fits() const {
    return violation == 0;
  }
};

/// What fits before what does not; then by time, or by how little it does not fit.
bool better(const State& a, const State& b) {
  if (a.fits() != b.fits()) {
    return a.fits();
  }
  return a.fits() ? a.ticks < b.ticks : a.violation < b.violation;
}

/// A cheap plan for `limits`, by annealing on time plus a price for what is above them.
class Search {
 public:
  Search(const StepIndex& index, const SearchOptions& options) : index_(index), options_(options) {
    for (int s = 0; s < index_.storages; ++s) {
      const bool matters = index_.slots[s] > 0 || index_.readers.size(s) > 0;
      if (index_.recomputable[s] && !index_.stays[s] && matters) {
        choices_.push_back(s);
      }
    }
  }

  Found run(const Limits& budgets) {
    IncrementalSimulator step(index_, budgets);
    State best = cheapest(step, starting_points(step));
    if (best.fits()) {
      return {true, std::move(best.fates)};
    }
    // Annealing may have missed what another way finds, and what is smallest must not depend on the budget.
    State smallest = smallest_of_all(budgets);
    step.set_fates(smallest.fates);
    smallest = state_of(step);
    if (smallest.fits()) {
      smallest = cheapest(step, {smallest});
    }
    return {smallest.fits(), std::move(smallest.fates)};
  }

 private:
  static State state_of(IncrementalSimulator& step) {
    return {step.fates(), step.ticks(), step.violation()};
  }

  void flip(IncrementalSimulator& step, int storage) {
    flip_.assign(1, storage);
    step.flip(flip_);
  }

  /// How long to anneal.
  struct Effort {
    int64_t tries;
    int64_t work;
  };
  Effort effort(double share_of_tries, double share_of_work) const {
    // Ten choices already have a thousand sets of fates, hence the constant.
    const double tries = static_cast<double>(options_.tries_per_choice) * static_cast<double>(choices_.size() + 4);
    return {
        static_cast<int64_t>(tries * share_of_tries),
        static_cast<int64_t>(static_cast<double>(options_.most_work) * share_of_work)};
  }

  /// For every family of checkpoints, and none: the greedy plan, and the plan that recomputes everything between them.
  /// Best first.
  std::vector<State> starting_points(IncrementalSimulator& step) {
    std::vector<State> starts;
    std::vector<std::vector<uint8_t>> seen;
    const int64_t work = step.work();
    // From coarse to fine, so that a large step, for which there is no time to try all, has some of each.
    for (const int segments : {1, 8, 32, 2, 16, 64, 4, 128, 3, 6, 12, 24, 48, 96}) {
      if (step.work() - work > options_.most_work) {
        break;
      }
      std::vector<uint8_t> kept = crossing(index_, segments, 0.4);
      if (std::find(seen.begin(), seen.end(), kept) != seen.end()) {
        continue;
      }
      seen.push_back(kept);
      for (const bool drop_all : {false, true}) {
        std::vector<Fate> fates(index_.storages, Fate::Keep);
        for (const int s : choices_) {
          if (!kept[s] && (drop_all || index_.slots[s] == 0)) {
            fates[s] = Fate::Recompute;
          }
        }
        step.set_fates(fates);
        drop_until_it_fits(step, kept);
        keep_what_fits(step);
        starts.push_back(state_of(step));
      }
    }
    std::stable_sort(starts.begin(), starts.end(), better);
    return starts;
  }

  /// Greedy: drops what lowers the violation most per second, until nothing is above a limit or nothing helps.
  void drop_until_it_fits(IncrementalSimulator& step, const std::vector<uint8_t>& kept) {
    struct Candidate {
      double gain;
      int storage;
      bool operator<(const Candidate& other) const {
        return gain != other.gain ? gain < other.gain : storage > other.storage;
      }
    };
    double violation = step.violation();
    if (violation == 0) {
      return;
    }
    const auto gain_of = [&](int s) {
      const int64_t ticks = step.ticks();
      flip(step, s);
      // A drop that costs nothing must still have a finite gain.
      const double cost = static_cast<double>(step.ticks() - ticks) + 1e-9 * kForwardTicks;
      const double gain = (violation - step.violation()) / cost;
      step.undo();
      return gain;
    };
    std::priority_queue<Candidate> queue;
    for (const int s : choices_) {
      if (step.fate(s) == Fate::Keep && index_.slots[s] > 0 && !kept[s]) {
        const double gain = gain_of(s);
        if (gain > 0) {
          queue.push({gain, s});
        }
      }
    }
    // Gains change while others are dropped: what is on top is asked again before it is taken.
    while (violation > 0 && !queue.empty()) {
      Candidate top = queue.top();
      queue.pop();
      top.gain = gain_of(top.storage);
      if (top.gain <= 0) {
        continue;
      }
      if (!queue.empty() && top.gain < 0.95 * queue.top().gain) {
        queue.push(top);
        continue;
      }
      flip(step, top.storage);
      violation = step.violation();
    }
  }

  /// Turns drops back, most expensive first, where all still fits.
  void keep_what_fits(IncrementalSimulator& step) {
    if (step.violation() > 0) {
      return;
    }
    std::vector<int> order;
    for (const int s : choices_) {
      if (step.fate(s) == Fate::Recompute && step.replays(index_.producer[s])) {
        order.push_back(s);
      }
    }
    std::stable_sort(order.begin(), order.end(), [&](int a, int b) {
      return step.ticks_of(index_.producer[a]) > step.ticks_of(index_.producer[b]);
    });
    for (const int s : order) {
      const int64_t ticks = step.ticks();
      flip(step, s);
      if (step.ticks() >= ticks || step.violation() > 0) {
        step.undo();
      }
    }
  }

  /// Anneals the two best starts.
  State cheapest(IncrementalSimulator& step, const std::vector<State>& starts) {
    State best = starts.front();
    const Effort each = effort(0.5, 0.5);
    for (size_t i = 0; i < std::min<size_t>(starts.size(), 2); ++i) {
      step.set_fates(starts[i].fates);
      if (!starts[i].fits()) {
        step.set_fates(anneal(step, each, kHot, i, true).fates);
      }
      step.set_fates(anneal(step, each, kCold, i, false).fates);
      keep_what_fits(step);
      State state = state_of(step);
      if (better(state, best)) {
        best = std::move(state);
      }
    }
    return best;
  }

  /// Simulated annealing from where `step` is. The price of what is above the limits moves so that about half of the
  /// states on the way fit: the good plans lie at that edge. `until_it_fits`: the first that fits will do.
  State anneal(IncrementalSimulator& step, const Effort& effort, double heat, uint64_t seed, bool until_it_fits) {
    State best = state_of(step);
    if (choices_.empty() || (until_it_fits && best.fits())) {
      return best;
    }
    std::mt19937_64 random(seed);
    const double begin = heat;
    const int64_t work = step.work();
    double price = 1;
    int not_fitting = 0;
    int64_t ticks = best.ticks;
    double violation = best.violation;
    for (int64_t i = 0; i < effort.tries && step.work() - work < effort.work; ++i) {
      pick_flips(step, random);
      if (flip_.empty()) {
        continue;
      }
      step.flip(flip_);
      const double new_violation = step.violation();
      const double more =
          static_cast<double>(step.ticks() - ticks) / kForwardTicks + price * (new_violation - violation);
      const double luck = (static_cast<double>(random() >> 11) + 0.5) * 0x1p-53;
      if (more <= 0 || more < -heat * std::log(luck)) {
        ticks = step.ticks();
        violation = new_violation;
        const bool new_best =
            violation == 0 ? !best.fits() || ticks < best.ticks : !best.fits() && violation < best.violation;
        if (new_best) {
          best = state_of(step);
          if (until_it_fits && best.fits()) {
            break;
          }
        }
      } else {
        step.undo();
      }
      not_fitting += violation > 0 ? 1 : 0;
      if (i % 50 == 49) {
        const double done = std::max(
            static_cast<double>(i) / static_cast<double>(effort.tries),
            static_cast<double>(step.work() - work) / static_cast<double>(effort.work));
        heat = begin * std::pow(1e-3, done);
        if (not_fitting > 30) {
          price *= 1.1;
        } else if (not_fitting < 20) {
          price /= 1.1;
        }
        not_fitting = 0;
      }
    }
    return best;
  }

  /// One storage; or a swap of a dropped and a kept one, neighbours (a checkpoint moves) or any two; or a run of
  /// neighbours to one fate.
  void pick_flips(const IncrementalSimulator& step, std::mt19937_64& random) {
    const auto draw = [&](int count) { return static_cast<int>(random() % static_cast<uint64_t>(count)); };
    const int count = static_cast<int>(choices_.size());
    flip_.clear();
    const int kind = draw(10);
    const int a = draw(count);
    if (kind >= 8) {
      const Fate fate = draw(2) == 0 ? Fate::Keep : Fate::Recompute;
      const int end = std::min(count, a + 2 + draw(5));
      for (int k = a; k < end; ++k) {
        if (step.fate(choices_[k]) != fate) {
          flip_.push_back(choices_[k]);
        }
      }
      return;
    }
    flip_.push_back(choices_[a]);
    if (kind >= 5) {
      constexpr int kReach = 6;
      for (int k = 0; k < 8; ++k) {
        const int b = std::clamp(a - kReach + draw(2 * kReach + 1), 0, count - 1);
        if (step.fate(choices_[b]) != step.fate(choices_[a])) {
          flip_.push_back(choices_[b]);
          break;
        }
      }
    }
  }

  /// The smallest peaks found; depends on which devices have a budget, not on what it is.
  State smallest_of_all(const Limits& budgets) {
    Limits least(index_.devices, kNoBudget);
    State state;
    int limited = 0;
    for (int d = 0; d < index_.devices; ++d) {
      if (budgets[d] != kNoBudget) {
        ++limited;
        state = smallest_on(d, least[d]);
      }
    }
    if (limited < 2) {
      return state;
    }
    // Each device with as little above its own minimum as it takes to have all at once.
    for (double more = 0;; more = more * 1.5 + 0.01) {
      Limits limits = least;
      for (int64_t& limit : limits) {
        if (limit != kNoBudget) {
          limit += static_cast<int64_t>(static_cast<double>(limit + 1) * more);
        }
      }
      IncrementalSimulator step(index_, limits);
      step.set_fates(starting_points(step).front().fates);
      state = anneal(step, effort(0.4, 0.15), kHot, 1, true);
      if (state.fits()) {
        return state;
      }
    }
  }

  /// The smallest peak of one device: bisection, where annealing answers whether a peak can be had.
  State smallest_on(int device, int64_t& least) {
    Limits limits(index_.devices, kNoBudget);
    limits[device] = 0; // every start is greedy for anything that lowers memory anywhere
    IncrementalSimulator step(index_, limits);
    least = std::numeric_limits<int64_t>::max();
    State best;
    for (State& start : starting_points(step)) {
      step.set_fates(start.fates);
      if (step.peak(device) < least) {
        least = step.peak(device);
        best = std::move(start);
      }
    }
    std::vector<Fate> drop_all(index_.storages, Fate::Keep);
    for (const int s : choices_) {
      drop_all[s] = Fate::Recompute;
    }

    const Effort each = effort(0.4, 0.15);
    const int64_t attempts = std::clamp<int64_t>(50000 / std::max<int64_t>(each.tries, 1), 2, 6);
    int64_t impossible = 0; // as far as we know
    while (least - impossible > std::max<int64_t>(least / 200, 1)) {
      limits[device] = std::max(impossible + (least - impossible) / 2, least - std::max<int64_t>(least / 10, 1));
      step.set_limits(limits);
      bool found = false;
      for (int64_t k = 0; k < attempts && !found; ++k) {
        step.set_fates(k % 2 == 0 ? best.fates : drop_all);
        State state = anneal(step, each, k < 2 ? kHot : kVeryHot, static_cast<uint64_t>(k), true);
        found = state.fits();
        if (found) {
          step.set_fates(state.fates);
          least = step.peak(device);
          best = std::move(state);
        }
      }
      if (!found) {
        impossible = limits[device];
      }
    }
    return best;
  }

  const StepIndex& index_;
  const SearchOptions& options_;
  std::vector<int> choices_;
  std::vector<int> flip_; ///< scratch
};

} // namespace

Found search(const StepIndex& index, const std::vector<int64_t>& budgets, const SearchOptions& options) {
  return Search(index, options).run(budgets);
}

} // namespace recals::plan
