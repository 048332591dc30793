#include "passes/plan/descent.h"

#include <algorithm>
#include <cmath>

#include "passes/plan/planner.h"

namespace recals::plan {
namespace {

constexpr double kLevel = 0.99;
constexpr double kFinerLevel = 0.998;
/// After so many levels the chain of small changes is left for a look from the starting points.
constexpr double kStarts = 0.88;

} // namespace

Descent::Descent(const StepIndex& index, const Options& options, int device, const SearchOptions& search)
    : index_(index),
      options_(options),
      search_(search),
      device_(device),
      most_work_(work_of(index, search)),
      limits_([&] {
        std::vector<int64_t> limits(index.devices, kNoBudget);
        limits[device] = 0;
        return limits;
      }()),
      step_(index, limits_),
      improver_(options, step_),
      starts_(index, options, {device}) {
  step_.set_choices(starts_.plain());
  lowest_ = point_of(state_of(step_));
  plain_peak_ = lowest_.peak;
  next_starts_ = static_cast<int64_t>(static_cast<double>(plain_peak_) * kStarts);
}

void Descent::set_limit(int64_t bytes) {
  limits_[device_] = bytes;
  step_.set_limits(limits_);
}

Descent::Point Descent::point_of(const State& state) {
  step_.set_choices(state.choices);
  return {state.choices, step_.peak(device_), step_.cost()};
}

Effort Descent::effort(double share_of_tries, double share_of_work) const {
  // Ten choices already have a thousand sets of fates, hence the constant.
  const double tries =
      static_cast<double>(search_.tries_per_choice) * static_cast<double>(options_.storages.size() + 4);
  return {
      static_cast<int64_t>(tries * share_of_tries),
      static_cast<int64_t>(static_cast<double>(most_work_) * share_of_work)};
}

/// The highest of top * ratio, top * ratio^2, ... below a peak.
int64_t Descent::level_below(int64_t peak, int64_t top, double ratio) const {
  double level = static_cast<double>(top);
  if (peak < top && peak > 0) {
    const double power = std::floor(std::log(static_cast<double>(peak) / level) / std::log(ratio));
    level *= std::pow(ratio, std::max(0.0, power - 1)); // one above, against rounding
  }
  while (static_cast<int64_t>(level) >= peak && level >= 1) {
    level *= ratio;
  }
  return std::min(static_cast<int64_t>(level), peak - 1);
}

bool Descent::next() {
  if (at_end_ || lowest_.peak <= 0 || options_.storages.empty()) {
    return false;
  }
  const int64_t level = level_below(lowest_.peak, plain_peak_, kLevel);
  if (reach(level) || reach_hot(level)) {
    return true;
  }
  at_end_ = true;
  // The end lies between the level and the last point.
  const int64_t before = lowest_.peak;
  int64_t impossible = level; // as far as we know
  while (lowest_.peak - impossible > std::max<int64_t>(lowest_.peak / 400, 1)) {
    const int64_t middle = impossible + (lowest_.peak - impossible) / 2;
    if (!reach_hot(middle)) {
      impossible = middle;
    }
  }
  return lowest_.peak < before;
}

bool Descent::reach(int64_t level) {
  set_limit(level);
  step_.set_choices(lowest_.choices);
  improver_.drop_until_it_fits({}, most_work_ / 50);
  State best = state_of(step_);
  if (best.fits()) {
    improver_.keep_what_fits(most_work_ / 200);
    best = state_of(step_);
  }
  // Small steps have few levels that differ, and these far apart.
  Effort chain = effort(0.01, 0.002);
  chain.tries = std::max<int64_t>(chain.tries, 600);
  const State chained = improver_.anneal({chain, kCold, 1, false, -1, -1});
  best = better(chained, best) ? chained : best;
  if (level < next_starts_ || !best.fits()) {
    const State anew = best_from_starts(effort(0.05, 0.01), 2);
    best = better(anew, best) ? anew : best;
    while (next_starts_ > level) {
      next_starts_ = static_cast<int64_t>(static_cast<double>(next_starts_) * kStarts);
    }
  }
  if (!best.fits()) {
    return false;
  }
  step_.set_choices(best.choices);
  improver_.keep_what_fits(most_work_ / 200);
  lowest_ = point_of(state_of(step_));
  return true;
}

/// Starts that fit or nearly do, annealed.
State Descent::best_from_starts(const Effort& each, int most_starts) {
  std::vector<State> starts = starts_.best(step_, improver_, limits_, 3 * each.work);
  State best = starts.front();
  for (int i = 0; i < std::min(most_starts, static_cast<int>(starts.size())); ++i) {
    step_.set_choices(starts[i].choices);
    const uint64_t seed = static_cast<uint64_t>(i);
    if (!starts[i].fits()) {
      step_.set_choices(improver_.anneal({each, kHot, seed, true, -1, -1}).choices);
    }
    const State state = improver_.anneal({each, kCold, seed, false, -1, -1});
    best = better(state, best) ? state : best;
  }
  return best;
}

/// Annealing, hot, answers whether a peak can be had at all.
bool Descent::reach_hot(int64_t level) {
  set_limit(level);
  const Effort each = effort(0.4, 0.1);
  std::vector<State> starts = starts_.best(step_, improver_, limits_, each.work);
  starts.resize(std::min<size_t>(starts.size(), 2));
  step_.set_choices(lowest_.choices);
  starts.insert(starts.begin(), state_of(step_));
  const size_t attempts = std::clamp<size_t>(50000 / static_cast<size_t>(std::max<int64_t>(each.tries, 1)), 3, 12);
  for (size_t k = 0; k < attempts; ++k) {
    step_.set_choices(starts[k % starts.size()].choices);
    State state = improver_.anneal({each, k < 3 ? kHot : kVeryHot, k, true, -1, -1});
    if (state.fits()) {
      step_.set_choices(state.choices);
      const State cheaper = improver_.anneal({each, kCold, k, false, -1, -1});
      step_.set_choices(better(cheaper, state) ? cheaper.choices : state.choices);
      improver_.keep_what_fits(most_work_ / 100);
      lowest_ = point_of(state_of(step_));
      return true;
    }
  }
  return false;
}

std::optional<Descent::Point> Descent::plan(int64_t budget) {
  Point from = lowest_;
  while (lowest_.peak > budget) {
    from = lowest_;
    if (!next() && lowest_.peak > budget) {
      return std::nullopt;
    }
  }
  const Point next_coarse = lowest_;
  Point point = from;
  while (point.peak > budget) {
    std::optional<Point> finer_one = finer(from, point);
    point = finer_one ? std::move(*finer_one) : next_coarse;
  }
  if (point.peak == next_coarse.peak) {
    // The descent may have jumped over levels that can be reached for less than it took to get below them.
    int64_t level = from.peak;
    while (level > budget) {
      level = level_below(level, plain_peak_, kLevel);
    }
    for (; level > next_coarse.peak; level = level_below(level, plain_peak_, kLevel)) {
      const int64_t least = std::max(level_below(level, plain_peak_, kLevel), next_coarse.peak) + 1;
      const Point between = polished(next_coarse, level, least);
      if (between.peak >= least) {
        return between;
      }
    }
  }
  // What smaller budgets get.
  if (point.peak > next_coarse.peak) {
    const std::optional<Point> finer_one = finer(from, point);
    const Point& below = finer_one ? *finer_one : next_coarse;
    return polished(below.cost < point.cost ? below : point, point.peak, below.peak);
  }
  if (const std::optional<Point> finer_one = finer(point, point)) {
    return polished(finer_one->cost < point.cost ? *finer_one : point, point.peak, finer_one->peak);
  }
  if (!next()) {
    return polished(point, point.peak, 0);
  }
  return polished(lowest_.cost < point.cost ? lowest_ : point, point.peak, lowest_.peak);
}

/// The point after `point` on the finer levels between `from` and the level below it.
std::optional<Descent::Point> Descent::finer(const Point& from, const Point& point) {
  const int64_t end = level_below(from.peak, plain_peak_, kLevel);
  const int64_t level = level_below(point.peak, from.peak, kFinerLevel);
  if (level <= end || options_.storages.empty()) {
    return std::nullopt;
  }
  set_limit(level);
  step_.set_choices(point.choices);
  improver_.drop_until_it_fits({}, most_work_ / 50);
  improver_.keep_what_fits(most_work_ / 200);
  const State state = state_of(step_);
  if (!state.fits()) {
    return std::nullopt;
  }
  Point finer_one = point_of(state);
  return finer_one.peak > end ? std::optional<Point>(std::move(finer_one)) : std::nullopt;
}

/// The best of `point` and of what much effort finds from it and from the starting points, with a peak in [least, most].
Descent::Point Descent::polished(const Point& point, int64_t most, int64_t least) {
  set_limit(most);
  Point best = point;
  const auto consider = [&](const State& state) {
    if (!state.fits()) {
      return;
    }
    const Point candidate = point_of(state);
    if (candidate.peak >= least && candidate.cost < best.cost) {
      best = candidate;
    }
  };
  step_.set_choices(point.choices);
  State start = state_of(step_);
  std::vector<State> starts = starts_.best(step_, improver_, limits_, most_work_ / 12);
  starts.insert(starts.begin(), start);
  const Effort each = effort(0.4, 0.1);
  for (size_t i = 0; i < std::min<size_t>(starts.size(), 3); ++i) {
    step_.set_choices(starts[i].choices);
    consider(improver_.anneal({each, kCold, i, false, device_, least}));
  }
  step_.set_choices(best.choices);
  improver_.keep_what_fits(most_work_ / 20);
  consider(state_of(step_));
  return best;
}

} // namespace recals::plan
