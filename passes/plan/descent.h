#pragma once

/// Plans one below the other, for one device or for several whose limits shrink together.
///
/// Note [Levels]
/// `unit` says what the limits of the devices are to each other. A *level* is a number of bytes of the device with the
/// largest unit; it stands for the limits that are as much of the other units (for one device: itself). The peak of a plan
/// is the lowest level within which it is.
///
/// The levels are the plain step's peak times 0.99, 0.99^2, ... From a plan the descent goes to the highest level below the
/// plan's peak, from there to the next, and on the way no device's peak rises. So the plans depend on the graph and on the
/// units alone, and not on a budget that somebody asks for: whoever wants a plan for a budget takes the first that fits,
/// and smaller budgets have smaller peaks.
/// Between two points there are finer ones, on finer levels that go down from the upper one in the same way, as long as
/// they stay above the level of the lower. What is made of a point when it is polished has a peak between that of the
/// point and that of the next one; and where a point jumps over levels, a plan on the first of these that has one which is
/// cheaper than the point comes before it.
///
/// Note [Anchors]
/// In a large step, walking down all levels would take long. There, every 12 % the descent begins anew: the
/// *anchor* of a range of levels is made from the starting points alone, and counts if its peak lies in the range. Where
/// there is one, what came before leaves off at the range above it. So the way to a budget is short, and is yet a part of
/// the one way down: all the same plans are met by whoever comes from above.
/// Low down, starting points fit no longer, and there are no anchors. The search for the end begins there by itself, and
/// the plans that it meets are what the way passes below the last anchor.

#include <map>
#include <memory>
#include <optional>

#include "passes/plan/repeats.h"
#include "passes/plan/search.h"
#include "passes/plan/starts.h"

namespace recals::plan {

class Descent {
 public:
  /// `unit`: per device, kNoBudget: it has no limit. At least one has one.
  Descent(
      const StepIndex& index,
      const Options& options,
      const std::vector<int64_t>& unit,
      const SearchOptions& search);
  Descent(const Descent&) = delete;
  Descent& operator=(const Descent&) = delete;
  ~Descent();

  struct Point {
    std::vector<Choice> choices;
    int64_t peak = 0; ///< as a level
    int64_t cost = 0;
  };
  /// Where it is: the plain step at first.
  const Point& now() const {
    return points_[at_];
  }
  /// The highest level within the budgets.
  int64_t level_within(const std::vector<int64_t>& budgets) const;
  /// Goes to the next point. False: none was found, the descent is at its end; `now` may be a cheaper point then than it
  /// was before, with the same peak.
  bool next();
  /// The plan for a level: the first point that fits, polished. Empty if the descent ends above it. Any level may follow
  /// any other.
  std::optional<Point> plan(int64_t level);
  /// The lowest point that there is.
  const Point& end();
  /// The same peak at less cost: what `plan` gives for it.
  const Point& polished_end();
  /// Of its simulators, so far.
  int64_t work() const;

 private:
  struct Shorter;

  std::vector<int64_t> limits_at(int64_t level) const;
  void set_level(int64_t level);
  int64_t peak();
  Point point_of(const State& state);
  std::optional<Point> finer(const Point& from, const Point& point, int64_t least);
  Point polished(const Point& point, int64_t most, int64_t least);
  int64_t level_below(int64_t peak, int64_t top, double ratio) const;
  std::optional<Point> go_below(int64_t level);
  std::optional<Point> below(const Point& from);
  const Point& lowest();
  const Point& polished_lowest();
  const Point* next_on_way_to_end(int64_t peak);
  Point lowest_from(const Point& from);
  Point lowest_of_large_step();
  Point low_start();
  enum class Also : uint8_t {
    Nothing,
    StartsOfItself, ///< starting points without those that the shorter step gives
    Starts,
  };
  std::optional<Point> reach(const Point& from, int64_t level, Also also);
  std::optional<Point> reach_hot(const Point& from, int64_t level);
  std::optional<Point> reach_hot(
      const Point& from,
      int64_t level,
      size_t attempts,
      size_t most_starts,
      const Effort& each);
  size_t hot_attempts() const;
  int64_t starting_work() const;
  State best_of(const std::vector<State>& starts);
  std::vector<State> starts(int64_t work, bool polish);
  Effort effort(double share_of_tries, double share_of_work) const;

  int range_of(int64_t level) const;
  int64_t top_of_range(int range) const;
  const std::optional<Point>& anchor(int range);
  bool is_anchor(const Point& point);
  bool leads_to_end(int range);
  void jump_towards(int64_t level);

  const StepIndex& index_;
  const Options& options_;
  const SearchOptions& search_;
  std::vector<int64_t> unit_;
  int reference_; ///< the device with the largest unit
  int64_t most_work_;
  std::vector<int64_t> limits_;
  IncrementalSimulator step_;
  Improver improver_;
  Starts starts_;
  std::unique_ptr<Shorter> shorter_; ///< null: the step has no blocks that are alike
  Point plain_;
  int64_t floor_ = 0; ///< no plan is below this level
  /// Points one after the other, from the plain step or from an anchor on.
  std::vector<Point> points_;
  size_t at_ = 0;
  int64_t next_starts_ = 0; ///< below this level the search begins anew once
  bool anchored_ = false;
  std::map<int, std::optional<Point>> anchors_; ///< by range
  std::optional<Point> lowest_; ///< the end, once known
  std::vector<Point> way_to_end_; ///< the plans of a large step that `lowest` met, each smaller than the one before
  std::optional<Point> polished_lowest_;
  bool at_end_ = false; ///< nothing is below the last of `points_`
};

} // namespace recals::plan
