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
          options.most_chained = 0; // few levels of it are asked for, so the ways to them should be short
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
  if (at_end_ || options_.storages.empty()) {
    return false;
  }
  std::optional<Point> point = now().peak > floor_ ? below(now()) : std::nullopt;
  const bool last = !point || (leads_to_end(range_of(now().peak)) && point->peak <= lowest().peak);
  if (last) {
    at_end_ = true;
    point = lowest();
    if (point->peak >= now().peak) {
      points_.back() = std::move(*point); // cheaper, perhaps
      return false;
    }
  }
  points_.push_back(std::move(*point));
  ++at_;
  return true;
}

/// The point after the last one; empty where no level below it can be reached.
std::optional<Descent::Point> Descent::below(const Point& from) {
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
  if (leads_to_end(range)) {
    const Point* const next = next_on_way_to_end(from.peak);
    std::optional<Point> point = next && level > next->peak ? reach(from, level, Also::Nothing) : std::nullopt;
    return next && (!point || point->peak <= next->peak) ? *next : point;
  }
  std::optional<Point> point = level >= floor_ ? reach(from, level, Also::Starts) : std::nullopt;
  if (!point && level >= floor_) {
    point = reach_hot(from, level);
  }
  if (std::optional<Point> begin = anchor_in(range + 1, range_of(point ? point->peak : floor_))) {
    // Where it fell into a later range that has an anchor, the anchor is what everybody meets there.
    return begin;
  }
  return point;
}

/// The end, as it is found: who only wants to know how low it is does not wait for a cheaper plan.
const Descent::Point& Descent::lowest() {
  if (!lowest_) {
    lowest_ = anchored_ ? lowest_of_large_step() : lowest_from(now());
  }
  return *lowest_;
}

/// The end, polished; its peak stays, so that nothing is below it.
const Descent::Point& Descent::polished_lowest() {
  if (!polished_lowest_) {
    polished_lowest_ = polished(lowest(), lowest().peak, lowest().peak);
  }
  return *polished_lowest_;
}

/// Between `from` and the level below it, which cannot be reached.
Descent::Point Descent::lowest_from(const Point& from) {
  const int64_t level = level_below(from.peak, plain_.peak, kLevel);
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
  return lowest;
}

/// In a large step: down in steps that grow as long as they succeed, and shrink where they do not. No anchor is below.
Descent::Point Descent::lowest_of_large_step() {
  Point lowest = low_start();
  way_to_end_ = {lowest};
  constexpr double least_share = 0.004;
  int most_hot = shorter_ ? 8 : 4; // searches that take long; as many as cost about as much as a plan for a budget
  double share = 0.02;
  bool grows = true;
  while (share > least_share && lowest.peak > floor_ && most_hot > 0) {
    const int64_t level = std::max(static_cast<int64_t>(static_cast<double>(lowest.peak) * (1 - share)), floor_);
    std::optional<Point> lower = reach(lowest, level, grows ? Also::StartsOfItself : Also::Nothing);
    if (!lower) {
      lower = reach_hot(lowest, level, 1, 0, effort(0.2, 0.05));
      --most_hot;
    }
    grows = grows && lower;
    share = grows ? std::min(2 * share, 0.16) : lower ? share : share / 2;
    if (lower) {
      lowest = std::move(*lower);
      way_to_end_.push_back(lowest);
    }
  }
  for (int range = range_of(lowest.peak); range <= range_of(lowest.peak) + 1; ++range) {
    if (anchor(range) && anchor(range)->peak < lowest.peak) {
      lowest = *anchor(range);
      way_to_end_.push_back(lowest);
    }
  }
  return lowest;
}

/// Where the way to the end begins: at the end of the shorter step, repeated, or at what nearly fits into the least.
Descent::Point Descent::low_start() {
  Point low = plain_;
  const auto consider = [&](const std::vector<Choice>& choices) {
    step_.set_choices(choices);
    if (Point point = point_of(state_of(step_)); point.peak < low.peak) {
      low = std::move(point);
    }
  };
  if (shorter_) {
    const Point& end = shorter_->descent.end();
    for (const Shortened::Way way : {Shortened::Way::Stretch, Shortened::Way::Tile}) {
      consider(shorter_->step.repeated(end.choices, way));
    }
  } else {
    set_level(floor_);
    consider(best_of(starts(starting_work(), false)).choices);
  }
  return low;
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
  const int64_t top = top_of_range(range);
  if (is_new && top >= floor_) {
    set_level(top);
    step_.set_choices(starts_.plain());
    const State state = best_of(starts(starting_work(), false));
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

/// Behind this range there are no anchors any more: the way goes on by what `lowest` met.
bool Descent::leads_to_end(int range) {
  if (!anchored_ || anchor(range + 1)) {
    return false;
  }
  const int last = range_of(lowest().peak);
  for (int r = range + 2; r <= last; ++r) {
    if (anchor(r)) {
      return false;
    }
  }
  return true;
}

/// The first plan below a peak that `lowest` met; null: none is.
const Descent::Point* Descent::next_on_way_to_end(int64_t peak) {
  lowest();
  const auto below = [&](const Point& point) { return point.peak < peak; };
  const auto it = std::find_if(way_to_end_.begin(), way_to_end_.end(), below);
  return it == way_to_end_.end() ? nullptr : &*it;
}

/// Leaves out ranges between here and a level, as far as their anchors allow. Every way down meets every anchor, so this
/// decides how long the way is, and not where it leads.
void Descent::jump_towards(int64_t level) {
  if (!anchored_ || level >= now().peak || options_.storages.empty()) {
    return;
  }
  // Anchors are there down to some range, as a rule.
  const int first = range_of(now().peak);
  int found = first;
  int none = range_of(std::max(level, floor_)) + 1;
  for (int range = none - 1; none - found > 1; range = found + (none - found) / 2) {
    (anchor(range) ? found : none) = range;
  }
  const Point* begin = found > first ? &*anchor(found) : nullptr;
  if (leads_to_end(found)) {
    int64_t peak = begin ? begin->peak : now().peak;
    for (const Point* next; (next = next_on_way_to_end(peak)) && next->peak > level; peak = next->peak) {
      begin = next;
    }
  }
  if (begin) {
    points_ = {*begin};
    at_ = 0;
    at_end_ = false;
  }
}

bool Descent::is_anchor(const Point& point) {
  const auto known = anchors_.find(range_of(point.peak));
  return known != anchors_.end() && known->second && known->second->choices == point.choices;
}

/// By small changes of `from`, and by what `also` names where these do not fit, or where it is time to.
std::optional<Descent::Point> Descent::reach(const Point& from, int64_t level, Also also) {
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
  if (also != Also::Nothing && ((level < next_starts_ && !anchored_) || !best.fits())) {
    const State start = best_of(
        also == Also::Starts ? starts(starting_work(), false)
                             : starts_.best(step_, improver_, limits_, starting_work()));
    best = better(start, best) ? start : best;
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

int64_t Descent::starting_work() const {
  return most_work_ * 3 / 100;
}

/// The first two of `starts`, annealed, and those that do not fit before that, hot; the better of them.
State Descent::best_of(const std::vector<State>& starts) {
  const Effort each = effort(0.05, 0.01);
  State best = starts.front();
  for (size_t i = 0; i < std::min<size_t>(2, starts.size()); ++i) {
    step_.set_choices(starts[i].choices);
    const uint64_t seed = i;
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
  return reach_hot(from, level, hot_attempts(), 2, effort(0.4, 0.1));
}

/// More of them in small steps, where one takes less.
size_t Descent::hot_attempts() const {
  const int64_t tries = std::max<int64_t>(effort(0.4, 0.1).tries, 1);
  return std::clamp<size_t>(50000 / static_cast<size_t>(tries), 3, 12);
}

/// Attempts begin in turn at `from` and at the best starting points.
std::optional<Descent::Point> Descent::reach_hot(
    const Point& from,
    int64_t level,
    size_t attempts,
    size_t most_starts,
    const Effort& each) {
  set_level(level);
  std::vector<State> starts = most_starts > 0 ? this->starts(each.work, false) : std::vector<State>();
  starts.resize(std::min(starts.size(), most_starts));
  step_.set_choices(from.choices);
  starts.insert(starts.begin(), state_of(step_));
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

/// Goes to the first point with a peak of at most `level`. Returns the one above, or the point itself if the way begins
/// there, which it does at anchors; empty: the descent ends above.
std::optional<Descent::Point> Descent::go_below(int64_t level) {
  while (at_ > 0 && points_[at_ - 1].peak <= level) {
    --at_;
  }
  if (at_ == 0 && now().peak <= level && now().peak < plain_.peak) {
    // The way began at an anchor that is below.
    points_ = {plain_};
    at_end_ = false;
  }
  if (now().peak > level && anchored_ && leads_to_end(range_of(level)) && level < lowest().peak) {
    points_ = {lowest()};
    at_ = 0;
    at_end_ = true;
    return std::nullopt;
  }
  if (at_ + 1 == points_.size() && !at_end_) {
    jump_towards(level);
  }
  Point from = at_ > 0 && now().peak <= level ? points_[at_ - 1] : now();
  while (now().peak > level) {
    from = now();
    if (!next()) {
      return std::nullopt;
    }
  }
  return is_anchor(now()) ? now() : from;
}

const Descent::Point& Descent::end() {
  go_below(-1);
  return now();
}

const Descent::Point& Descent::polished_end() {
  end();
  return polished_lowest();
}

int64_t Descent::work() const {
  return step_.work() + (shorter_ ? shorter_->descent.work() : 0);
}

std::optional<Descent::Point> Descent::plan(int64_t budget) {
  if (lowest_ && budget == lowest_->peak) {
    return polished_lowest();
  }
  const std::optional<Point> above = go_below(budget);
  if (!above) {
    return std::nullopt;
  }
  const Point& from = *above;
  const Point coarse = now();
  Point point = from;
  while (point.peak > budget) {
    std::optional<Point> finer_one = finer(from, point, coarse.peak);
    point = finer_one ? std::move(*finer_one) : coarse;
  }
  if (point.peak == coarse.peak && from.peak > budget) {
    // The descent may have jumped over levels that can be reached for less than it took to get below them.
    int64_t level = from.peak;
    while (level > budget) {
      level = level_below(level, plain_.peak, kLevel);
    }
    for (; level > coarse.peak; level = level_below(level, plain_.peak, kLevel)) {
      const int64_t below = std::max(level_below(level, plain_.peak, kLevel), coarse.peak);
      const Point between = polished(coarse, level, below + 1);
      if (between.peak > below) {
        return between;
      }
    }
  }
  // What smaller budgets get.
  Point below = coarse;
  if (point.peak > coarse.peak) {
    below = finer(from, point, coarse.peak).value_or(coarse);
  } else if (next()) {
    below = finer(point, point, now().peak).value_or(now());
  } else {
    return polished_lowest();
  }
  return polished(below.cost < point.cost ? below : point, point.peak, below.peak);
}

/// The point after `point` on the finer levels between `from` and the level below it, with a peak above `least`.
std::optional<Descent::Point> Descent::finer(const Point& from, const Point& point, int64_t least) {
  const int64_t end = std::max(level_below(from.peak, plain_.peak, kLevel), least);
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
