#pragma once

/// Plans of one device, one below the other.
///
/// Note [Levels]
/// The levels of a device are its plain peak times 0.99, 0.99^2, ... From a plan the descent goes to the highest level
/// below the plan's peak, from there to the next. So the plans depend on the graph alone, and not on a budget that
/// somebody asks for: whoever wants a plan for a budget takes the first that fits, and smaller budgets have smaller peaks.
/// Between two points there are finer ones, on finer levels that go down from the upper one in the same way, as long as
/// they stay above the level of the lower. What is made of a point when it is polished has a peak between that of the
/// point and that of the next one; and where a point jumps over levels, a plan on the first of these that has one which is
/// cheaper than the point comes before it.

#include <optional>

#include "passes/plan/search.h"
#include "passes/plan/starts.h"

namespace recals::plan {

class Descent {
 public:
  Descent(const StepIndex& index, const Options& options, int device, const SearchOptions& search);

  struct Point {
    std::vector<Choice> choices;
    int64_t peak = 0;
    int64_t cost = 0;
  };
  /// The lowest so far.
  const Point& lowest() const {
    return lowest_;
  }
  /// Goes to the next point. False: none was found, the descent is at its end.
  bool next();
  /// The plan for a budget: the first point that fits, polished. Empty if the descent ends above the budget.
  std::optional<Point> plan(int64_t budget);

 private:
  void set_limit(int64_t bytes);
  Point point_of(const State& state);
  std::optional<Point> finer(const Point& from, const Point& point);
  Point polished(const Point& point, int64_t most, int64_t least);
  int64_t level_below(int64_t peak, int64_t top, double ratio) const;
  bool reach(int64_t level);
  bool reach_hot(int64_t level);
  State best_from_starts(const Effort& each, int most_starts);
  Effort effort(double share_of_tries, double share_of_work) const;

  const StepIndex& index_;
  const Options& options_;
  const SearchOptions& search_;
  int device_;
  int64_t most_work_;
  std::vector<int64_t> limits_;
  IncrementalSimulator step_;
  Improver improver_;
  Starts starts_;
  int64_t plain_peak_ = 0;
  Point lowest_;
  int64_t next_starts_ = 0; ///< below this level the search begins anew once
  bool at_end_ = false;
};

} // namespace recals::plan
