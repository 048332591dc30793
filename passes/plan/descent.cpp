#include "passes/plan/descent.h"

#include <algorithm>
#include <cmath>

#include "passes/plan/floor.h"
#include "passes/plan/planner.h"

namespace recals::plan {
namespace {

constexpr double kLevel = 0.99;
constexpr double kFinerLevel = 0.998;
/// After so many levels the chain of small changes is left for a look from the starting points.
constexpr double kStarts = 0.88;
/// A shorter step has at least so many blocks, and as many as give so many nodes.
constexpr int kFewestBlocks = 4;
constexpr int kShortNodes = 150;

std::vector<int> limited_devices(const std::vector<int64_t>& limits) {
  std::vector<int> devices;
  for (size_t d = 0; d < limits.size(); ++d) {
    if (limits[d] != kNoBudget) {
      devices.push_back(static_cast<int>(d));
    }
  }
  return devices;
}

std::vector<int64_t> at_least_one(std::vector<int64_t> unit) {
  for (int64_t& bytes : unit) {
    bytes = std::max<int64_t>(bytes, 1);
  }
  return unit;
}

__extension__ using Wide = __int128;

/// bytes * of / to, rounded up.
int64_t scaled_up(int64_t bytes, int64_t of, int64_t to) {
  return static_cast<int64_t>((static_cast<Wide>(bytes) * of + to - 1) / to);
}

int64_t scaled_down(int64_t bytes, int64_t of, int64_t to) {
  return static_cast<int64_t>(static_cast<Wide>(bytes) * of / to);
}

} // namespace

/// The step with fewer of its equal blocks, and the way down there.
struct Descent::Shorter {
  Shorter(Shortened step, double share, const std::vector<int64_t>& unit, SearchOptions options)
      : step(std::move(step)),
        share(share),
        options(this->step.index()),
        search([&] {
          options.most_chained = 0; // only one plan of it is wanted at a time
          return options;
        }()),
        descent(this->step.index(), this->options, unit, search),
        plain_peak(descent.now().peak) {}

  Shortened step;
  double share; ///< of the blocks that are left
  Options options;
  SearchOptions search;
  Descent descent;
  int64_t plain_peak;
};

Descent::Descent(
    const StepIndex& index,
    const Options& options,
    const std::vector<int64_t>& unit,
    const SearchOptions& search)
    : index_(index),
      options_(options),
      search_(search),
      unit_(at_least_one(unit)),
      most_work_(work_of(index, search)),
      limits_(unit),
      step_(index, unit_),
      improver_(options, step_),
      starts_(index, options, limited_devices(unit)) {
  reference_ = limited_devices(unit).front();
  for (const int d : limited_devices(unit)) {
    reference_ = unit[d] > unit[reference_] ? d : reference_;
  }
  step_.set_choices(starts_.plain());
  plain_ = point_of(state_of(step_));
  points_ = {plain_};
  const std::vector<PeakPoint> floor = floor_of(index);
  for (const int d : limited_devices(unit)) {
    floor_ = std::max(floor_, scaled_up(floor[d].bytes, unit_[reference_], unit_[d]));
  }
  next_starts_ = static_cast<int64_t>(static_cast<double>(plain_.peak) * kStarts);
  if (options.storages.size() > search.most_chained) {
    anchored_ = true;
    const Repeat repeat = longest_repeat(index);
    const int blocks = std::max(kFewestBlocks, (kShortNodes + repeat.period - 1) / std::max(repeat.period, 1));
    std::optional<Shortened> step = repeat.count > 2 * blocks ? Shortened::make(index, repeat, blocks) : std::nullopt;
    if (step) {
      const double share = static_cast<double>(blocks) / repeat.count;
      shorter_ = std::make_unique<Shorter>(std::move(*step), share, unit, search);
    }
  }
}

Descent::~Descent() = default;

int64_t Descent::level_within(const std::vector<int64_t>& budgets) const {
  int64_t level = kNoBudget;
  for (size_t d = 0; d < unit_.size(); ++d) {
    if (unit_[d] != kNoBudget) {
      level = std::min(level, scaled_down(budgets[d], unit_[reference_], unit_[d]));
    }
  }
  return level;
}

/// The most that each device may hold at a level: what `peak` takes back to it.
std::vector<int64_t> Descent::limits_at(int64_t level) const {
  std::vector<int64_t> limits(unit_.size(), kNoBudget);
  for (size_t d = 0; d < unit_.size(); ++d) {
    if (unit_[d] != kNoBudget) {
      limits[d] = scaled_down(level, unit_[d], unit_[reference_]);
    }
  }
  return limits;
}

void Descent::set_level(int64_t level) {
  limits_ = limits_at(level);
  step_.set_limits(limits_);
}

/// The peak of the step as it is, as a level.
int64_t Descent::peak() {
  int64_t level = 0;
  for (size_t d = 0; d < unit_.size(); ++d) {
    if (unit_[d] != kNoBudget) {
      level = std::max(level, scaled_up(step_.peak(static_cast<int>(d)), unit_[reference_], unit_[d]));
    }
  }
  return level;
}

Descent::Point Descent::point_of(const State& state) {
  step_.set_choices(state.choices);
  return {state.choices, peak(), step_.cost()};
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
  if (at_ + 1 < points_.size()) {
    ++at_;
    return true;
  }
  std::optional<Point> point = at_end_ ? std::nullopt : below(now());
  if (!point) {
    return false;
  }
  if (anchored_) {
    points_.clear();
  }
  points_.push_back(std::move(*point));
  at_ = points_.size() - 1;
  return true;
}

/// The point after the last one.
std::optional<Descent::Point> Descent::below(const Point& from) {
  if (from.peak <= floor_ || options_.storages.empty()) {
    return std::nullopt;
  }
  const int64_t level = level_below(from.peak, plain_.peak, kLevel);
  const int range = range_of(from.peak);
  const auto anchor_in = [&](int first, int last) {
    for (int r = first; anchored_ && r <= last; ++r) {
      if (const std::optional<Point>& begin = anchor(r)) {
        return begin;
      }
    }
    return std::optional<Point>();
  };
  if (range_of(level) > range) {
    if (std::optional<Point> begin = anchor_in(range_of(level), range_of(level))) {
      return begin;
    }
  }
  std::optional<Point> point = level >= floor_ ? reach(from, level) : std::nullopt;
  if (!point && level >= floor_) {
    point = reach_hot(from, level);
  }
  if (std::optional<Point> begin = anchor_in(range + 1, range_of(point ? point->peak : floor_))) {
    // Where it fell into a later range that has an anchor, the anchor is what everybody meets there.
    return begin;
  }
  if (point) {
    return point;
  }
  at_end_ = true;
  // The end lies between the level and the last point.
  int64_t impossible = std::max(level, floor_ - 1); // the one as far as we know, the other for sure
  Point lowest = from;
  while (lowest.peak - impossible > std::max<int64_t>(lowest.peak / 400, 1)) {
    const int64_t middle = impossible + (lowest.peak - impossible) / 2;
    if (std::optional<Point> lower = reach_hot(lowest, middle)) {
      lowest = std::move(*lower);
    } else {
      impossible = middle;
    }
  }
  return lowest.peak < from.peak ? std::optional<Point>(std::move(lowest)) : std::nullopt;
}

/// Ranges of levels, from the plain peak down; a range begins at `top_of_range`.
int Descent::range_of(int64_t level) const {
  int range = 0;
  while (top_of_range(range + 1) >= level && top_of_range(range) > 0) {
    ++range;
  }
  return range;
}

int64_t Descent::top_of_range(int range) const {
  return static_cast<int64_t>(static_cast<double>(plain_.peak) * std::pow(kStarts, range));
}

/// The plan at which a range begins, whatever comes before; empty if there is none in the range.
const std::optional<Descent::Point>& Descent::anchor(int range) {
  const auto [at, is_new] = anchors_.try_emplace(range);
  if (is_new) {
    const int64_t top = top_of_range(range);
    set_level(top);
    step_.set_choices(starts_.plain());
    const State state = best_from_starts(effort(0.05, 0.01), 2);
    if (state.fits()) {
      step_.set_choices(state.choices);
      improver_.keep_what_fits(most_work_ / 100);
      Point point = point_of(state_of(step_));
      if (range_of(point.peak) == range) {
        at->second = std::move(point);
      }
    }
  }
  return at->second;
}

/// Leaves out ranges between here and a level, as far as their anchors allow.
void Descent::jump_towards(int64_t level) {
  if (!anchored_ || level >= now().peak || options_.storages.empty()) {
    return;
  }
  // Anchors are there down to some range.
  int first = range_of(now().peak);
  for (int last = range_of(std::max(level, floor_)); last > first;) {
    const std::optional<Point>& begin = anchor(last);
    if (begin) {
      points_ = {*begin};
      at_ = 0;
      return;
    }
    last = first + (last - first) / 2;
  }
}

std::optional<Descent::Point> Descent::reach(const Point& from, int64_t level) {
  set_level(level);
  step_.set_choices(from.choices);
  improver_.drop_until_it_fits({}, most_work_ / 50);
  State best = state_of(step_);
  if (best.fits()) {
    improver_.keep_what_fits(most_work_ / 200);
    best = state_of(step_);
  }
  // Small steps have few levels that differ, and these far apart.
  Effort chain = effort(0.01, 0.002);
  chain.tries = std::max<int64_t>(chain.tries, 600);
  const State chained = improver_.anneal({chain, kCold, 1, false, {}});
  best = better(chained, best) ? chained : best;
  if ((level < next_starts_ && !anchored_) || !best.fits()) {
    const State anew = best_from_starts(effort(0.05, 0.01), 2);
    best = better(anew, best) ? anew : best;
    while (next_starts_ > level) {
      next_starts_ = static_cast<int64_t>(static_cast<double>(next_starts_) * kStarts);
    }
  }
  if (!best.fits()) {
    return std::nullopt;
  }
  step_.set_choices(best.choices);
  improver_.keep_what_fits(most_work_ / 200);
  return point_of(state_of(step_));
}

/// The best few plans to begin with, for the limits as they are; best first. `polish`: what is repeated from the shorter
/// step is polished there.
std::vector<State> Descent::starts(int64_t work, bool polish) {
  std::vector<State> starts = starts_.best(step_, improver_, limits_, work);
  if (!shorter_) {
    return starts;
  }
  const auto peak_of = [&](const std::vector<Choice>& choices) {
    int64_t least = kNoBudget;
    for (const Shortened::Way way : {Shortened::Way::Stretch, Shortened::Way::Tile}) {
      step_.set_choices(shorter_->step.repeated(choices, way));
      least = std::min(least, peak());
    }
    return least;
  };
  // Each block that is left out is worth about as much as one that is left; from a little above, down to where it fits.
  const int64_t top = limits_[reference_];
  Descent& descent = shorter_->descent;
  int64_t level = shorter_->plain_peak - static_cast<int64_t>(static_cast<double>(plain_.peak - top) * shorter_->share);
  level += level / 10;
  Point point;
  for (int attempt = 0; attempt < 5; ++attempt) {
    if (!descent.go_below(level)) {
      point = descent.now();
      break;
    }
    point = descent.now();
    const int64_t too_much = peak_of(point.choices) - top;
    if (too_much <= top / 100) {
      break;
    }
    level = point.peak - static_cast<int64_t>(static_cast<double>(too_much) * shorter_->share) - 1;
  }
  if (polish) {
    if (std::optional<Point> polished = descent.plan(std::max(level, point.peak))) {
      point = std::move(*polished);
    }
  }
  for (const Shortened::Way way : {Shortened::Way::Stretch, Shortened::Way::Tile}) {
    step_.set_choices(shorter_->step.repeated(point.choices, way));
    improver_.drop_until_it_fits({}, work / 4);
    improver_.keep_what_fits(work / 4);
    starts.push_back(state_of(step_));
  }
  std::stable_sort(starts.begin(), starts.end(), better);
  return starts;
}

/// Starts that fit or nearly do, annealed.
State Descent::best_from_starts(const Effort& each, int most_starts) {
  std::vector<State> starts = this->starts(3 * each.work, false);
  State best = starts.front();
  for (int i = 0; i < std::min(most_starts, static_cast<int>(starts.size())); ++i) {
    step_.set_choices(starts[i].choices);
    const uint64_t seed = static_cast<uint64_t>(i);
    if (!starts[i].fits()) {
      step_.set_choices(improver_.anneal({each, kHot, seed, true, {}}).choices);
    }
    const State state = improver_.anneal({each, kCold, seed, false, {}});
    best = better(state, best) ? state : best;
  }
  return best;
}

/// Annealing, hot, answers whether a peak can be had at all.
std::optional<Descent::Point> Descent::reach_hot(const Point& from, int64_t level) {
  set_level(level);
  const Effort each = effort(0.4, 0.1);
  std::vector<State> starts = this->starts(each.work, false);
  starts.resize(std::min<size_t>(starts.size(), 2));
  step_.set_choices(from.choices);
  starts.insert(starts.begin(), state_of(step_));
  const size_t attempts = std::clamp<size_t>(50000 / static_cast<size_t>(std::max<int64_t>(each.tries, 1)), 3, 12);
  for (size_t k = 0; k < attempts; ++k) {
    step_.set_choices(starts[k % starts.size()].choices);
    State state = improver_.anneal({each, k < 3 ? kHot : kVeryHot, k, true, {}});
    if (state.fits()) {
      step_.set_choices(state.choices);
      const State cheaper = improver_.anneal({each, kCold, k, false, {}});
      step_.set_choices(better(cheaper, state) ? cheaper.choices : state.choices);
      improver_.keep_what_fits(most_work_ / 100);
      return point_of(state_of(step_));
    }
  }
  return std::nullopt;
}

/// Goes to the first point with a peak of at most `level`; in a large step to none that is above where it is. Returns the
/// one above, or the point itself if the way begins there; empty: the descent ends above.
std::optional<Descent::Point> Descent::go_below(int64_t level) {
  while (at_ > 0 && points_[at_ - 1].peak <= level) {
    --at_;
  }
  jump_towards(level);
  Point from = at_ > 0 && now().peak <= level ? points_[at_ - 1] : now();
  while (now().peak > level) {
    from = now();
    if (!next()) {
      return std::nullopt;
    }
  }
  return from;
}

const Descent::Point& Descent::end() {
  go_below(-1);
  return now();
}

int64_t Descent::work() const {
  return step_.work() + (shorter_ ? shorter_->descent.work() : 0);
}

std::optional<Descent::Point> Descent::plan(int64_t budget) {
  const std::optional<Point> above = go_below(budget);
  if (!above) {
    return std::nullopt;
  }
  const Point& from = *above;
  const Point next_coarse = now();
  Point point = from;
  while (point.peak > budget) {
    std::optional<Point> finer_one = finer(from, point);
    point = finer_one ? std::move(*finer_one) : next_coarse;
  }
  if (point.peak == next_coarse.peak && from.peak > budget) {
    // The descent may have jumped over levels that can be reached for less than it took to get below them.
    int64_t level = from.peak;
    while (level > budget) {
      level = level_below(level, plain_.peak, kLevel);
    }
    for (; level > next_coarse.peak; level = level_below(level, plain_.peak, kLevel)) {
      const int64_t below = std::max(level_below(level, plain_.peak, kLevel), next_coarse.peak);
      const Point between = polished(next_coarse, level, below + 1);
      if (between.peak > below) {
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
  return polished(now().cost < point.cost ? now() : point, point.peak, now().peak);
}

/// The point after `point` on the finer levels between `from` and the level below it.
std::optional<Descent::Point> Descent::finer(const Point& from, const Point& point) {
  const int64_t end = level_below(from.peak, plain_.peak, kLevel);
  const int64_t level = level_below(point.peak, from.peak, kFinerLevel);
  if (level <= end || options_.storages.empty()) {
    return std::nullopt;
  }
  set_level(level);
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
  set_level(most);
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
  std::vector<State> starts = this->starts(most_work_ / 12, true);
  starts.insert(starts.begin(), start);
  const Effort each = effort(0.4, 0.1);
  for (size_t i = 0; i < std::min<size_t>(starts.size(), 3); ++i) {
    step_.set_choices(starts[i].choices);
    consider(improver_.anneal({each, kCold, i, false, [&] { return peak() >= least; }}));
  }
  step_.set_choices(best.choices);
  improver_.keep_what_fits(most_work_ / 20);
  consider(state_of(step_));
  return best;
}

} // namespace recals::plan
